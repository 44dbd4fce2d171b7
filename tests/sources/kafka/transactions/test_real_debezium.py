"""A bank in a real Postgres, brought by a real Debezium that is killed: the sum is right at every tick."""

from __future__ import annotations

import io
import json
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import fastavro
import psycopg
import pytest
from tests.conftest import Database
from tests.sources.kafka.followed import Topics
from tests.sources.kafka.test_ticks_following import ends_of
from tests.sources.kafka.transactions.transacted import Transacted, messages, require_sums

from penstock.formats import AvroFormat, JsonFormat, Registry, RegistryAddress, ResolvedFormat, resolve
from penstock.sources.kafka.transactions.standing import waits_for
from penstock.testing.debezium import Converter, Debezium, start_debezium
from penstock.testing.kafka import KafkaBroker, start_kafka
from penstock.testing.registry import start_registry

KILLS = int(os.environ.get("PENSTOCK_DEBEZIUM_KILLS", "1"))
TABLES = ("public.checking", "public.savings")
CONVERTERS = [Converter.AVRO, *([Converter.JSON, Converter.JSON_WITH_SCHEMAS] if KILLS > 1 else [])]
ACCOUNTS, START = 6, 100
PARTITIONS = {
    "topic.creation.default.partitions": "2",
    "topic.creation.groups": "single",
    "topic.creation.single.include": r".*\.(transaction|message)",
    "topic.creation.single.partitions": "1",
    "topic.creation.single.replication.factor": "1",
}
Read = Callable[[bytes], dict[str, Any]]


@contextmanager
def transfers(database: Database, *, keys_change: bool = True) -> Iterator[None]:
    """Let three tellers work meanwhile: transfers within and across tables; accounts may change their key, too."""
    stop = threading.Event()

    def teller(seed: int) -> None:
        random = Random(seed)
        while not stop.is_set():
            try:
                with psycopg.connect(database.url) as connection:
                    while not stop.is_set():
                        transfer(connection, random, keys_change)
            except psycopg.errors.DeadlockDetected:
                continue

    tellers = [threading.Thread(target=teller, args=[seed]) for seed in range(3)]
    for each in tellers:
        each.start()
    try:
        yield
    finally:
        stop.set()
        for each in tellers:
            each.join()


def transfer(connection: psycopg.Connection[Any], random: Random, keys_change: bool) -> None:
    for _ in range(random.choice([1, 1, 2, 4])):
        for amount in (-3, 3):
            table, account = random.choice(TABLES), random.randrange(ACCOUNTS)
            told = connection.execute(f"UPDATE {table} SET balance = balance + {amount} WHERE slot = {account}")
            assert told.rowcount == 1
        time.sleep(random.choice([0, 0.005]))
    if keys_change and random.random() < 0.2:
        table, account = random.choice(TABLES), random.randrange(ACCOUNTS)
        connection.execute(f"UPDATE {table} SET id = nextval('ids') WHERE slot = {account}")
    connection.commit()


def make_bank(database: Database) -> None:
    database.execute("CREATE SEQUENCE ids")
    for table in TABLES:
        database.execute(f"CREATE TABLE {table} (id int PRIMARY KEY DEFAULT nextval('ids'), slot int, balance int)")
        database.execute(f"ALTER TABLE {table} REPLICA IDENTITY FULL")
        database.execute(f"INSERT INTO {table} (slot, balance) SELECT n, {START} FROM generate_series(0, 5) AS n")


def balance_by(read: Read) -> Callable[[bytes], tuple[int, int]]:
    def balance(value: bytes) -> tuple[int, int]:
        record = read(value)
        return (
            (record["before"]["id"], 0) if record["op"] == "d" else (record["after"]["id"], record["after"]["balance"])
        )

    return balance


def avro_by(address: RegistryAddress) -> Read:
    registry = Registry(address)

    def read(value: bytes) -> dict[str, Any]:
        number = int.from_bytes(value[1:5], "big")
        schema = registry.schemas([number])[number]
        assert schema is not None
        record: Any = fastavro.schemaless_reader(io.BytesIO(value[5:]), json.loads(schema.text), None)
        return dict(record)

    return read


def plain(value: bytes) -> dict[str, Any]:
    record = json.loads(value)
    return dict(record.get("payload", record))


def copied_again(debezium: Debezium, database: Database) -> None:
    """Kill Debezium before it has noted how far it is: it copies once more, which does not tell what keys are gone."""
    with transfers(database, keys_change=False):
        debezium.await_all()
        debezium.kill()
        debezium.start()
        debezium.await_all()


def disturbed(debezium: Debezium, followed: Transacted) -> None:
    """Kill Debezium again and again, and stop and start ourselves."""
    for _ in range(KILLS):
        debezium.restart()
        before = followed.durable()
        with followed.running():
            followed.until(lambda before=before: followed.durable() > before + 2)  # type: ignore[misc]
        debezium.kill()
        debezium.start()
        before = followed.durable()
        with followed.running():
            followed.until(lambda before=before: followed.durable() > before + 2)  # type: ignore[misc]


@pytest.mark.parametrize("converter", CONVERTERS, ids=lambda each: each.value)
def test_the_sum_is_right_at_every_tick(converter: Converter, database: Database, tmp_path: Path) -> None:
    make_bank(database)
    with start_kafka(tmp_path / "kafka") as broker, start_registry(tmp_path / "registry") as registry:
        debezium = start_debezium(
            tmp_path / "debezium",
            postgres=database.url,
            bootstrap=broker.bootstrap,
            tables=TABLES,
            converter=converter,
            registry=registry.url,
            settings=PARTITIONS,
        )
        address = RegistryAddress(url=registry.url)
        with debezium:
            copied_again(debezium, database)
            topics, metadata = [debezium.topic(table) for table in TABLES], debezium.transaction_topic
            with transfers(database):
                debezium.await_all()
                formats = {topic: _format(converter, address, topic) for topic in [*topics, metadata]}
                followed = Transacted(tmp_path, broker, topics, metadata, formats)
                disturbed(debezium, followed)
            debezium.await_all()
            read = avro_by(address) if converter is Converter.AVRO else plain
            followed.run_until(lambda: _is_taken(followed, broker, topics))
        total = 2 * ACCOUNTS * START
        assert require_sums(followed, broker, total, balance_by(read)) > 4 * KILLS
        assert waits_for(followed.state) is None
        positions = Counter(
            (record["source"]["lsn"], record["transaction"]["total_order"])
            for _, value in messages(broker, topics[0], 2)[0]
            if value is not None and (record := read(value))["transaction"] is not None
        )
        assert max(positions.values()) > 1, "Debezium did not repeat itself"


def _is_taken(followed: Transacted, broker: KafkaBroker, topics: list[str]) -> bool:
    return all(followed.upto(topic) == ends_of(Topics(broker), topic) for topic in topics)


def _format(converter: Converter, address: RegistryAddress, topic: str) -> ResolvedFormat:
    if converter is Converter.AVRO:
        return resolve(AvroFormat(registry=address), subject=f"{topic}-value")
    return resolve(JsonFormat(columns="op STRING"))
