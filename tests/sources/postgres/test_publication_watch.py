"""Changes upstream, most of them reverted between two checks: the table stops with an error, or continues correctly."""

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
from penstock.sources.postgres.replication import publication_watch
from penstock.sources.postgres.replication.wal import wal_insert_position
from penstock.testing.waiting import stays, until

TABLES = """
CREATE TABLE t (id bigint PRIMARY KEY, v int, s text);
CREATE TABLE u (id bigint PRIMARY KEY);
INSERT INTO t SELECT n, n, 'x' FROM generate_series(1, 20) n;
"""
RECREATE_PUBLICATION = (
    "DROP PUBLICATION penstock_shop; INSERT INTO t VALUES (30, 0, ''); CREATE PUBLICATION penstock_shop FOR TABLE t, u"
)
"""Statements that stop the source."""

STOPS_TABLE = {
    "removed and added": "ALTER PUBLICATION penstock_shop DROP TABLE t; INSERT INTO t VALUES (31, 0, '');"
    "ALTER PUBLICATION penstock_shop ADD TABLE t",
    "temporarily only inserts": "ALTER PUBLICATION penstock_shop SET (publish = 'insert'); DELETE FROM t WHERE id = 1;"
    "ALTER PUBLICATION penstock_shop SET (publish = 'insert, update, delete, truncate')",
    "values rewritten": "ALTER TABLE t ALTER COLUMN v TYPE int USING v * 2",
    "column dropped and added": "ALTER TABLE t DROP COLUMN s; ALTER TABLE t ADD COLUMN s text",
    "renamed": "ALTER TABLE t RENAME TO was_t",
    "moved": "CREATE SCHEMA elsewhere; ALTER TABLE t SET SCHEMA elsewhere",
    "dropped": "DROP TABLE t",
    "swapped": "ALTER TABLE t RENAME TO was_t; CREATE TABLE t (LIKE was_t INCLUDING ALL);"
    "ALTER PUBLICATION penstock_shop ADD TABLE t",
    "unlogged temporarily": "ALTER PUBLICATION penstock_shop DROP TABLE t; ALTER TABLE t SET UNLOGGED;"
    "INSERT INTO t VALUES (32, 0, ''); ALTER TABLE t SET LOGGED; ALTER PUBLICATION penstock_shop ADD TABLE t",
}
"""Statements that stop table t and nothing else."""
FILTERED = {
    "temporary row filter": "ALTER PUBLICATION penstock_shop SET TABLE t WHERE (id > 99), u;"
    "INSERT INTO t VALUES (33); ALTER PUBLICATION penstock_shop SET TABLE t, u",
    "temporary column list": "ALTER PUBLICATION penstock_shop SET TABLE t (id), u; UPDATE t SET v = 99 WHERE id = 1;"
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
    "privileges": "GRANT SELECT ON t TO PUBLIC; COMMENT ON TABLE t IS 'ours'",
    "another table added": "CREATE TABLE w (id int PRIMARY KEY); ALTER PUBLICATION penstock_shop ADD TABLE w",
    "rolled back": "BEGIN; ALTER TABLE t ALTER COLUMN v TYPE int USING v * 2; ROLLBACK",
    "two statements": "ALTER TABLE u ADD COLUMN b int; VACUUM FULL t; INSERT INTO t VALUES (40, 1, 'y')",
}


@pytest.fixture
def capture(database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Capture]:
    monkeypatch.setattr(publication_watch, "_SECONDS", 0.1)
    database.execute(TABLES)
    made = Capture(database.url, tmp_path / "log.db", "shop", tables=("public.t", "public.u"))
    yield made
    made.failure = None
    made.stop()


@pytest.fixture(params=[pytest.param("running", marks=pytest.mark.deep), "stopped"])
def execute_upstream(request: pytest.FixtureRequest, database: Database, capture: Capture) -> Callable[[str], None]:
    """Execute statements upstream while capture runs, or while it is stopped; it runs afterwards."""

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


def check_capture_continues(database: Database, capture: Capture, table: str, count: int) -> None:
    """Check that rows written from now on are captured."""
    before = len(capture.changes(table))
    columns = "(id, v)" if table == "t" else "(id)"
    values = ", ".join(f"({1000 + n}{', 1' * (table == 't')})" for n in range(count))
    database.execute(f"INSERT INTO {table} {columns} VALUES {values}")
    until(lambda: len(capture.changes(table)) == before + count, f"changes of {table}")


@pytest.mark.parametrize("case", [*STOPS_TABLE, *FILTERED])
def test_change_stops_that_table_only(
    case: str, execute_upstream: Callable[[str], None], database: Database, capture: Capture
) -> None:
    if case in FILTERED and database.version() < 15:
        pytest.skip("publications support row filters and column lists since Postgres 15")
    execute_upstream({**STOPS_TABLE, **FILTERED}[case])
    until(lambda: error_of(capture, "t") is not None, "an error of the table")
    error = error_of(capture, "t")
    assert error is not None
    assert "RETRY TABLE public.t" in error.hint
    if case != "temporarily only inserts":  # this affects all tables
        check_capture_continues(database, capture, "u", 3)
        assert error_of(capture, "u") is None
    capture.stop()
    capture.start()
    again = error_of(capture, "t")
    assert again is not None
    assert again.args == error.args, "the error stays after a restart of capture"


