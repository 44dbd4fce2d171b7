"""TRUNCATE records of Debezium: the table is empty from their position on, live, as of the past, and after apply."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.engine.test_source_kinds import running_home, state
from tests.engine.test_topics import create, debezium_record, rows, wait_for_messages, wait_until_applied
from tests.engine.topic import Topic
from tests.servers import SharedBroker

from penstock.errors import DefiniteError
from penstock.home import Home
from penstock.sources.kafka.apply import messages
from penstock.sources.kafka.apply.tables import TopicApply
from penstock.testing.waiting import until

pytestmark = [pytest.mark.usefixtures("in_process"), pytest.mark.slow("each state is read live, as past, and applied")]
BOTH = "KEY FORMAT JSON VALUE FORMAT JSON"


def truncate(at: int) -> tuple[Any, Any]:
    """A TRUNCATE as Debezium writes it: without a key, and without rows."""
    _, value = debezium_record("t", at, None, {"id": 0})
    return None, {**value, "after": None}


def inserted(at: int, key: int, value: str) -> tuple[Any, Any]:
    return debezium_record("c", at, None, {"id": key, "v": value})


@pytest.mark.parametrize("few", [50_000, pytest.param(0, marks=pytest.mark.deep)], ids=["few", "many"])
@pytest.mark.parametrize("envelope", [pytest.param("DEBEZIUM", marks=pytest.mark.deep), "DEBEZIUM UPSERT"])
def test_truncate(
    broker: SharedBroker,
    tmp_path: Path,
    spark: SparkSession,
    few: int,
    envelope: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(messages, "_FEW_MESSAGES", few)
    topic, home = Topic(broker, "emptied"), Home(tmp_path / "home")
    topic.send([inserted(1, 1, "a"), inserted(2, 2, "b")])
    create(home, broker, topic, f"{BOTH} ENVELOPE {envelope}")
    query = "SELECT id, v FROM emptied.emptied ORDER BY id"
    with running_home(home, spark):
        wait_until_applied(home, "emptied.emptied")
        merge = TopicApply.merge
        monkeypatch.setattr(TopicApply, "merge", lambda *_: None)
        topic.send([inserted(3, 3, "c")])
        before = wait_for_messages(home, "emptied", 3)
        topic.send([inserted(4, 4, "d"), truncate(5), inserted(6, 1, "new")])
        after = wait_for_messages(home, "emptied", 6)
        past = [(1, "a"), (2, "b"), (3, "c")]
        assert rows(home.live(spark), query) == [(1, "new")]
        assert rows(home.live(spark, {"emptied": before}), query) == past
        monkeypatch.setattr(TopicApply, "merge", merge)
        topic.send([inserted(7, 2, "again")])
        wait_for_messages(home, "emptied", 7)
        wait_until_applied(home, "emptied.emptied")
        assert rows(home.live(spark), query) == [(1, "new"), (2, "again")]
        assert rows(home.live(spark, {"emptied": before}), query) == past
        assert rows(home.live(spark, {"emptied": after}), query) == [(1, "new")]
        topic.add_partitions(2)
        topic.send([inserted(8, 9, "other")], 1)
        wait_for_messages(home, "emptied", 8)
        topic.send([truncate(9)])
        wait_for_messages(home, "emptied", 9)
        until(lambda: state(home, "emptied.emptied") == "failed", "apply to fail")
        with pytest.raises(DefiniteError, match="TRUNCATE in a topic with several partitions"):
            rows(home.live(spark), query)


def test_truncate_before_partitions_are_added(
    broker: SharedBroker, tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether a truncate has a place among other records does not depend on the range in which it is read."""
    monkeypatch.setattr(TopicApply, "merge", lambda *_: None)
    topic, home = Topic(broker, "widened"), Home(tmp_path / "home")
    topic.send([inserted(1, 1, "a"), truncate(2), inserted(3, 2, "b")])
    create(home, broker, topic, f"{BOTH} ENVELOPE DEBEZIUM UPSERT")
    with running_home(home, spark):
        wait_for_messages(home, "widened", 3)
        topic.add_partitions(2)
        topic.send([inserted(4, 3, "c")])
        wait_for_messages(home, "widened", 4)
        assert rows(home.live(spark), "SELECT id, v FROM widened.widened ORDER BY id") == [(2, "b"), (3, "c")]
