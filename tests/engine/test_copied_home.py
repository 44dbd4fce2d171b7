"""A home that was copied: the copy neither reads nor removes what the original goes on to use."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.cli.commands import penstock
from tests.engine.shop import Shop

from penstock.catalog.states import SourceState
from penstock.catalog.store import Catalog
from penstock.engine.table_names import named_source
from penstock.errors import DefiniteError, NotOwnedError, PenstockError, TransientError
from penstock.home import Home
from penstock.layout import catalog_path, log_path
from penstock.testing.memory_tables import MemoryTables
from penstock.testing.waiting import until

MADE = "CREATE TABLE orders (id int PRIMARY KEY); INSERT INTO orders SELECT generate_series(1, 20)"


def upstream(database: Any) -> dict[str, Any]:
    """Slots with their positions, publications, and tables of ours in this database."""
    slots = "SELECT slot_name, confirmed_flush_lsn FROM pg_replication_slots WHERE database = current_database()"
    publications = "SELECT pubname, obj_description(oid, 'pg_publication') FROM pg_publication"
    tables = "SELECT relname, relkind FROM pg_class WHERE relnamespace = to_regnamespace('dblog_meta')"
    return dict(database.execute(slots) + database.execute(publications) + database.execute(tables))


def durable(home: Home) -> str:
    (source,) = home.status().sources
    return str(source.durable)


@pytest.fixture(params=[{}, {"watermarks": "table", "heartbeat": "table"}], ids=["messages", "tables"])
def copied(database: Any, tmp_path: Path, in_process: None, request: pytest.FixtureRequest) -> tuple[Home, Home]:
    """A home, and a copy of it, made while nobody ran it; the original went on since."""
    database.execute(MADE)
    home, store = Home(tmp_path / "home"), MemoryTables()
    home.create(database.url, "shop", **request.param)
    with home.run(store) as running:
        running.wait_live(60)
    shutil.copytree(home.path, tmp_path / "copy")
    copy = Home(tmp_path / "copy")
    go_on(home, store, database)
    return home, copy


def nobody_answers(*_: object, **__: object) -> None:
    message = "nobody answers"
    raise TransientError(message)


def go_on(home: Home, store: MemoryTables, database: Any) -> None:
    """Capture more, until the slot stands where only this home's log ends."""
    with home.run(store):
        database.execute("INSERT INTO orders SELECT max(id) + 1 FROM orders")
        ((end,),) = database.execute("SELECT pg_current_wal_flush_lsn()")
        reached = "SELECT confirmed_flush_lsn >= %s FROM pg_replication_slots WHERE database = current_database()"
        with database.connect() as connection:
            until(lambda: connection.execute(reached, (end,)).fetchone() == (True,), "the slot")


def test_the_copy_of_a_home_neither_runs_nor_drops(copied: tuple[Home, Home], database: Any) -> None:
    home, copy = copied
    before = upstream(database)
    ended = durable(copy)
    with copy.run(MemoryTables()) as running:
        until(lambda: named_source(Catalog(catalog_path(copy.path)), "shop").state is SourceState.FAILED, "the refusal")
        with pytest.raises(DefiniteError, match="what lies between is lost") as caught:
            running.check()
    assert "Another home may read this slot: a copy of this one" in caught.value.hint
    answer = penstock("drop", "shop", "--home", copy.path)
    refused = answer.is_an_error(3)
    assert "source shop is not dropped: the slot penstock_shop was confirmed up to" in refused.said
    assert f"the change log of this home ends at {ended}" in refused.said
    assert "penstock drop shop --force" in refused.hint
    assert upstream(database) == before
    assert named_source(Catalog(catalog_path(copy.path)), "shop").state is SourceState.FAILED, "it is as it was"
    with pytest.raises(NotOwnedError):
        copy.drop("shop", keep_tables=True)
    forced = penstock("drop", "shop", "--home", copy.path, "--force")
    assert forced.code == 0
    assert "left as it is, because another home may use it:" in forced.out
    assert "\n-- SELECT pg_drop_replication_slot('penstock_shop');" in forced.out
    assert (copy.sources(), copy.status().debts, upstream(database)) == ([], [], before)
    go_on(home, MemoryTables(), database)
    assert len(upstream(database)) == len(before)
    assert home.drop("shop") == []
    assert upstream(database) == {}


def test_a_copy_whose_log_cannot_be_read(copied: tuple[Home, Home], database: Any) -> None:
    """It may have been copied while it was written."""
    home, copy = copied
    before = upstream(database)
    log_path(copy.path, "shop").write_bytes(b"half a log")
    with pytest.raises(NotOwnedError, match="the change log cannot be read"):
        copy.drop("shop")
    assert upstream(database) == before
    assert any("pg_drop_replication_slot" in line for line in copy.drop("shop", force=True))
    assert upstream(database) == before
    assert home.drop("shop") == []


def test_a_copy_does_not_drop_what_the_original_reads(
    database: Any, tmp_path: Path, in_process: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Little or nothing has happened since it was made: the slot's position tells, or that it is read."""
    monkeypatch.setattr("penstock.sources.postgres.config._RELEASE_SECONDS", 0.1)
    database.execute(MADE)
    home = Home(tmp_path / "home")
    home.create(database.url, "shop")
    shutil.copytree(home.path, tmp_path / "copy")
    with home.run(MemoryTables()) as running:
        running.wait_live(60)
        with pytest.raises(PenstockError, match=r"in use|another home reads it") as caught:
            Home(tmp_path / "copy").drop("shop")
        assert "a copy of this" in caught.value.hint
        assert len(upstream(database)) == 1  # slot and publication have the same name
    assert home.drop("shop") == []


def test_a_debt_of_a_copy_is_no_reason_either(
    copied: tuple[Home, Home], database: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, copy = copied
    before = upstream(database)
    with monkeypatch.context() as patched:
        patched.setattr("penstock.sources.postgres.config.connect", nobody_answers)
        assert copy.drop("shop", force=True)
    assert len(copy.status().debts) == 1
    assert copy.recover() == []
    assert (copy.status().debts, upstream(database)) == ([], before)
    assert home.drop("shop") == []


def test_a_publication_that_somebody_made_anew_is_left(shop: Callable[..., Shop]) -> None:
    made = shop(MADE)
    made.running.stop()
    made.database.execute("DROP PUBLICATION penstock_shop; CREATE PUBLICATION penstock_shop FOR TABLE orders")
    with pytest.raises(
        NotOwnedError, match="the publication penstock_shop is not the one that this source made"
    ) as caught:
        made.home.drop("shop")
    assert set(upstream(made.database)) == {"penstock_shop"}
    said = caught.value.hint.partition("in Postgres: ")[2].partition(";")[0]
    made.database.execute(said)
    assert made.home.drop("shop") == []
    assert upstream(made.database) == {}
