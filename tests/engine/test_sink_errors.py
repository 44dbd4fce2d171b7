"""Errors of one sink: shown in the status with a hint, while capture and other sinks continue; and how it recovers."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._acl import AclBinding, AclBindingFilter, AclOperation, AclPermissionType
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.admin._resource import ResourcePatternType, ResourceType
from tests.engine.shop import Shop
from tests.engine.sink_topics import committed
from tests.proxy import Proxy
from tests.servers import SharedBroker, SharedRegistry, unique
from tests.sinks.test_registration import set_compatibility

from penstock.catalog.states import SinkState
from penstock.engine.status_document import SinkStatus
from penstock.formats import AvroFormat, Registry, RegistryAddress, decode_batch, resolve
from penstock.sinks import delivery
from penstock.testing.kafka import PLAIN_USER
from penstock.testing.waiting import PATIENCE, until

SETUP = "CREATE TABLE public.orders (id int PRIMARY KEY, name text)"


class Sinks:
    """The shop with a sink that works, `fine`, and one that is about to fail, `bad`."""

    def __init__(self, shop: Shop, broker: str) -> None:
        self.shop, self.broker = shop, broker
        self.fine, self.bad = (f"{unique(name)}." for name in ("fine", "bad"))
        self.positions = unique("positions")
        self.admin = AdminClient({"bootstrap.servers": broker, "log_level": 0})
        self._create("fine", self.fine)

    def create_bad(self, **options: Any) -> None:
        self._create("bad", self.bad, positions_topic=self.positions, **options)

    def _create(self, name: str, prefix: str, **options: Any) -> None:
        fixed = {"envelope": "upsert", "format": "json", "snapshot": False, "partitions": 1, "broker": self.broker}
        self.shop.home.create_sink(name, "shop", topic_prefix=prefix, **{**fixed, **options})
        until(lambda: (found := self.shop.catalog.sinks.get(name)) and found.started, f"sink {name} to start")

    def insert(self, number: int, name: str = "a") -> None:
        self.shop.database.execute(f"INSERT INTO orders VALUES ({number}, '{name}')")

    def insert_row(self, row: str) -> None:
        self.shop.database.execute(f"INSERT INTO orders VALUES {row}")

    def status(self, name: str = "bad") -> SinkStatus:
        return next(sink for sink in self.shop.home.status().sinks if sink.name == name)

    def ids(self, prefix: str) -> list[int]:
        """Return the ids in the keys of the topic of a sink, which are JSON."""
        return [json.loads(found.key)["id"] for found in committed(self.broker, f"{prefix}public.orders") if found.key]

    def count(self, prefix: str) -> int:
        return len(committed(self.broker, f"{prefix}public.orders"))

    def fails(self) -> SinkStatus:
        """Wait until the sink has failed, and check that all else continues."""
        until(lambda: self.status().state == SinkState.FAILED, "the sink to fail")
        self.continues()
        found = self.status()
        assert found.error and found.hint
        return found

    def retries(self) -> SinkStatus:
        """Wait until the sink shows an error that it retries, and check that all else continues."""
        until(lambda: self.status().error, "the error of the sink")
        self.continues()
        found = self.status()
        assert found.state == SinkState.RUNNING and found.hint
        return found

    def continues(self) -> None:
        before = self.count(self.fine)
        self.insert(1000 + before)
        until(lambda: self.count(self.fine) == before + 1, "the other sink to deliver a change")
        assert self.status("fine").error is None
        (source,) = self.shop.home.status().sources
        assert source.error is None

    def recovers(self, **options: Any) -> None:
        """Alter the sink, and wait until it delivers again."""
        self.shop.home.alter_sink("bad", **{"client_id": unique("again"), **options})
        self.delivers()

    def delivers(self) -> None:
        """Wait until the sink has delivered as much as the other one since then."""
        until(lambda: self.status().error is None and self.status().behind == 0, "the sink to deliver everything")


@pytest.fixture
def sinks(start_shop: Callable[..., Shop], broker: SharedBroker) -> Sinks:
    return Sinks(start_shop(SETUP), broker.bootstrap)


# -- messages and topics -----------------------------------------------------------------------------------------------

LARGE = "INSERT INTO orders SELECT 2, string_agg(md5(n::text), '') FROM generate_series(1, 60000) n"
"""A row of about 2 MB, which compression does not make smaller."""


def test_message_too_large(sinks: Sinks) -> None:
    sinks.create_bad()
    sinks.insert(1)
    until(lambda: sinks.count(sinks.bad) == 1, "a message")  # otherwise both may be in one transaction
    sinks.shop.database.execute(LARGE)
    sinks.shop.home.drop_sink("fine")  # it cannot write the row either
    until(lambda: sinks.status().state == SinkState.FAILED, "the sink to fail")
    found = sinks.status()
    assert "too large" in (found.error or "").lower()
    assert "exclude" in (found.hint or "")
    assert sinks.ids(sinks.bad) == [1]


def test_topic_that_accepts_small_messages_only(sinks: Sinks) -> None:
    sinks.create_bad()
    sinks.insert(1)
    until(lambda: sinks.count(sinks.bad) == 1, "a message")
    topic = f"{sinks.bad}public.orders"
    set_topic(sinks.admin, topic, "max.message.bytes", "2000")
    sinks.shop.database.execute(
        "INSERT INTO orders SELECT 2, string_agg(md5(n::text), '') FROM generate_series(1, 200) n"
    )
    found = sinks.fails()
    assert "max.message.bytes" in (found.hint or "")
    set_topic(sinks.admin, topic, "max.message.bytes", "1000000")
    sinks.recovers()
    assert sinks.ids(sinks.bad)[:2] == [1, 2]


def test_topic_that_accepts_large_messages(sinks: Sinks) -> None:
    """What the hint of the error suggests."""
    sinks.create_bad()
    sinks.insert(1)
    until(lambda: sinks.count(sinks.bad) == 1, "a message")
    sinks.shop.home.drop_sink("fine")
    set_topic(sinks.admin, f"{sinks.bad}public.orders", "max.message.bytes", str(8 << 20))
    sinks.shop.database.execute(LARGE)
    until(lambda: sinks.status().error or sinks.count(sinks.bad) == 2, "another message")
    assert sinks.status().error is None, sinks.status().error


def set_topic(admin: AdminClient, topic: str, name: str, value: str) -> None:
    entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    [done] = admin.incremental_alter_configs([resource]).values()
    done.result(PATIENCE)


def test_positions_that_were_deleted_while_stopped(sinks: Sinks) -> None:
    sinks.create_bad()
    sinks.insert(1)
    until(lambda: sinks.count(sinks.bad) == 1, "a message")
    with stopped(sinks):
        delete_topic(sinks.admin, sinks.positions)
    found = sinks.fails()
    assert "position of the sink is missing" in (found.error or "")
    assert "create it again" in (found.hint or "")
    sinks.shop.home.alter_sink("bad", client_id="other")
    found = sinks.fails()
    assert "position of the sink is missing" in (found.error or "")
    assert sinks.ids(sinks.bad) == [1], "nothing was delivered again"


def test_topic_deleted_while_running(sinks: Sinks, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client retries until the time of the transaction is over; the topic is not created again."""
    monkeypatch.setattr(delivery, "_WRITE_SECONDS", 5.0)
    sinks.create_bad()
    sinks.insert(1)
    until(lambda: sinks.count(sinks.bad) == 1, "a message")
    delete_topic(sinks.admin, f"{sinks.bad}public.orders")
    sinks.insert(2)
    sinks.fails()
    sinks.continues()
    sinks.shop.home.sql("ALTER SINK bad RETRY")
    until(lambda: "was deleted" in (sinks.status().error or ""), "the error of the restarted sink")
    assert sinks.count(sinks.bad) == 0


