"""A copy of a home: it neither reads nor removes upstream objects that the original still uses."""

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

SETUP = "CREATE TABLE orders (id int PRIMARY KEY); INSERT INTO orders SELECT generate_series(1, 20)"


def upstream(database: Any) -> dict[str, Any]:
    """Slots with their positions, publications, and tables of Penstock in this database."""
    slots = "SELECT slot_name, confirmed_flush_lsn FROM pg_replication_slots WHERE database = current_database()"
    publications = "SELECT pubname, obj_description(oid, 'pg_publication') FROM pg_publication"
    tables = "SELECT relname, relkind FROM pg_class WHERE relnamespace = to_regnamespace('dblog_meta')"
    return dict(database.execute(slots) + database.execute(publications) + database.execute(tables))


def durable(home: Home) -> str:
    (source,) = home.status().sources
    return str(source.durable)


@pytest.fixture(params=[{}, {"watermarks": "table", "heartbeat": "table"}], ids=["messages", "tables"])
def copied(database: Any, tmp_path: Path, in_process: None, request: pytest.FixtureRequest) -> tuple[Home, Home]:
    """A home, and a copy made while the home was not running; the original has captured changes since."""
    database.execute(SETUP)
    home, store = Home(tmp_path / "home"), MemoryTables()
    home.create(database.url, "shop", **request.param)
    with home.run(store) as running:
        running.wait_live(60)
    shutil.copytree(home.path, tmp_path / "copy")
    copy = Home(tmp_path / "copy")
    continue_capture(home, store, database)
    return home, copy


def unreachable(*_: object, **__: object) -> None:
    message = "no answer"
    raise TransientError(message)


def continue_capture(home: Home, store: MemoryTables, database: Any) -> None:
    """Capture more, until the slot is confirmed up to the end of this home's log."""
    with home.run(store):
        database.execute("INSERT INTO orders SELECT max(id) + 1 FROM orders")
        ((end,),) = database.execute("SELECT pg_current_wal_flush_lsn()")
        reached = "SELECT confirmed_flush_lsn >= %s FROM pg_replication_slots WHERE database = current_database()"
        with database.connect() as connection:
            until(lambda: connection.execute(reached, (end,)).fetchone() == (True,), "the slot to be confirmed")


def test_copied_home_neither_captures_nor_drops(copied: tuple[Home, Home], database: Any) -> None:
    home, copy = copied
    before = upstream(database)
    end_of_log = durable(copy)
    with copy.run(MemoryTables()) as running:
        until(
            lambda: named_source(Catalog(catalog_path(copy.path)), "shop").state is SourceState.FAILED,
            "the source to fail",
        )
        with pytest.raises(DefiniteError, match="the changes in between are lost") as caught:
            running.check()
    assert "If another home reads this slot (a copy of this one" in caught.value.hint
    answer = penstock("drop", "shop", "--home", copy.path)
    error = answer.assert_error(3)
    assert 'source shop is not dropped: replication slot "penstock_shop" is confirmed up to' in error.error
    assert f"the change log of this home ends at {end_of_log}" in error.error
    assert "penstock drop shop --force" in error.hint
    assert upstream(database) == before
    assert named_source(Catalog(catalog_path(copy.path)), "shop").state is SourceState.FAILED, "the state is unchanged"
    with pytest.raises(NotOwnedError):
        copy.drop("shop", keep_tables=True)
    forced = penstock("drop", "shop", "--home", copy.path, "--force")
    assert forced.code == 0
    assert "left in place, because another home may use them:" in forced.out
    assert "\n-- SELECT pg_drop_replication_slot('penstock_shop');" in forced.out
    assert (copy.sources(), copy.status().debts, upstream(database)) == ([], [], before)
    continue_capture(home, MemoryTables(), database)
    assert len(upstream(database)) == len(before)
    assert home.drop("shop") == []
    assert upstream(database) == {}


def test_copied_home_with_an_unreadable_log(copied: tuple[Home, Home], database: Any) -> None:
    """The log may have been copied while it was written."""
    home, copy = copied
    before = upstream(database)
    log_path(copy.path, "shop").write_bytes(b"half a log")
    with pytest.raises(NotOwnedError, match="no readable change log"):
        copy.drop("shop")
    assert upstream(database) == before
    assert any("pg_drop_replication_slot" in line for line in copy.drop("shop", force=True))
    assert upstream(database) == before
    assert home.drop("shop") == []


def test_copied_home_does_not_drop_a_slot_that_the_original_reads(
    database: Any, tmp_path: Path, in_process: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Few or no changes since the copy: the slot's position shows the other reader, or that the slot is active."""
    monkeypatch.setattr("penstock.sources.postgres.config._RELEASE_SECONDS", 0.1)
    database.execute(SETUP)
    home = Home(tmp_path / "home")
    home.create(database.url, "shop")
    shutil.copytree(home.path, tmp_path / "copy")
    with home.run(MemoryTables()) as running:
        running.wait_live(60)
        with pytest.raises(PenstockError, match=r"in use|another home reads the slot") as caught:
            Home(tmp_path / "copy").drop("shop")
        assert "a copy of this" in caught.value.hint
        assert len(upstream(database)) == 1  # slot and publication have the same name
    assert home.drop("shop") == []


def test_leftovers_of_a_copied_home_are_not_removed(
    copied: tuple[Home, Home], database: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, copy = copied
    before = upstream(database)
    with monkeypatch.context() as patched:
        patched.setattr("penstock.sources.postgres.config.connect", unreachable)
        assert copy.drop("shop", force=True)
    assert len(copy.status().debts) == 1
    assert copy.recover() == []
    assert (copy.status().debts, upstream(database)) == ([], before)
    assert home.drop("shop") == []


def test_foreign_publication_with_the_same_name_is_kept(start_shop: Callable[..., Shop]) -> None:
    shop = start_shop(SETUP)
    shop.running.stop()
    shop.database.execute("DROP PUBLICATION penstock_shop; CREATE PUBLICATION penstock_shop FOR TABLE orders")
    with pytest.raises(NotOwnedError, match='publication "penstock_shop" was not created by this source') as caught:
        shop.home.drop("shop")
    assert set(upstream(shop.database)) == {"penstock_shop"}
    statement = caught.value.hint.partition("in Postgres: ")[2].partition(";")[0]
    shop.database.execute(statement)
    assert shop.home.drop("shop") == []
    assert upstream(shop.database) == {}