@pytest.mark.parametrize("case", HARMLESS)
def test_harmless_change_does_not_stop_the_table(
    case: str,
    execute_upstream: Callable[[str], None],
    database: Database,
    capture: Capture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    checks: list[Lsn] = []
    check = publication_watch.PublicationWatch.check

    def counted(self: publication_watch.PublicationWatch, connection: Any, durable: Lsn) -> list[TableError]:
        errors = check(self, connection, durable)
        checks.append(durable)
        return errors

    monkeypatch.setattr(publication_watch.PublicationWatch, "check", counted)
    execute_upstream(HARMLESS[case])
    with database.connect() as connection:
        end = wal_insert_position(connection)
    capture.wait(end)
    seen = len(checks)
    until(lambda: len(checks) >= seen + 3, "later checks")
    assert error_of(capture, "t") is None
    check_capture_continues(database, capture, "t", 3)
    stays(lambda: error_of(capture, "t") is None, "the table has no error", 0.3)


def test_reattached_partition_stops_the_table(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Detached, written to, and attached again: the partitions are the same as before, but the rows differ."""
    monkeypatch.setattr(publication_watch, "_SECONDS", 0.1)
    database.execute(
        "CREATE TABLE t (id bigint PRIMARY KEY, v int, s text) PARTITION BY RANGE (id);"
        "CREATE TABLE low PARTITION OF t FOR VALUES FROM (0) TO (100);"
        "CREATE TABLE high PARTITION OF t FOR VALUES FROM (100) TO (100000)"
    )
    capture = Capture(database.url, tmp_path / "log.db", "shop", partitions="root")
    capture.start()
    check_capture_continues(database, capture, "t", 2)
    capture.stop()
    database.execute("CREATE TABLE highest PARTITION OF t FOR VALUES FROM (100000) TO (200000)")
    capture.start()
    database.execute("INSERT INTO t VALUES (100001)")
    until(lambda: len(capture.changes("t")) == 3, "a row of the new partition")
    assert error_of(capture, "t") is None, "a table that is created as a partition is empty"
    capture.stop()
    database.execute("ALTER TABLE t DETACH PARTITION low; INSERT INTO low VALUES (1)")
    database.execute("ALTER TABLE t ATTACH PARTITION low FOR VALUES FROM (0) TO (100)")
    capture.start()
    until(lambda: error_of(capture, "t") is not None, "an error of the table")
    assert "a partition was detached" in str(error_of(capture, "t"))
    capture.stop()


@pytest.mark.parametrize("added", [False, True], ids=["captured", "added"])
def test_renamed_column_is_the_same_column(database: Database, capture: Capture, added: bool) -> None:
    capture.start()
    if added:
        database.execute("ALTER TABLE t ADD COLUMN n int DEFAULT 5")
        check_capture_continues(database, capture, "t", 1)
    database.execute("INSERT INTO t VALUES (-3, 1, 's')")
    name = "n" if added else "s"
    database.execute(f"ALTER TABLE t RENAME COLUMN {name} TO other")
    check_capture_continues(database, capture, "u", 2)
    database.execute("INSERT INTO t (id, other) VALUES (-1, 7)")
    until(lambda: str(capture.changes("t")[-1]["after"][name]) == "7", "the row")
    database.execute(f"ALTER TABLE t RENAME COLUMN other TO {name}; INSERT INTO t (id, {name}) VALUES (-2, 8)")
    until(lambda: str(capture.changes("t")[-1]["after"][name]) == "8", "the row")
    assert error_of(capture, "t") is None


def test_rewrite_that_stores_a_default_in_the_rows_is_harmless(database: Database, capture: Capture) -> None:
    """VACUUM FULL clears the missing value of the column in the catalog: that is not an ALTER COLUMN."""
    capture.start()
    database.execute("ALTER TABLE t ADD COLUMN n int DEFAULT 5")
    check_capture_continues(database, capture, "t", 1)
    database.execute("VACUUM FULL t")
    stays(lambda: error_of(capture, "t") is None, "the table has no error", 1)
    check_capture_continues(database, capture, "u", 3)
    assert error_of(capture, "t") is None


def test_recreated_publication_stops_the_source(
    execute_upstream: Callable[[str], None], database: Database, capture: Capture
) -> None:
    """The error stays: the new publication does not bring back changes that were not published."""
    try:
        execute_upstream(RECREATE_PUBLICATION)
        until(lambda: capture.failure is not None, "capture to stop")
    finally:
        failure, capture.failure = capture.failure, None
    assert isinstance(failure, DefiniteError)
    assert 'publication "penstock_shop"' in failure.message
    for _ in range(2):
        capture.stop()
        capture.start()
        until(lambda: capture.failure is not None, "capture to stop again")
        failure, capture.failure = capture.failure, None
        assert isinstance(failure, DefiniteError)
        assert "was dropped and created again" in failure.message
        assert "penstock drop shop" in failure.hint
