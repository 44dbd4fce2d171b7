"""Readers of the changes of a topic in Spark: batch and streaming queries, sinks into a topic and into a function."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from tests.engine.sink_topics import committed, wait_sink
from tests.engine.test_source_kinds import running_home
from tests.engine.test_topics import BOTH, create, wait_for_messages, wait_until_applied
from tests.engine.topic import Topic
from tests.servers import SharedBroker, unique

from penstock.catalog.store import Catalog
from penstock.home import Home
from penstock.layout import catalog_path
from penstock.testing.waiting import until


def changes(frame: DataFrame) -> list[tuple[Any, ...]]:
    """Return changes in order, by key: op, and the name after it."""
    rows = frame.selectExpr("_op", "coalesce(after.id, before.id) AS id", "after.name", "_lsn", "_ordinal").collect()
    return [
        (row["_op"], row["id"], row["name"]) for row in sorted(rows, key=lambda row: (row["_lsn"], row["_ordinal"]))
    ]


@pytest.mark.slow("the only test of the changes of a topic in Spark")
def test_queries_and_sinks_of_a_topic(
    broker: SharedBroker, tmp_path: Path, spark: SparkSession, in_process: None
) -> None:
    topic, called = Topic(broker, "users", 2), list[tuple[Any, Any, list[tuple[Any, ...]]]]()
    topic.send([({"id": 1}, {"name": "a"}), ({"id": 2}, {"name": "b"})])
    home, into = Home(tmp_path / "home"), unique("copy")
    create(home, broker, topic, f"{BOTH} ENVELOPE UPSERT")
    options = {"home": str(home.path), "source": "users", "table": f"topic.{topic.name}"}

    def read(**more: str) -> DataFrame:
        return spark.read.format("penstock").options(**options, **more).load()

    with running_home(home, spark):
        first = wait_for_messages(home, "users", 2)
        wait_until_applied(home, "users.users")
        home.create_sink(
            "copy", "users.users", broker=broker.bootstrap, topic=into, format="json", envelope="debezium", partitions=1
        )
        home.sink("seen", "users.users", lambda frame, after, upto: called.append((after, upto, changes(frame))))
        for sink in ("copy", "seen"):
            wait_sink(Catalog(catalog_path(home.path)), sink)
        topic.send([({"id": 1}, {"name": "A"}), ({"id": 2}, None)])
        topic.send([({"id": 3}, {"name": "c"})], 1)
        wait_for_messages(home, "users", 5)
        until(lambda: len(committed(broker.bootstrap, into)) == 6, "rows, changes and a tombstone in the copy")
        until(lambda: sum(len(rows) for _, _, rows in called) == 5, "calls of the function")

        later = changes(read(startingPosition=str(first)))
        assert sorted(later) == [("delete", 2, None), ("update", 1, "A"), ("update", 3, "c")]
        assert sorted(changes(read(startingPosition="earliest"))) == [
            ("snapshot", 1, "A"),
            ("snapshot", 3, "c"),
        ]
        assert sorted(map(tuple, read(rows="live").collect())) == [(1, "A"), (3, "c")]

        stream = spark.readStream.format("penstock").options(**options, startingPosition=str(first)).load()
        query = (
            stream.writeStream.format("parquet")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start(str(tmp_path / "out"))
        )
        assert query.awaitTermination(60)
        assert changes(spark.read.parquet(str(tmp_path / "out"))) == later

        records = [
            (json.loads(each.key or b""), each.value and json.loads(each.value)["op"])
            for each in committed(broker.bootstrap, into)
        ]
        ops = {id_: [op for key, op in records if key == {"id": id_}] for id_ in (1, 2, 3)}
        assert ops == {1: ["r", "u"], 2: ["r", "d", None], 3: ["u"]}
        snapshot, *ranges = called
        assert (snapshot[0], sorted(snapshot[2])) == (None, [("snapshot", 1, "a"), ("snapshot", 2, "b")])
        assert [row for _, _, rows in ranges for row in rows] == later
