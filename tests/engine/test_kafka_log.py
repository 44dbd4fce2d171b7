"""A source with its change log in Kafka: created, captured, read without Spark, dropped. Real server, real broker."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from tests.servers import HasBootstrap, SharedBroker, unique

from penstock.engine.source_runner import CaptureSupervisor
from penstock.errors import DefiniteError, UsageError
from penstock.home import Home
from penstock.testing.kafka import start_kafka
from penstock.testing.waiting import PATIENCE


def topics(broker: HasBootstrap, prefix: str) -> set[str]:
    found = AdminClient({"bootstrap.servers": broker.bootstrap}).list_topics(timeout=PATIENCE).topics
    return {name for name in found if name.startswith(f"{prefix}.")}


def slots(database: Any) -> list[str]:
    return [row[0] for row in database.execute("SELECT slot_name FROM pg_replication_slots")]


def test_lifecycle_of_a_source_with_a_kafka_log(database: Any, broker: SharedBroker, tmp_path: Path) -> None:
    check_lifecycle(database, broker, tmp_path / "home")


@pytest.mark.deep
def test_lifecycle_of_a_source_with_a_kafka_log_across_a_broker_restart(database: Any, tmp_path: Path) -> None:
    with start_kafka(tmp_path / "kafka") as own:
        check_lifecycle(database, own, tmp_path / "home", own.restart)


def check_lifecycle(
    database: Any, broker: HasBootstrap, folder: Path, between: Callable[[], None] = lambda: None
) -> None:
    """Create a source, capture, read and drop it; `between` is called between two transactions."""
    database.execute("CREATE TABLE a (id int PRIMARY KEY); CREATE TABLE b (id int PRIMARY KEY)")
    home, prefix = Home(folder), unique("one")
    url = f"kafka://{broker.bootstrap}/{prefix}"
    name = home.create(database.url, f"src_{database.name}"[:40], log=url)
    assert topics(broker, prefix) == {f"{prefix}.{name}.data", f"{prefix}.{name}.index"}
    capture = CaptureSupervisor(home.path, name)
    try:
        tail = home.tail(name, start="earliest")
        for number in range(20):
            database.execute(f"BEGIN; INSERT INTO a VALUES ({number}); INSERT INTO b VALUES ({number}); COMMIT")
        between()
        database.execute("INSERT INTO a VALUES (100)")
        transactions = [next(tail) for _ in range(21)]
        tail.close()
    finally:
        capture.stop()
    rows = [{n: [r["after"]["id"] for r in t.to_pylist()] for n, t in tx.tables.items()} for tx in transactions]
    assert rows == [*({"public.a": [n], "public.b": [n]} for n in range(20)), {"public.a": [100]}]
    (source,) = home.status().sources
    assert source.log == url
    assert "tables" in [reader.name for reader in source.readers]
    home.drop(name)
    assert topics(broker, prefix) == set()


def test_log_of_another_home_is_kept(database: Any, broker: SharedBroker, tmp_path: Path) -> None:
    database.execute("CREATE TABLE a (id int PRIMARY KEY)")
    first, second = Home(tmp_path / "first"), Home(tmp_path / "second")
    prefix = unique("shared")
    log = f"kafka://{broker.bootstrap}/{prefix}"
    first.create(database.url, "shop", log=log)
    before = topics(broker, prefix), slots(database)
    with pytest.raises(DefiniteError, match="a change log of source shop already exists") as caught:
        second.create(database.url, "shop", log=log, slot="other", publication="other")
    assert "prefix" in caught.value.hint
    assert (topics(broker, prefix), slots(database)) == before
    assert second.sources() == []
    first.drop("shop")


@pytest.mark.parametrize(
    "url", ["http://broker:9092", "kafka://", "kafka://u:hunter2@broker:9092", "kafka://b:9092?sasl.password=hunter2"]
)
def test_invalid_log_url_is_rejected_before_anything_is_created(database: Any, tmp_path: Path, url: str) -> None:
    home = Home(tmp_path / "home")
    with pytest.raises(UsageError) as caught:
        home.create(database.url, "shop", log=url)
    assert "hunter2" not in str(caught.value)
    assert (home.sources(), slots(database)) == ([], [])
