"""A broker with guarded doors, and a topic behind them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from penstock.sources.kafka.sql_options import KafkaSqlOptions
from penstock.sources.kafka.with_options import KafkaWithOptions
from penstock.testing.kafka import KafkaBroker, start_kafka
from penstock.testing.kafka_security import PLAIN_USER
from penstock.testing.registry import SchemaRegistry, start_registry
from penstock.testing.tls import has_openssl, lock_key, make_authority

TOPIC, PARTITIONS, MESSAGES = "clicks", 2, 10
USER, PASSWORD = 'us"er', 'c4nary-pä"ss\\w;ord ${file:x:y}\t=#'
KEY_PASSWORD = "c4nary-op en\\sesame"
FIRST_AT, STEP = 1_700_000_000_000, 1000


@dataclass(frozen=True)
class Guarded:
    """The broker, and the ways through its doors."""

    broker: KafkaBroker
    folder: Path

    def what(self, port: int | None = None, topic: str = TOPIC) -> KafkaSqlOptions:
        """Name the topic, behind the door where one logs in unless another is said."""
        address = f"127.0.0.1:{port or self.broker.doors.sasl_port}"
        return KafkaSqlOptions.given(broker=address, topic=topic, value_format="text")

    @property
    def ssl_port(self) -> int:
        """The door for those who have a certificate."""
        return self.broker.doors.ssl_port

    def login(self, **options: Any) -> KafkaWithOptions:
        """Log in with a password, by SCRAM-SHA-512 unless another way is said."""
        (self.folder / "password").write_text(f"{PASSWORD}\n", encoding="utf-8")
        given = {"sasl_mechanisms": "SCRAM-SHA-512", "sasl_username": USER}
        given |= {"sasl_password": f"file:{self.folder / 'password'}", "ssl_ca_location": self.tls("ca.crt")}
        return KafkaWithOptions.given(**given | options)

    def plain(self) -> KafkaWithOptions:
        """Log in with the user of PLAIN."""
        user, password = PLAIN_USER
        (self.folder / "plain").write_text(f"{password}\n", encoding="utf-8")
        reference = f"file:{self.folder / 'plain'}"
        return self.login(sasl_mechanisms="PLAIN", sasl_username=user, sasl_password=reference)

    def certificate(self, **options: Any) -> KafkaWithOptions:
        """Show a certificate."""
        given = {"ssl_certificate_location": self.tls("client.crt"), "ssl_key_location": self.tls("client.key")}
        return KafkaWithOptions.given(**{"ssl_ca_location": self.tls("ca.crt"), **given, **options})

    def locked(self, **options: Any) -> KafkaWithOptions:
        """Show a certificate whose key is locked."""
        (self.folder / "key-password").write_text(f"{KEY_PASSWORD}\n", encoding="utf-8")
        given = {"ssl_key_location": self.tls("locked.key"), "ssl_key_password": f"file:{self.folder / 'key-password'}"}
        return self.certificate(**given | options)

    def tls(self, name: str) -> str:
        """Return the path of a certificate or key."""
        return str(self.broker.doors.tls / name)


@pytest.fixture(scope="session")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    """One such broker for the whole run, with ten messages in each partition of a topic, a second apart."""
    if not has_openssl():
        pytest.skip("openssl is not installed")
    folder = tmp_path_factory.mktemp("guarded")
    with start_kafka(folder / "kafka", guarded=True) as broker:
        broker.add_user(USER, PASSWORD)
        make_authority(broker.doors.tls, "stranger")
        lock_key(broker.doors.tls / "client.key", broker.doors.tls / "locked.key", KEY_PASSWORD)
        fill(broker)
        yield Guarded(broker, folder)


@pytest.fixture(scope="session")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SchemaRegistry]:
    """One registry for the whole run."""
    with start_registry(tmp_path_factory.mktemp("registry")) as running:
        yield running


def fill(broker: KafkaBroker) -> None:
    client: dict[str, Any] = {"bootstrap.servers": broker.bootstrap, "log_level": 0}
    admin = AdminClient(client)
    admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1, config={"retention.ms": "-1"})])[TOPIC].result(20)
    producer = Producer(client)
    for number in range(PARTITIONS * MESSAGES):
        partition, place = divmod(number, MESSAGES)
        producer.produce(TOPIC, f"m{number}", partition=partition, timestamp=FIRST_AT + place * STEP)
    assert producer.flush(20) == 0
