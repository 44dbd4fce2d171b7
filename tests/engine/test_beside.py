"""Sources are made, changed and dropped beside a home that runs, also by processes that are killed over it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import made_database
from tests.engine.actions import create, drop
from tests.engine.killing import killed_at
from tests.engine.shop import Shop

from penstock.catalog.states import SourceState
from penstock.engine.locks import source_holder
from penstock.engine.records import database_instance_of
from penstock.errors import DefiniteError, SourceExistsError, SourceNotFoundError, UsageError
from penstock.home import Home
from penstock.layout import base_path, lake_path, log_path
from penstock.testing.waiting import until

MADE = "CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t SELECT generate_series(1, 20)"


@pytest.fixture
def other(postgres_server: Any) -> Iterator[Any]:
    """Another database."""
    with made_database(postgres_server) as made:
        made.execute(MADE)
        yield made


def upstream(database: Any) -> int:
    slots = "SELECT 1 FROM pg_replication_slots WHERE database = current_database()"
    return len(database.execute(f"{slots} UNION ALL SELECT 1 FROM pg_publication"))


def test_a_source_comes_and_goes(shop: Callable[..., Shop], other: Any) -> None:
    made = shop(MADE)
    home = Home(made.home.path)  # as another process has it
    first = made.running.capture_pids()["shop"]
    home.create(other.url, "other")
    until(lambda: {t.state for t in made.catalog.tables("other")} == {"live"}, "the other to be copied")
    other.execute("INSERT INTO t VALUES (21)")
    until(lambda: len(made.rows("t", "other")) == 21, "the other to be captured")
    assert made.running.capture_pids().keys() == {"shop", "other"}
    with pytest.raises(SourceExistsError, match="already: it is ready"):
        home.create(other.url, "other")
    assert home.drop("other", keep_tables=True) == []
    assert (home.sources(), upstream(other)) == (["shop"], 0)
    assert not log_path(home.path, "other").exists()
    assert made.running.capture_pids() == {"shop": first}
    with pytest.raises(SourceNotFoundError):
        home.drop("other")
    folder = base_path(home.path, "other", "t")
    assert folder.exists()
    with pytest.raises(DefiniteError, match="tables of an earlier source other are in") as caught:
        home.create(other.url, "other")
    assert "Move that folder away" in caught.value.hint
    assert upstream(other) == 0
    shutil.rmtree(lake_path(home.path, "other"))
    home.create(other.url, "other")
    until(lambda: "other" in made.running.capture_pids(), "it to be taken up, and copied")
    home.drop("other")
    assert upstream(other) == 0
    assert not lake_path(home.path, "other").exists()
    made.database.execute("INSERT INTO t VALUES (21)")
    until(lambda: len(made.rows("t")) == 21, "the first one to go on")
    assert made.running.capture_pids() == {"shop": first}


def test_options_change(spark_shop: Callable[..., Shop]) -> None:
    made = spark_shop(MADE)
    home, first = Home(made.home.path), made.running.capture_pids()["shop"]
    for options, why in (
        ({"slot": "x"}, "made upstream with the source"),
        ({"tables": ("public.t",)}, "ADD TABLE and DROP TABLE"),
        ({"retain_history": "soon"}, "soon"),
        ({"retain_histroy": "1 day"}, "no option retain_histroy"),
        ({"chunk_rows": 0}, "chunk_rows"),
    ):
        with pytest.raises(UsageError, match=why):
            home.alter("shop", **options)
    home.alter("shop", retain_history="1 day")
    home.alter("shop", retain_history="2 days", snapshot="chunked", chunk_rows=7)

    def instance() -> Any:
        return database_instance_of(made.catalog.sources()[0])

    until(lambda: instance().retain_history == "2 days", "the options")
    until(lambda: made.running.capture_pids()["shop"] != first, "capture to be started again")
    assert (instance().snapshot.value, instance().chunk_rows) == ("chunked", 7)
    made.database.execute("INSERT INTO t VALUES (21)")
    made.home.retry("shop", "t")
    until(lambda: instance().tables[0].generation == 1 and made.state("t") == "live", "the copy in chunks")
    assert made.equal()
    assert any("goes on with other options" in line for line in made.said)
    pid = made.running.capture_pids()["shop"]
    home.alter("shop", chunk_rows=7)
    made.database.execute("INSERT INTO t VALUES (22)")
    assert made.equal()
    assert made.running.capture_pids()["shop"] == pid


def test_what_somebody_left_who_was_killed(shop: Callable[..., Shop], other: Any, tmp_path: Path) -> None:
    """A home that runs undoes a create, and finishes a drop, as a start would."""
    made = shop(MADE)
    home, catalog = Home(made.home.path), made.catalog
    names = {"slot": f"slot_{other.name}", "publication": f"publication_{other.name}"}

    def create_killed(number: int) -> str:
        step = killed_at(number, create, home.path, other.url, names, "other", notes=tmp_path / "steps")
        until(lambda: all(record.state is SourceState.READY for record in catalog.sources()), "the end of it")
        return step

    assert "COMMENT ON PUBLICATION" in create_killed(2)
    assert (home.sources(), upstream(other)) == (["shop"], 0)
    assert "CREATE_REPLICATION_SLOT" in create_killed(3)
    assert (home.sources(), upstream(other)) == (["shop"], 0)
    assert "commit in other.db" in create_killed(4)
    assert (home.sources(), upstream(other)) == (["shop"], 0)
    home.create(other.url, "other", **names)
    until(lambda: {t.state for t in catalog.tables("other")} == {"live"}, "the other to be copied")
    assert killed_at(1, drop, home.path, "other", notes=tmp_path / "steps") != "the end"
    until(lambda: home.sources() == ["shop"], "the drop to be finished")
    assert upstream(other) == 0
    assert not lake_path(home.path, "other").exists()
    assert source_holder(home.path, "other") is None
    assert made.equal()
