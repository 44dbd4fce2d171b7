"""The topics of the shared broker, and its secure listeners, with a topic to read through them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.servers import SharedBroker, unique
from tests.sources.kafka.topic_capture import Topics

from penstock.sources.kafka.sql_options import KafkaSqlOptions
from penstock.sources.kafka.with_options import KafkaWithOptions
from penstock.testing.kafka import PLAIN_USER, lock_key, make_authority
from penstock.testing.waiting import PATIENCE

PARTITIONS, MESSAGES = 2, 10
PASSWORD = 'c4nary-pä"ss\\w;ord ${file:x:y}\t=#'
KEY_PASSWORD = "c4nary-op en\\sesame"
FIRST_AT, STEP = 1_700_000_000_000, 1000


@dataclass(frozen=True)
class SecureBroker:
    """The secure listeners of the broker, with a user and a topic of this test worker."""

    broker: SharedBroker
    folder: Path
    user: str
    topic: str

    def sql_options(self, port: int | None = None, topic: str | None = None) -> KafkaSqlOptions:
        """Return the options for the topic, by default through the SASL listener."""
        address = f"127.0.0.1:{port or self.broker.doors.sasl_port}"
        return KafkaSqlOptions.given(broker=address, topic=topic or self.topic, value_format="text")

    @property
    def ssl_port(self) -> int:
        """The port of the listener that requires a client certificate."""
        return self.broker.doors.ssl_port

    def login(self, **options: Any) -> KafkaWithOptions:
        """Log in with a password, by default with SCRAM-SHA-512."""
        (self.folder / "password").write_text(f"{PASSWORD}\n", encoding="utf-8")
        given = {"sasl_mechanisms": "SCRAM-SHA-512", "sasl_username": self.user}
        given |= {"sasl_password": f"file:{self.folder / 'password'}", "ssl_ca_location": self.tls("ca.crt")}
        return KafkaWithOptions.given(**given | options)

    def plain(self) -> KafkaWithOptions:
        """Log in with the PLAIN mechanism."""
        user, password = PLAIN_USER
        (self.folder / "plain").write_text(f"{password}\n", encoding="utf-8")
        reference = f"file:{self.folder / 'plain'}"
        return self.login(sasl_mechanisms="PLAIN", sasl_username=user, sasl_password=reference)

    def certificate(self, **options: Any) -> KafkaWithOptions:
        """Use a client certificate."""
        given = {"ssl_certificate_location": self.tls("client.crt"), "ssl_key_location": self.tls("client.key")}
        return KafkaWithOptions.given(**{"ssl_ca_location": self.tls("ca.crt"), **given, **options})

    def encrypted_key(self, **options: Any) -> KafkaWithOptions:
        """Use a client certificate whose key is encrypted."""
        (self.folder / "key-password").write_text(f"{KEY_PASSWORD}\n", encoding="utf-8")
        given = {"ssl_key_location": self.tls("locked.key"), "ssl_key_password": f"file:{self.folder / 'key-password'}"}
        return self.certificate(**given | options)

    def tls(self, name: str) -> str:
        """Return the path of a certificate or key: from this folder, or else from the broker's."""
        created = self.folder / name
        return str(created if created.exists() else self.broker.doors.tls / name)


@pytest.fixture
def topics(broker: SharedBroker) -> Topics:
    """The broker's topics."""
    return Topics(broker)


@pytest.fixture(scope="session")
def secured(broker: SharedBroker, tmp_path_factory: pytest.TempPathFactory) -> SecureBroker:
    """The secure listeners, with ten messages in each partition of a topic, a second apart."""
    listeners, folder = broker.doors, tmp_path_factory.mktemp("secure")
    created = SecureBroker(broker, folder, unique('us"er'), unique("clicks"))
    broker.add_user(created.user, PASSWORD)
    make_authority(folder, "stranger")
    lock_key(listeners.tls / "client.key", folder / "locked.key", KEY_PASSWORD)
    fill(Topics(broker), created.topic)
    return created


def fill(topics: Topics, topic: str) -> None:
    topics.make(PARTITIONS, topic)
    for number in range(PARTITIONS * MESSAGES):
        partition, index = divmod(number, MESSAGES)
        topics.producer.produce(topic, f"m{number}", partition=partition, timestamp=FIRST_AT + index * STEP)
    assert topics.producer.flush(PATIENCE) == 0
