"""Sources are created, altered and dropped while the home runs, also by processes that are killed meanwhile."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import created_database
from tests.engine.actions import create, drop
from tests.engine.kill_points import killed_at
from tests.engine.shop import Shop
from tests.postgres_records import postgres_instance_of

from penstock.catalog.states import SourceState
from penstock.engine.locks import source_holder
from penstock.errors import DefiniteError, SourceExistsError, SourceNotFoundError, UsageError
from penstock.home import Home
from penstock.layout import base_path, lake_path, log_path
from penstock.testing.waiting import until

SETUP = "CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t SELECT generate_series(1, 20)"


@pytest.fixture
def other(postgres_server: Any) -> Iterator[Any]:
    """Another database."""
    with created_database(postgres_server) as second:
        second.execute(SETUP)
        yield second


def upstream(database: Any) -> int:
    slots = "SELECT 1 FROM pg_replication_slots WHERE database = current_database()"
    return len(database.execute(f"{slots} UNION ALL SELECT 1 FROM pg_publication"))


def test_source_is_created_and_dropped(start_shop: Callable[..., Shop], other: Any) -> None:
    shop = start_shop(SETUP)
    home = Home(shop.home.path)  # as in another process
    first_pid = shop.running.capture_pids()["shop"]
    home.create(other.url, "other")
    until(lambda: {t.state for t in shop.catalog.tables("other")} == {"live"}, "the snapshot of the other source")
    other.execute("INSERT INTO t VALUES (21)")
    until(lambda: len(shop.rows("t", "other")) == 21, "capture of the other source")
    assert shop.running.capture_pids().keys() == {"shop", "other"}
    with pytest.raises(SourceExistsError, match="already exists: it is ready"):
        home.create(other.url, "other")
    assert home.drop("other", keep_tables=True) == []
    assert (home.sources(), upstream(other)) == (["shop"], 0)
    assert not log_path(home.path, "other").exists()
    assert shop.running.capture_pids() == {"shop": first_pid}
    with pytest.raises(SourceNotFoundError):
        home.drop("other")
    folder = base_path(home.path, "other", "t")
    assert folder.exists()
    with pytest.raises(DefiniteError, match="tables of an earlier source other exist in") as caught:
        home.create(other.url, "other")
    assert "Move or remove that folder" in caught.value.hint
    assert upstream(other) == 0
    shutil.rmtree(lake_path(home.path, "other"))
    home.create(other.url, "other")
    until(lambda: "other" in shop.running.capture_pids(), "capture of the new source")
    home.drop("other")
    assert upstream(other) == 0
    assert not lake_path(home.path, "other").exists()
    shop.database.execute("INSERT INTO t VALUES (21)")
    until(lambda: len(shop.rows("t")) == 21, "the first source to continue")
    assert shop.running.capture_pids() == {"shop": first_pid}


def test_options_are_altered(start_spark_shop: Callable[..., Shop]) -> None:
    shop = start_spark_shop(SETUP)
    home, first_pid = Home(shop.home.path), shop.running.capture_pids()["shop"]
    for options, message in (
        ({"slot": "x"}, "created upstream with the source"),
        ({"tables": ("public.t",)}, "ADD TABLE and DROP TABLE"),
        ({"retain_history": "soon"}, "soon"),
        ({"retain_histroy": "1 day"}, "unknown option retain_histroy"),
        ({"chunk_rows": 0}, "chunk_rows"),
    ):
        with pytest.raises(UsageError, match=message):
            home.alter("shop", **options)
    home.alter("shop", retain_history="1 day")
    home.alter("shop", retain_history="2 days", snapshot="chunked", chunk_rows=7)

    def instance() -> Any:
        return postgres_instance_of(shop.catalog.sources()[0])

    until(lambda: instance().retain_history == "2 days", "the options")
    until(lambda: shop.running.capture_pids()["shop"] != first_pid, "capture to restart")
    assert (instance().snapshot.value, instance().chunk_rows) == ("chunked", 7)
    shop.database.execute("INSERT INTO t VALUES (21)")
    shop.home.retry("shop", "t")
    until(lambda: instance().tables[0].generation == 1 and shop.state("t") == "live", "the incremental snapshot")
    assert shop.equal()
    assert any("resumed with changed options" in line for line in shop.reported)
    pid = shop.running.capture_pids()["shop"]
    home.alter("shop", chunk_rows=7)
    shop.database.execute("INSERT INTO t VALUES (22)")
    assert shop.equal()
    assert shop.running.capture_pids()["shop"] == pid


def test_interrupted_create_is_undone_and_interrupted_drop_is_completed(
    start_shop: Callable[..., Shop], other: Any, tmp_path: Path
) -> None:
    """A running home does the same as the next start."""
    shop = start_shop(SETUP)
    home, catalog = Home(shop.home.path), shop.catalog
    names = {"slot": f"slot_{other.name}", "publication": f"publication_{other.name}"}

    def kill_create(number: int) -> str:
        step = killed_at(number, create, home.path, other.url, names, "other", notes=tmp_path / "steps")
        until(lambda: all(record.state is SourceState.READY for record in catalog.sources()), "the create to be undone")
        return step

    assert "COMMENT ON PUBLICATION" in kill_create(2)
    assert (home.sources(), upstream(other)) == (["shop"], 0)
    assert "CREATE_REPLICATION_SLOT" in kill_create(3)
    assert (home.sources(), upstream(other)) == (["shop"], 0)
    assert "lake/other" in kill_create(4)
    assert (home.sources(), upstream(other)) == (["shop"], 0)
    assert "commit in other.db" in kill_create(5)
    assert (home.sources(), upstream(other)) == (["shop"], 0)
    home.create(other.url, "other", **names)
    until(lambda: {t.state for t in catalog.tables("other")} == {"live"}, "the snapshot of the other source")
    assert killed_at(1, drop, home.path, "other", notes=tmp_path / "steps") != "the end"
    until(lambda: home.sources() == ["shop"], "the drop to complete")
    assert upstream(other) == 0
    assert not lake_path(home.path, "other").exists()
    assert source_holder(home.path, "other") is None
    assert shop.equal()
