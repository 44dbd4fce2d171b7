"""Things are changed upstream, and mostly changed back, while nobody looks: the table says so, or goes on rightly."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import Database
from tests.sources.postgres.capturing import Capture

from penstock.changelog.sqlite.log import SqliteLog
from penstock.errors import DefiniteError, TableError
from penstock.model import TableName
from penstock.positions import Lsn
from penstock.sources.postgres import watch
from penstock.sources.postgres.wal import written
from penstock.testing.waiting import stays, until

TABLES = """
CREATE TABLE t (id bigint PRIMARY KEY, v int, s text);
CREATE TABLE u (id bigint PRIMARY KEY);
INSERT INTO t SELECT n, n, 'x' FROM generate_series(1, 20) n;
"""
AGAIN = (
    "DROP PUBLICATION penstock_shop; INSERT INTO t VALUES (30, 0, ''); CREATE PUBLICATION penstock_shop FOR TABLE t, u"
)
"""What ends the source."""

ENDS = {
    "out and in": "ALTER PUBLICATION penstock_shop DROP TABLE t; INSERT INTO t VALUES (31, 0, '');"
    "ALTER PUBLICATION penstock_shop ADD TABLE t",
    "inserts only for a while": "ALTER PUBLICATION penstock_shop SET (publish = 'insert'); DELETE FROM t WHERE id = 1;"
    "ALTER PUBLICATION penstock_shop SET (publish = 'insert, update, delete, truncate')",
    "values rewritten": "ALTER TABLE t ALTER COLUMN v TYPE int USING v * 2",
    "column dropped and added": "ALTER TABLE t DROP COLUMN s; ALTER TABLE t ADD COLUMN s text",
    "renamed": "ALTER TABLE t RENAME TO was_t",
    "moved": "CREATE SCHEMA elsewhere; ALTER TABLE t SET SCHEMA elsewhere",
    "dropped": "DROP TABLE t",
    "swapped": "ALTER TABLE t RENAME TO was_t; CREATE TABLE t (LIKE was_t INCLUDING ALL);"
    "ALTER PUBLICATION penstock_shop ADD TABLE t",
    "unlogged for a while": "ALTER PUBLICATION penstock_shop DROP TABLE t; ALTER TABLE t SET UNLOGGED;"
    "INSERT INTO t VALUES (32, 0, ''); ALTER TABLE t SET LOGGED; ALTER PUBLICATION penstock_shop ADD TABLE t",
}
"""What ends table t, and nothing else."""
FILTERED = {
    "row filter for a while": "ALTER PUBLICATION penstock_shop SET TABLE t WHERE (id > 99), u;"
    "INSERT INTO t VALUES (33); ALTER PUBLICATION penstock_shop SET TABLE t, u",
    "column list for a while": "ALTER PUBLICATION penstock_shop SET TABLE t (id), u; UPDATE t SET v = 99 WHERE id = 1;"
    "ALTER PUBLICATION penstock_shop SET TABLE t, u",
}
HARMLESS = {
    "vacuum full": "VACUUM FULL t",
    "cluster": "CLUSTER t USING t_pkey",
    "truncate": "TRUNCATE t",
    "another default": "ALTER TABLE t ALTER COLUMN v SET DEFAULT 7",
    "not null": "ALTER TABLE t ALTER COLUMN v SET NOT NULL",
    "statistics": "ALTER TABLE t ALTER COLUMN v SET STATISTICS 10; ANALYZE t",
    "an index": "CREATE INDEX ON t (v); REINDEX TABLE t",
    "rights": "GRANT SELECT ON t TO PUBLIC; COMMENT ON TABLE t IS 'ours'",
    "another table, too": "CREATE TABLE w (id int PRIMARY KEY); ALTER PUBLICATION penstock_shop ADD TABLE w",
    "rolled back": "BEGIN; ALTER TABLE t ALTER COLUMN v TYPE int USING v * 2; ROLLBACK",
    "two at once": "ALTER TABLE u ADD COLUMN b int; VACUUM FULL t; INSERT INTO t VALUES (40, 1, 'y')",
}


@pytest.fixture
def capture(database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Capture]:
    monkeypatch.setattr(watch, "_SECONDS", 0.1)
    database.execute(TABLES)
    made = Capture(database.url, tmp_path / "log.db", "shop", tables=("public.t", "public.u"))
    yield made
    made.failure = None
    made.stop()


@pytest.fixture(params=[pytest.param("running", marks=pytest.mark.deep), "stopped"])
def while_(request: pytest.FixtureRequest, database: Database, capture: Capture) -> Callable[[str], None]:
    """Do something upstream while capture runs, or while it does not; it runs afterwards."""

    def do(statements: str) -> None:
        capture.start()
        database.execute("INSERT INTO t VALUES (21, 21, 'x')")
        until(lambda: len(capture.changes("t")) == 1, "the first row")
        if request.param == "stopped":
            capture.stop()
        with database.connect(autocommit=True) as connection:
            for statement in statements.split(";"):
                connection.execute(statement)
        if request.param == "stopped":
            capture.start()

    return do


def error_of(capture: Capture, table: str) -> TableError | None:
    with closing(SqliteLog(capture.log).reader()) as reader:
        return reader.tables()[TableName("public", table)].error


def goes_on(database: Database, capture: Capture, table: str, count: int) -> None:
    """What is written from now on arrives."""
    known = len(capture.changes(table))
    columns = "(id, v)" if table == "t" else "(id)"
    values = ", ".join(f"({1000 + n}{', 1' * (table == 't')})" for n in range(count))
    database.execute(f"INSERT INTO {table} {columns} VALUES {values}")
    until(lambda: len(capture.changes(table)) == known + count, f"changes of {table}")


@pytest.mark.parametrize("what", [*ENDS, *FILTERED])
def test_what_ends_a_table_and_no_other(
    what: str, while_: Callable[[str], None], database: Database, capture: Capture
) -> None:
    if what in FILTERED and database.version() < 15:
        pytest.skip("publications filter rows and columns from Postgres 15 on")
    while_({**ENDS, **FILTERED}[what])
    until(lambda: error_of(capture, "t") is not None, "an error of the table")
    error = error_of(capture, "t")
    assert error is not None
    assert "RETRY TABLE public.t" in error.hint
    if what != "inserts only for a while":  # that concerned all of them
        goes_on(database, capture, "u", 3)
        assert error_of(capture, "u") is None
    capture.stop()
    capture.start()
    again = error_of(capture, "t")
    assert again is not None
    assert again.args == error.args, "it stays, however often capture is started"


@pytest.mark.parametrize("what", HARMLESS)
def test_what_is_harmless(
    what: str, while_: Callable[[str], None], database: Database, capture: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[Lsn] = []
    look = watch.PublicationWatch.look

    def counted(self: watch.PublicationWatch, connection: Any, durable: Lsn) -> list[TableError]:
        errors = look(self, connection, durable)
        looks.append(durable)
        return errors

    monkeypatch.setattr(watch.PublicationWatch, "look", counted)
    while_(HARMLESS[what])
    with database.connect() as connection:
        end = written(connection)
    capture.wait(end)
    seen = len(looks)
    until(lambda: len(looks) >= seen + 3, "looks after that")
    assert error_of(capture, "t") is None
    goes_on(database, capture, "t", 3)
    stays(lambda: error_of(capture, "t") is None, "it is well", 0.3)


def test_a_partition_that_was_away(database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Detached, written to, and attached again: the same partitions as before, and other rows."""
    monkeypatch.setattr(watch, "_SECONDS", 0.1)
    database.execute(
        "CREATE TABLE t (id bigint PRIMARY KEY, v int, s text) PARTITION BY RANGE (id);"
        "CREATE TABLE low PARTITION OF t FOR VALUES FROM (0) TO (100);"
        "CREATE TABLE high PARTITION OF t FOR VALUES FROM (100) TO (100000)"
    )
    capture = Capture(database.url, tmp_path / "log.db", "shop", partitions="root")
    capture.start()
    goes_on(database, capture, "t", 2)
    capture.stop()
    database.execute("CREATE TABLE highest PARTITION OF t FOR VALUES FROM (100000) TO (200000)")
    capture.start()
    database.execute("INSERT INTO t VALUES (100001)")
    until(lambda: len(capture.changes("t")) == 3, "a row of the new partition")
    assert error_of(capture, "t") is None, "one that is created as a partition is empty"
    capture.stop()
    database.execute("ALTER TABLE t DETACH PARTITION low; INSERT INTO low VALUES (1)")
    database.execute("ALTER TABLE t ATTACH PARTITION low FOR VALUES FROM (0) TO (100)")
    capture.start()
    until(lambda: error_of(capture, "t") is not None, "an error of the table")
    assert "a partition was detached" in str(error_of(capture, "t"))
    capture.stop()


