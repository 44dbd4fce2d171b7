"""Debezium to test on: it copies, follows, and repeats itself after a crash, with each of its converters."""

from __future__ import annotations

import io
import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import fastavro
import pytest
from confluent_kafka import Consumer
from confluent_kafka.cimpl import TopicPartition
from tests.conftest import Database

from penstock.errors import DefiniteError
from penstock.formats import Registry, RegistryAddress
from penstock.testing.debezium import Converter, start_debezium
from penstock.testing.kafka import KafkaBroker, start_kafka
from penstock.testing.registry import SchemaRegistry, start_registry

Reader = Callable[[bytes], dict[str, Any]]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    with start_kafka(tmp_path_factory.mktemp("broker")) as running:
        yield running


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SchemaRegistry]:
    with start_registry(tmp_path_factory.mktemp("registry")) as running:
        yield running


def values(broker: KafkaBroker, topic: str) -> list[bytes]:
    settings = {"bootstrap.servers": broker.bootstrap, "group.id": "unused", "log_level": 0}
    with closing(Consumer(settings)) as reader:
        _, end = reader.get_watermark_offsets(TopicPartition(topic, 0), timeout=30)
        reader.assign([TopicPartition(topic, 0, 0)])
        found = [message for message in reader.consume(end, timeout=30) if message.error() is None]
    assert len(found) == end
    return [value for message in found if (value := message.value()) is not None]


def plain(value: bytes) -> dict[str, Any]:
    return dict(json.loads(value))


def wrapped(value: bytes) -> dict[str, Any]:
    message = json.loads(value)
    assert message.keys() == {"schema", "payload"}
    return dict(message["payload"])


def avro_by(registry: SchemaRegistry) -> Reader:
    client = Registry(RegistryAddress(url=registry.url))

    def read(value: bytes) -> dict[str, Any]:
        assert value[0] == 0
        number = int.from_bytes(value[1:5], "big")
        schema = client.schemas([number])[number]
        assert schema is not None
        record = fastavro.schemaless_reader(io.BytesIO(value[5:]), json.loads(schema.text), None)
        assert isinstance(record, dict)
        return record

    return read


@pytest.mark.parametrize("converter", list(Converter))
def test_it_copies_follows_and_repeats_itself_after_a_crash(
    converter: Converter, database: Database, broker: KafkaBroker, registry: SchemaRegistry, tmp_path: Path
) -> None:
    database.execute("CREATE TABLE notes (id int PRIMARY KEY, text text)")
    database.execute("ALTER TABLE notes REPLICA IDENTITY FULL")
    database.execute("INSERT INTO notes VALUES (1, 'one'), (2, 'two')")
    running = start_debezium(
        tmp_path,
        postgres=database.url,
        bootstrap=broker.bootstrap,
        tables=["public.notes"],
        converter=converter,
        registry=registry.url,
        prefix=converter.name.lower(),
    )
    read = {Converter.JSON: plain, Converter.JSON_WITH_SCHEMAS: wrapped, Converter.AVRO: avro_by(registry)}[converter]
    topic = running.topic("public.notes")
    with running:
        running.await_all()
        assert [read(value)["op"] for value in values(broker, topic)] == ["r", "r"]
        running.restart()
        database.execute("UPDATE notes SET text = 'other' WHERE id = 1")
        database.execute("BEGIN; DELETE FROM notes WHERE id = 2; INSERT INTO notes VALUES (3, 'three'); COMMIT")
        running.await_all()
        once = [read(value) for value in values(broker, topic)]
        assert [record["op"] for record in once] == ["r", "r", "u", "d", "c"]
        running.kill()
        assert running.pid is None
        running.start()
        running.await_all()
        twice = [read(value) for value in values(broker, topic)]
    changes = Counter(record["source"]["lsn"] for record in twice if record["op"] != "r")
    assert len(changes) == 3
    assert set(changes.values()) == {2}, "what follows the last orderly stop is there again"
    told = Counter(read(value)["status"] for value in values(broker, running.transaction_topic))
    assert told == {"BEGIN": 4, "END": 4}


def test_what_it_cannot_follow_is_told(database: Database, broker: KafkaBroker, tmp_path: Path) -> None:
    nowhere = database.server.url_for("nowhere")
    with pytest.raises(DefiniteError, match="gave up") as caught:
        start_debezium(tmp_path, postgres=nowhere, bootstrap=broker.bootstrap, tables=["public.notes"])
    assert "nowhere" in (tmp_path / "debezium.log").read_text(encoding="utf-8")
    assert "debezium.log" in caught.value.remedy
