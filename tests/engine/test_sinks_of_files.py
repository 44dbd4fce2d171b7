"""Sinks of a source that reads files: its rows, then the lines that are added, in each envelope."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.engine.sink_topics import committed, wait_sink
from tests.servers import SharedBroker, unique

from penstock.catalog.store import Catalog
from penstock.home import Home
from penstock.layout import catalog_path
from penstock.tables.interface import TableStore
from penstock.tables.spark_tables import SparkTables
from penstock.testing.memory_tables import MemoryTables
from penstock.testing.waiting import PATIENCE, until

COLUMNS = "COLUMNS (id bigint, name string, price decimal(10, 2))"


class Folder:
    """A folder of JSON Lines, captured as source `events` of a running home."""

    def __init__(self, home: Home, path: Path, broker: SharedBroker) -> None:
        self.home, self.path, self.broker, self.topic = home, path, broker.bootstrap, unique("files")

    def add(self, *rows: tuple[int, str | None, str]) -> None:
        with (self.path / "a.json").open("a", encoding="utf-8") as file:
            for id_, name, price in rows:
                file.write(f'{{"id": {id_}, "name": {json.dumps(name)}, "price": {price}}}\n')

    def create_sink(self, envelope: str, **options: Any) -> None:
        self.home.create_sink(
            envelope,
            "events.events",
            broker=self.broker,
            topic=f"{self.topic}.{envelope}",
            format="json",
            envelope=envelope,
            partitions=1,
            **options,
        )

    def wait_sinks(self) -> None:
        for sink in self.home.sinks():
            wait_sink(Catalog(catalog_path(self.home.path)), sink)

    def messages(self, envelope: str, count: int) -> list[tuple[Any, Any]]:
        topic = f"{self.topic}.{envelope}"
        until(lambda: len(committed(self.broker, topic)) >= count, f"{count} messages in {topic}")
        found = committed(self.broker, topic)
        return [(each.key and json.loads(each.key), each.value and json.loads(each.value)) for each in found]


@contextmanager
def captured(folder: Path, store: TableStore, broker: SharedBroker, key: str = "KEY (id)") -> Iterator[Folder]:
    data, home = folder / "data", Home(folder / "home")
    data.mkdir()
    made = Folder(home, data, broker)
    made.add((1, "a", "1.50"))
    home.sql(f"CREATE SOURCE events FROM FILE PATH '{data}' FORMAT JSON {key} {COLUMNS} WITH (poll interval = '10 ms')")
    with home.run(store, list[str]().append) as running:
        running.wait_live(PATIENCE)
        yield made


def row(id_: int, name: str | None, price: float) -> dict[str, Any]:
    return {"id": id_, "name": name, "price": price}


def test_changes_of_files(tmp_path: Path, in_process: None, broker: SharedBroker) -> None:
    with captured(tmp_path, MemoryTables(), broker) as files:
        for envelope in ("upsert", "changes"):
            files.create_sink(envelope, snapshot=False)
        files.wait_sinks()
        files.add((2, "b", "2.25"))
        files.add((1, None, "3.00"))
        assert files.messages("upsert", 2)[-2:] == [({"id": 2}, row(2, "b", 2.25)), ({"id": 1}, row(1, None, 3.0))]
        found = files.messages("changes", 2)[-2:]
        assert [(key, value["op"], value["before"], value["after"]) for key, value in found] == [
            ({"id": 2}, "update", None, row(2, "b", 2.25)),
            ({"id": 1}, "update", None, row(1, None, 3.0)),
        ]


@pytest.mark.deep
def test_rows_then_changes_of_files(
    tmp_path: Path, in_process: None, broker: SharedBroker, spark: SparkSession
) -> None:
    with captured(tmp_path, SparkTables(spark), broker, key="") as files:
        files.add((2, "b", "2.25"))
        until(lambda: files.home.live(spark).table("events.events").count() == 2, "two rows")
        for envelope in ("changes", "debezium"):
            files.create_sink(envelope)
        files.wait_sinks()
        for envelope in ("changes", "debezium"):
            files.messages(envelope, 2)
        files.add((1, "a", "1.50"))
        found = files.messages("changes", 3)
        assert sorted((key, value["op"], value["after"]["id"]) for key, value in found[:2]) == [
            (None, "snapshot", 1),
            (None, "snapshot", 2),
        ]
        assert (found[2][1]["op"], found[2][1]["after"]) == ("insert", row(1, "a", 1.5))
        records = [value for _, value in files.messages("debezium", 3)]
        assert [record["op"] for record in records] == ["r", "r", "c"]
        assert {(record["source"]["table"], record["source"]["db"]) for record in records} == {("events", "")}
