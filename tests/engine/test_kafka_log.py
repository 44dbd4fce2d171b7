"""A source whose change log is in Kafka: made, captured into, read without Spark, dropped. Real server, real broker."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from tests.servers import HasBootstrap, SharedBroker, unique

from penstock.engine.supervisor import CaptureSupervisor
from penstock.errors import DefiniteError, UsageError
from penstock.home import Home
from penstock.testing.kafka import start_kafka
from penstock.testing.waiting import PATIENCE


def topics(broker: HasBootstrap, prefix: str) -> set[str]:
    found = AdminClient({"bootstrap.servers": broker.bootstrap}).list_topics(timeout=PATIENCE).topics
    return {name for name in found if name.startswith(f"{prefix}.")}


def slots(database: Any) -> list[str]:
    return [row[0] for row in database.execute("SELECT slot_name FROM pg_replication_slots")]


def test_from_create_to_drop(database: Any, broker: SharedBroker, tmp_path: Path) -> None:
    require_whole_life(database, broker, tmp_path / "home")


@pytest.mark.deep
def test_from_create_to_drop_over_a_restart_of_the_broker(database: Any, tmp_path: Path) -> None:
    with start_kafka(tmp_path / "kafka") as own:
        require_whole_life(database, own, tmp_path / "home", own.restart)


def require_whole_life(
    database: Any, broker: HasBootstrap, folder: Path, meanwhile: Callable[[], None] = lambda: None
) -> None:
    """Create a source, capture, read and drop it; `meanwhile` happens between two transactions."""
    database.execute("CREATE TABLE a (id int PRIMARY KEY); CREATE TABLE b (id int PRIMARY KEY)")
    home, prefix = Home(folder), unique("one")
    url = f"kafka://{broker.bootstrap}/{prefix}"
    name = home.create(database.url, f"src_{database.name}"[:40], log=url)
    assert topics(broker, prefix) == {f"{prefix}.{name}.data", f"{prefix}.{name}.index"}
    capture = CaptureSupervisor(home.path, name)
    try:
        following = home.tail(name, start="earliest")
        for number in range(20):
            database.execute(f"BEGIN; INSERT INTO a VALUES ({number}); INSERT INTO b VALUES ({number}); COMMIT")
        meanwhile()
        database.execute("INSERT INTO a VALUES (100)")
        seen = [next(following) for _ in range(21)]
        following.close()
    finally:
        capture.stop()
    rows = [{n: [r["after"]["id"] for r in t.to_pylist()] for n, t in tx.tables.items()} for tx in seen]
    assert rows == [*({"public.a": [n], "public.b": [n]} for n in range(20)), {"public.a": [100]}]
    (source,) = home.status().sources
    assert source.log == url
    assert "tables" in [reader.name for reader in source.readers]
    home.drop(name)
    assert topics(broker, prefix) == set()


def test_the_log_of_another_home_is_left_alone(database: Any, broker: SharedBroker, tmp_path: Path) -> None:
    database.execute("CREATE TABLE a (id int PRIMARY KEY)")
    first, second = Home(tmp_path / "first"), Home(tmp_path / "second")
    prefix = unique("shared")
    log = f"kafka://{broker.bootstrap}/{prefix}"
    first.create(database.url, "shop", log=log)
    before = topics(broker, prefix), slots(database)
    with pytest.raises(DefiniteError, match="a change log of a source shop already") as caught:
        second.create(database.url, "shop", log=log, slot="other", publication="other")
    assert "prefix" in caught.value.hint
    assert (topics(broker, prefix), slots(database)) == before
    assert second.sources() == []
    first.drop("shop")


@pytest.mark.parametrize(
    "url", ["http://broker:9092", "kafka://", "kafka://u:secret@broker:9092", "kafka://b:9092?sasl.password=secret"]
)
def test_what_does_not_name_a_log_is_refused_before_anything_is_made(database: Any, tmp_path: Path, url: str) -> None:
    home = Home(tmp_path / "home")
    with pytest.raises(UsageError) as caught:
        home.create(database.url, "shop", log=url)
    assert "secret" not in str(caught.value)
    assert (home.sources(), slots(database)) == ([], [])