def delete_topic(admin: AdminClient, name: str) -> None:
    [deleted] = admin.delete_topics([name]).values()
    deleted.result(PATIENCE)
    until(lambda: name not in admin.list_topics(timeout=PATIENCE).topics, "the deletion")


@contextmanager
def stopped(sinks: Sinks) -> Iterator[None]:
    """Stop the sink `bad`, as while the home does not run; start it again at the end of the block."""
    sinks.shop.catalog.sinks.set_state("bad", SinkState.FAILED, error="stopped by the test")
    until(lambda: ("bad", "shop") not in sinks.shop.running._sinks._running, "the sink to stop")
    yield
    sinks.shop.home.retry_sink("bad")


# -- schema registry ---------------------------------------------------------------------------------------------------


def test_incompatible_schema(sinks: Sinks, registry: SharedRegistry) -> None:
    subject = f"{sinks.bad}public.orders-value"
    text = '{"type": "record", "name": "other", "fields": [{"name": "id", "type": "string"}]}'
    registry.register(subject, text)
    set_compatibility(RegistryAddress(url=registry.url), subject, "BACKWARD")
    sinks.create_bad(format="avro", schema_registry=registry.url)
    sinks.insert(1)
    found = sinks.fails()
    assert f"not compatible with earlier schemas of subject '{subject}'" in (found.error or "")
    assert f"/config/{subject}" in (found.hint or "")
    set_compatibility(RegistryAddress(url=registry.url), subject, "NONE")
    sinks.recovers()
    assert sinks.count(sinks.bad) == sinks.count(sinks.fine)


def test_registry_that_does_not_respond(sinks: Sinks, registry: SharedRegistry) -> None:
    address = urlsplit(registry.url)
    with closing(Proxy("127.0.0.1", address.port or 0)) as proxy:
        sinks.create_bad(format="avro", schema_registry=f"http://127.0.0.1:{proxy.port}{address.path}")
        proxy.close()
        sinks.insert(1)
        found = sinks.retries()
        assert "schema registry" in (found.error or "")
        assert "resumes when the registry responds" in (found.hint or "")
        proxy.start()
        sinks.delivers()
        assert sinks.count(sinks.bad) == sinks.count(sinks.fine)


