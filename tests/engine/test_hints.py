"""A hint that is followed literally ends with tables that are equal to Postgres; and an error is shown at once."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import closing

import pytest
from tests.engine.shop import Shop

from penstock.engine.status import SourceStatus, TableStatus
from penstock.engine.table_loops import Follower
from penstock.errors import TableError
from penstock.model import TableName
from penstock.sources.postgres import watch
from penstock.testing.waiting import until

TABLES = """
CREATE TABLE t (id bigint PRIMARY KEY, v int, s text);
CREATE TABLE u (id bigint PRIMARY KEY);
INSERT INTO t SELECT n, n, 'x' FROM generate_series(1, 20) n;
"""
CHANGES = {
    "values rewritten": "ALTER TABLE t ALTER COLUMN v TYPE int USING v * 2",
    "column dropped and added": "ALTER TABLE t DROP COLUMN s; ALTER TABLE t ADD COLUMN s text",
    "out and in": "ALTER PUBLICATION {publication} DROP TABLE t; INSERT INTO t VALUES (31, 0, '');"
    "ALTER PUBLICATION {publication} ADD TABLE t",
    "inserts only for a while": "ALTER PUBLICATION {publication} SET (publish = 'insert'); DELETE FROM t WHERE id = 1;"
    "ALTER PUBLICATION {publication} SET (publish = 'insert, update, delete, truncate')",
    "unlogged for a while": "ALTER PUBLICATION {publication} DROP TABLE t; ALTER TABLE t SET UNLOGGED;"
    "INSERT INTO t VALUES (32, 0, ''); ALTER TABLE t SET LOGGED; ALTER PUBLICATION {publication} ADD TABLE t",
}


def source(made: Shop) -> SourceStatus:
    (found,) = made.home.status().sources
    return found


def failed(made: Shop) -> list[TableStatus]:
    return [table for table in source(made).tables if table.error is not None]


def publication(made: Shop) -> str:
    return str(made.database.execute("SELECT pubname FROM pg_publication")[0][0])


@pytest.mark.parametrize("what", CHANGES)
def test_tables_come_back_by_what_the_error_says(
    what: str, shop: Callable[..., Shop], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "_SECONDS", 0.1)
    made = shop(TABLES)
    for statement in CHANGES[what].format(publication=publication(made)).split(";"):
        made.database.execute(statement)
    until(lambda: failed(made), "an error in the status")
    expected = 2 if what == "inserts only for a while" else 1
    until(lambda: len(failed(made)) == expected, "all errors")
    for table in failed(made):
        retry = re.search(r"ALTER SOURCES .*;", table.hint or "")
        assert retry, table.hint
        made.home.sql(retry[0])
    until(lambda: all(table.state == "live" for table in source(made).tables), "the tables to come back")
    made.database.execute("INSERT INTO t VALUES (40, 40, 'y'); INSERT INTO u VALUES (1)")
    assert made.equal()
    assert not failed(made)


def test_a_source_comes_back_by_what_the_error_says(shop: Callable[..., Shop], monkeypatch: pytest.MonkeyPatch) -> None:
    """Its publication was made anew: the source is dropped, as the error says, and captured again."""
    monkeypatch.setattr(watch, "_SECONDS", 0.1)
    made = shop(TABLES)
    name, url = publication(made), made.database.url
    made.database.execute(f"DROP PUBLICATION {name}")
    made.database.execute("INSERT INTO t VALUES (30, 0, '')")
    made.database.execute(f"CREATE PUBLICATION {name} FOR TABLE t, u")
    until(lambda: source(made).state == "failed", "the source to stop")
    assert "penstock drop shop" in (source(made).hint or "")
    made.database.execute(f"DROP PUBLICATION {name}")  # it is nobody's by now, and drop leaves it where it is
    made.home.drop("shop")
    until(lambda: not made.home.status().sources, "the source to be gone")
    made.home.create(url, "shop")
    until(lambda: {table.state for table in source(made).tables} == {"live"}, "the new copies")
    made.database.execute("INSERT INTO t VALUES (40, 40, 'y')")
    assert made.equal()


def test_an_error_is_in_the_status_before_apply_has_come_to_it(
    shop: Callable[..., Shop], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Readers are told by the log; so is who asks for the status."""
    made = shop(TABLES)
    monkeypatch.setattr(Follower, "_apply", lambda *_, **__: None)
    log = made.catalog.log("shop")
    made.running.stop()
    with closing(log.writer()) as writer:
        durable = writer.frontiers().durable
        writer.publish([], durable, errors=[TableError("public.t", durable + 1, "it broke", "Mend it.")])
    (table,) = failed(made)
    assert (table.upstream, table.state, table.error, table.hint) == ("public.t", "failed", "it broke", "Mend it.")
    assert made.catalog.tables("shop")[0].upstream == TableName("public", "t")
    assert made.catalog.tables("shop")[0].error is None, "nobody has written it into the catalog yet"