@pytest.mark.parametrize("added", [False, True], ids=["captured", "added"])
def test_a_column_that_is_dropped_at_one_look_and_there_again_at_the_next(
    database: Database, capture: Capture, added: bool
) -> None:
    capture.start()
    if added:
        database.execute("ALTER TABLE t ADD COLUMN n int DEFAULT 5")
        goes_on(database, capture, "t", 1)
    name = "n" if added else "s"
    database.execute(f"ALTER TABLE t DROP COLUMN {name}")
    until(lambda: error_of(capture, "t") is not None, "an error of the table")
    assert f"dropped or renamed: {name}" in str(error_of(capture, "t"))


def test_a_rewrite_that_ends_what_the_catalog_filled_in(database: Database, capture: Capture) -> None:
    """Postgres writes in the catalog that older rows are filled in now: that is no ALTER COLUMN."""
    capture.start()
    database.execute("ALTER TABLE t ADD COLUMN n int DEFAULT 5")
    goes_on(database, capture, "t", 1)
    database.execute("VACUUM FULL t")
    stays(lambda: error_of(capture, "t") is None, "it is well", 1)
    goes_on(database, capture, "u", 3)
    assert error_of(capture, "t") is None


def test_a_publication_made_anew_ends_the_source(
    while_: Callable[[str], None], database: Database, capture: Capture
) -> None:
    """And it stays so: that there is one again does not bring back what was not published."""
    try:
        while_(AGAIN)
        until(lambda: capture.failure is not None, "capture to stop")
    finally:
        failure, capture.failure = capture.failure, None
    assert isinstance(failure, DefiniteError)
    assert "publication penstock_shop" in failure.message
    for _ in range(2):
        capture.stop()
        capture.start()
        until(lambda: capture.failure is not None, "capture to stop again")
        failure, capture.failure = capture.failure, None
        assert isinstance(failure, DefiniteError)
        assert "was dropped and created again" in failure.message
        assert "penstock drop shop" in failure.hint