# -- columns that are added --------------------------------------------------------------------------------------------


NULLABLE, REQUIRED = "note text", "priority int NOT NULL DEFAULT 5"


@pytest.mark.parametrize(
    ("envelope", "column"),
    [
        ("upsert", NULLABLE),
        ("debezium", REQUIRED),
        pytest.param("upsert", REQUIRED, marks=pytest.mark.deep),
        pytest.param("changes", NULLABLE, marks=pytest.mark.deep),
        pytest.param("changes", REQUIRED, marks=pytest.mark.deep),
        pytest.param("debezium", NULLABLE, marks=pytest.mark.deep),
    ],
)
def test_added_column(sinks: Sinks, registry: SharedRegistry, envelope: str, column: str) -> None:
    address, subject = RegistryAddress(url=registry.url), f"{sinks.bad}public.orders-value"
    sinks.create_bad(envelope=envelope, format="avro", schema_registry=registry.url)
    sinks.insert(1)
    until(lambda: sinks.count(sinks.bad) == 1, "a message with the first schema")
    set_compatibility(address, subject, "BACKWARD")
    sinks.shop.database.execute(f"ALTER TABLE orders ADD COLUMN {column}")
    sinks.insert_row("(2, 'b', '7')")
    until(lambda: sinks.count(sinks.bad) == 2 or sinks.status().error, "a message with the second schema")
    assert sinks.status().error is None, sinks.status().error
    messages = [message.value or b"" for message in committed(sinks.broker, f"{sinks.bad}public.orders")]
    assert len({message[:5] for message in messages}) == 2, "two versions of the schema"
    reader = resolve(AvroFormat(registry=address), subject=subject)
    found = decode_batch(pa.array(messages, pa.binary()), reader, Registry(address))
    assert found.problems.null_count == 2, found.problems
    rows = [row if envelope == "upsert" else row["after"] for row in found.rows.to_pylist()]
    assert [(row["id"], row["name"]) for row in rows] == [(1, "a"), (2, "b")]
    assert str(rows[1][column.split()[0]]) == "7"


# -- permissions -------------------------------------------------------------------------------------------------------


class Grants:
    """The permissions of the user of SASL."""

    def __init__(self, admin: AdminClient) -> None:
        self._admin, self._user = admin, f"User:{PLAIN_USER[0]}"

    def grant(self, kind: ResourceType, prefix: str) -> None:
        """Allow everything on resources whose name begins so."""
        parts = (ResourcePatternType.PREFIXED, self._user, "*", AclOperation.ALL, AclPermissionType.ALLOW)
        [granted] = self._admin.create_acls([AclBinding(kind, prefix, *parts)]).values()
        granted.result(PATIENCE)

    def revoke(self, prefix: str) -> None:
        """Take back what `grant` allowed on topics."""
        parts = (ResourcePatternType.PREFIXED, self._user, "*", AclOperation.ANY, AclPermissionType.ANY)
        [revoked] = self._admin.delete_acls([AclBindingFilter(ResourceType.TOPIC, prefix, *parts)]).values()
        assert len(revoked.result(PATIENCE)) == 1


def test_permission_that_is_revoked(
    start_shop: Callable[..., Shop], guarded_broker: SharedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    sinks = Sinks(start_shop(SETUP), guarded_broker.bootstrap)
    grants, (name, password) = Grants(sinks.admin), PLAIN_USER
    monkeypatch.setenv("SINK_PASSWORD", password)
    for kind, prefix in (
        (ResourceType.TOPIC, sinks.bad),
        (ResourceType.TOPIC, sinks.positions),
        (ResourceType.TRANSACTIONAL_ID, "penstock-sink-"),
        (ResourceType.GROUP, "penstock-sink-"),
    ):
        grants.grant(kind, prefix)
    sinks.create_bad(
        broker=f"127.0.0.1:{guarded_broker.doors.sasl_port}",
        security_protocol="SASL_SSL",
        sasl_mechanisms="PLAIN",
        sasl_username=name,
        sasl_password="env:SINK_PASSWORD",
        ssl_ca_location=str(guarded_broker.doors.tls / "ca.crt"),
    )
    sinks.insert(1)
    until(lambda: sinks.count(sinks.bad) == 1, "a message")
    grants.revoke(sinks.bad)
    sinks.insert(2)
    found = sinks.fails()
    assert "authorization" in (found.error or "").lower() or "permission" in (found.error or "")
    assert "Grant the user" in (found.hint or "")
    grants.grant(ResourceType.TOPIC, sinks.bad)
    sinks.recovers()
    assert sinks.ids(sinks.bad)[:2] == [1, 2]
