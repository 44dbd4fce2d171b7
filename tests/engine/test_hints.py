"""Following a hint literally results in tables that equal Postgres; and errors are shown without delay."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import closing

import pytest
from tests.engine.shop import Shop

from penstock.engine.status_document import SourceStatus, TableStatus
from penstock.engine.table_loops import TableLoops
from penstock.errors import TableError
from penstock.model import TableName
from penstock.sources.postgres.replication import publication_watch
from penstock.testing.waiting import until

TABLES = """
CREATE TABLE t (id bigint PRIMARY KEY, v int, s text);
CREATE TABLE u (id bigint PRIMARY KEY);
INSERT INTO t SELECT n, n, 'x' FROM generate_series(1, 20) n;
"""
CHANGES = {
    "values rewritten": "ALTER TABLE t ALTER COLUMN v TYPE int USING v * 2",
    "column dropped and added": "ALTER TABLE t DROP COLUMN s; ALTER TABLE t ADD COLUMN s text",
    "removed and added again": "ALTER PUBLICATION {publication} DROP TABLE t; INSERT INTO t VALUES (31, 0, '');"
    "ALTER PUBLICATION {publication} ADD TABLE t",
    "inserts only for a while": "ALTER PUBLICATION {publication} SET (publish = 'insert'); DELETE FROM t WHERE id = 1;"
    "ALTER PUBLICATION {publication} SET (publish = 'insert, update, delete, truncate')",
    "unlogged for a while": "ALTER PUBLICATION {publication} DROP TABLE t; ALTER TABLE t SET UNLOGGED;"
    "INSERT INTO t VALUES (32, 0, ''); ALTER TABLE t SET LOGGED; ALTER PUBLICATION {publication} ADD TABLE t",
}


def source(shop: Shop) -> SourceStatus:
    (found,) = shop.home.status().sources
    return found


def failed(shop: Shop) -> list[TableStatus]:
    return [table for table in source(shop).tables if table.error is not None]


def publication(shop: Shop) -> str:
    return str(shop.database.execute("SELECT pubname FROM pg_publication")[0][0])


@pytest.mark.parametrize("change", CHANGES)
def test_tables_recover_by_the_statement_in_the_hint(
    change: str, start_shop: Callable[..., Shop], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publication_watch, "_SECONDS", 0.1)
    shop = start_shop(TABLES)
    for statement in CHANGES[change].format(publication=publication(shop)).split(";"):
        shop.database.execute(statement)
    until(lambda: failed(shop), "an error in the status")
    expected = 2 if change == "inserts only for a while" else 1
    until(lambda: len(failed(shop)) == expected, "all errors")
    for table in failed(shop):
        retry = re.search(r"ALTER SOURCES .*;", table.hint or "")
        assert retry, table.hint
        shop.home.sql(retry[0])
    until(lambda: all(table.state == "live" for table in source(shop).tables), "the tables to recover")
    shop.database.execute("INSERT INTO t VALUES (40, 40, 'y'); INSERT INTO u VALUES (1)")
    assert shop.equal()
    assert not failed(shop)


def test_source_recovers_by_the_command_in_the_hint(
    start_shop: Callable[..., Shop], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its publication was created again: the source is dropped, as the hint says, and captured again."""
    monkeypatch.setattr(publication_watch, "_SECONDS", 0.1)
    shop = start_shop(TABLES)
    name, url = publication(shop), shop.database.url
    shop.database.execute(f"DROP PUBLICATION {name}")
    shop.database.execute("INSERT INTO t VALUES (30, 0, '')")
    shop.database.execute(f"CREATE PUBLICATION {name} FOR TABLE t, u")
    until(lambda: source(shop).state == "failed", "the source to fail")
    assert "penstock drop shop" in (source(shop).hint or "")
    shop.database.execute(f"DROP PUBLICATION {name}")  # it does not belong to the source, so drop would keep it
    shop.home.drop("shop")
    until(lambda: not shop.home.status().sources, "the drop of the source")
    shop.home.create(url, "shop")
    until(lambda: {table.state for table in source(shop).tables} == {"live"}, "the new snapshots")
    shop.database.execute("INSERT INTO t VALUES (40, 40, 'y')")
    assert shop.equal()


def test_error_is_in_the_status_before_apply_reaches_it(
    start_shop: Callable[..., Shop], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Readers get the error from the log, and so does the status."""
    shop = start_shop(TABLES)
    monkeypatch.setattr(TableLoops, "_apply", lambda *_, **__: None)
    log = shop.catalog.log("shop")
    shop.running.stop()
    with closing(log.writer()) as writer:
        durable = writer.frontiers().durable
        writer.publish([], durable, errors=[TableError("public.t", durable + 1, "it broke", "Fix it.")])
    (table,) = failed(shop)
    assert (table.upstream, table.state, table.error, table.hint) == ("public.t", "failed", "it broke", "Fix it.")
    assert shop.catalog.tables("shop")[0].upstream == TableName("public", "t")
    assert shop.catalog.tables("shop")[0].error is None, "it is not in the catalog yet"
