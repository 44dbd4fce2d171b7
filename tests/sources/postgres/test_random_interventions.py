"""Random interventions upstream, while capture runs or is stopped: tables equal those of Postgres, or have an error.

Each history draws writes, interventions and stops in random order, on a database of its own. At its end the log of
every table without an error must yield exactly the rows in Postgres. `PENSTOCK_TEST_INTERVENTIONS` is the number of
histories in each of the five parts.
"""

from __future__ import annotations

import os
import random
from contextlib import closing, suppress
from pathlib import Path

import psycopg
import pytest
from tests.conftest import Database, created_database
from tests.sources.postgres.capturing import Capture, merged

from penstock.changelog.sqlite.log import SqliteLog
from penstock.embedded.postgres import EmbeddedPostgres
from penstock.errors import DefiniteError, TableError
from penstock.model import TableName
from penstock.positions import Lsn
from penstock.sources.postgres.replication import publication_watch
from penstock.sources.postgres.replication.wal import wal_flush_position
from penstock.testing.waiting import until

HISTORIES = int(os.environ.get("PENSTOCK_TEST_INTERVENTIONS", "10"))
TABLES = """
CREATE TABLE t (id bigint PRIMARY KEY, v int, s text, w varchar(9));
CREATE TABLE u (id bigint PRIMARY KEY, v int, s text, w varchar(9));
"""
PUBLICATION, SLOT = "penstock_shop", "penstock_shop"
WRITES = [
    "INSERT INTO {t} SELECT n, n, 'new' FROM generate_series({n}, {n} + 5) n ON CONFLICT DO NOTHING",
    "INSERT INTO {t} (id) SELECT n FROM generate_series({n}, {n} + 5) n ON CONFLICT DO NOTHING",
    "UPDATE {t} SET v = v + 1 WHERE id % 3 = {n} % 3",
    "UPDATE {t} SET s = s || 's' WHERE id % 3 = {n} % 3",
    "UPDATE {t} SET w = 'w{n}' WHERE id % 3 = {n} % 3",
    "UPDATE {t} SET id = id + 100000 WHERE id = (SELECT min(id) FROM {t} WHERE id < 100000)",
    "DELETE FROM {t} WHERE id % 7 = {n} % 7",
    "TRUNCATE {t}",
    "BEGIN; INSERT INTO {t} VALUES ({n} + 50000, 1, 'x') ON CONFLICT DO NOTHING; SAVEPOINT a; DELETE FROM {t};"
    "ROLLBACK TO a; COMMIT",
]
INTERVENTIONS = [
    "DROP PUBLICATION IF EXISTS " + PUBLICATION,
    "CREATE PUBLICATION " + PUBLICATION + " FOR TABLE t, u",
    "ALTER PUBLICATION " + PUBLICATION + " DROP TABLE {t}",
    "ALTER PUBLICATION " + PUBLICATION + " ADD TABLE {t}",
    "ALTER PUBLICATION " + PUBLICATION + " SET (publish = 'insert')",
    "ALTER PUBLICATION " + PUBLICATION + " SET (publish = 'insert, update, delete, truncate')",
    "ALTER TABLE {t} ALTER COLUMN v TYPE int USING v * 2",
    "ALTER TABLE {t} ALTER COLUMN v TYPE bigint",
    "ALTER TABLE {t} DROP COLUMN s; ALTER TABLE {t} ADD COLUMN s text",
    "ALTER TABLE {t} DROP COLUMN s",
    "ALTER TABLE {t} DROP COLUMN v",
    "ALTER TABLE {t} DROP COLUMN w",
    "BEGIN; UPDATE {t} SET v = 7; ALTER TABLE {t} DROP COLUMN w; UPDATE {t} SET v = 8; COMMIT",
    "BEGIN; ALTER TABLE {t} DROP COLUMN w; UPDATE {t} SET v = 9; ROLLBACK",
    "ALTER TABLE {t} DROP COLUMN s; ALTER TABLE {t} RENAME COLUMN w TO s",
    "ALTER TABLE {t} RENAME COLUMN s TO z; ALTER TABLE {t} RENAME COLUMN w TO s; ALTER TABLE {t} RENAME COLUMN z TO w",
    "ALTER TABLE {t} RENAME COLUMN s TO z{n}",
    "ALTER TABLE {t} RENAME COLUMN v TO z{n}; ALTER TABLE {t} ADD COLUMN v int",
    "BEGIN; UPDATE {t} SET v = 7; ALTER TABLE {t} RENAME COLUMN id TO k; INSERT INTO {t} (k) VALUES (70000 + {n});"
    "ALTER TABLE {t} RENAME COLUMN k TO id; COMMIT",
    "ALTER TABLE {t} DROP COLUMN w; ALTER TABLE {t} ADD COLUMN z text",
    "ALTER TABLE {t} ADD COLUMN w varchar(9)",
    "ALTER TABLE {t} ALTER COLUMN w TYPE varchar(12)",
    "ALTER TABLE {t} ALTER COLUMN w TYPE text",
    "ALTER TABLE {t} ALTER COLUMN w TYPE varchar(15) USING w || 'u'",
    "ALTER TABLE {t} ALTER COLUMN w TYPE text USING s",
    "ALTER TABLE {t} ADD COLUMN s text",
    "ALTER TABLE {t} ADD COLUMN c{n} int DEFAULT 4",
    "ALTER TABLE {t} ADD COLUMN d{n} float DEFAULT random()",
    "ALTER TABLE {t} RENAME TO {t}_away",
    "ALTER TABLE {t}_away RENAME TO {t}",
    "CREATE SCHEMA IF NOT EXISTS away; ALTER TABLE {t} SET SCHEMA away",
    "ALTER TABLE away.{t} SET SCHEMA public",
    "DROP TABLE {t}",
    "CREATE TABLE {t} (id bigint PRIMARY KEY, v int, s text, w varchar(9))",
    "ALTER TABLE {t} SET UNLOGGED",
    "ALTER TABLE {t} SET LOGGED",
    "ALTER TABLE {t} REPLICA IDENTITY FULL",
    "ALTER TABLE {t} REPLICA IDENTITY DEFAULT",
    "ALTER TABLE {t} DROP CONSTRAINT {t}_pkey; ALTER TABLE {t} ADD PRIMARY KEY (id)",
    "VACUUM FULL {t}",
    "CLUSTER {t} USING {t}_pkey",
    "ALTER TABLE {t} ALTER COLUMN v SET DEFAULT {n}",
    "BEGIN; ALTER TABLE {t} ALTER COLUMN v TYPE int USING v * 3; ROLLBACK",
    "ALTER TABLE {t} ENABLE ROW LEVEL SECURITY",
]
WHILE_STOPPED = [
    "SELECT pg_replication_slot_advance('" + SLOT + "', pg_current_wal_lsn())",
    "SELECT pg_drop_replication_slot('"
    + SLOT
    + "'); SELECT pg_create_logical_replication_slot('"
    + SLOT
    + "', 'pgoutput')",
    "SELECT count(*) FROM pg_logical_slot_get_binary_changes('" + SLOT + "', NULL, NULL, 'proto_version', '1',"
    " 'publication_names', '" + PUBLICATION + "')",
]
"""Statements on the slot, which are only possible while capture is stopped."""


class History:
    """One random history on a database, with a capture that is stopped and started at random."""

    def __init__(self, seed: int, database: Database, folder: Path) -> None:
        self.random = random.Random(seed)
        self.database = database
        database.execute(TABLES)
        self.capture = Capture(database.url, folder / "log.db", "shop", tables=("public.t", "public.u"))
        self.runs = False
        self.done: list[str] = []

    def run(self) -> None:
        self.start()
        for _ in range(self.random.randrange(3, 9)):
            for _ in range(self.random.randrange(3)):
                self.do(self.random.choice(WRITES))
            pick = self.random.random()
            if pick < 0.3:
                self.stop() if self.runs else self.start()
            elif pick < 0.9:
                self.do(self.random.choice(INTERVENTIONS))
            elif not self.runs:
                self.do(self.random.choice(WHILE_STOPPED))
        self.do(WRITES[0])

    def do(self, statements: str) -> None:
        """Execute statements with random values; Postgres may reject them."""
        text = statements.format(t=self.random.choice("tu"), n=self.random.randrange(1000))
        self.done.append(text)
        with self.database.connect() as connection, suppress(psycopg.Error):
            for statement in text.split(";"):
                connection.execute(statement)

    def start(self) -> None:
        if self.capture.failure is None:
            self.done.append("-- start")
            self.capture.start()
            self.runs = True

    def stop(self) -> None:
        self.done.append("-- stop")
        with suppress(DefiniteError):
            self.capture.stop()
        self.runs = False

    def check(self, checks: list[Lsn]) -> None:
        if not self.runs:
            self.start()
        with self.database.connect() as connection:
            end = wal_flush_position(connection)
        with closing(SqliteLog(self.capture.log).reader()) as reader:
            until(lambda: self.failed() or reader.frontiers().durable >= end, "the log to reach the end")
            seen = len(checks)
            until(lambda: self.failed() or len(checks) >= seen + 3, "later checks of the catalogs")
            errors = {name.name: table.error for name, table in reader.tables().items()}
        if self.failed():
            assert isinstance(self.capture.failure, DefiniteError), self.capture.failure
            assert self.capture.failure.hint
            return
        for table in "tu":
            error = errors[table]
            if error is None:
                here = merged({}, self.capture.changes(table))
                query = f"SELECT attnum, attname FROM pg_attribute WHERE attrelid = '{table}'::regclass"
                present = dict(self.database.execute(f"{query} AND attnum > 0 AND NOT attisdropped"))
                # A dropped column keeps old values, and a renamed one its name.
                names = {name: present[n] for n, name in enumerate(("id", *"vsw"), 1) if n in present}
                rows = sorted(tuple(row[name] for name in names) for row in here.values())
                there = self.database.execute(f"SELECT {', '.join(names.values())} FROM {table}")
                assert rows == sorted(map(tuple, there)), table
            else:
                assert "RETRY TABLE" in error.hint

    def failed(self) -> bool:
        return self.capture.failure is not None


@pytest.mark.deep
@pytest.mark.parametrize("part", range(5))
def test_no_difference_is_unreported(
    part: int, postgres_server: EmbeddedPostgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checks = record_checks(monkeypatch)
    outcomes = {"source": 0, "table": 0, "equal": 0}
    for seed in range(part * HISTORIES, (part + 1) * HISTORIES):
        (tmp_path / str(seed)).mkdir()
        with created_database(postgres_server) as database:
            history = History(seed, database, tmp_path / str(seed))
            try:
                history.run()
                history.check(checks)
                outcomes[outcome(history)] += 1
            except BaseException as error:
                error.add_note(f"seed {seed}:\n" + "\n".join(history.done))
                raise
            finally:
                history.capture.failure = None
                history.capture.stop()
    print(f"part {part}: {outcomes}")
    assert outcomes["equal"] > 0, outcomes
    assert outcomes["table"] > 0, outcomes


def outcome(history: History) -> str:
    if history.failed():
        return "source"
    with closing(SqliteLog(history.capture.log).reader()) as reader:
        ended = any(table.error is not None for table in reader.tables().values())
    return "table" if ended else "equal"


def record_checks(monkeypatch: pytest.MonkeyPatch) -> list[Lsn]:
    """Make captures check the catalogs often; return the finished checks."""
    check, checks = publication_watch.PublicationWatch.check, list[Lsn]()

    def counted(
        self: publication_watch.PublicationWatch, connection: psycopg.Connection[object], durable: Lsn
    ) -> list[TableError]:
        found = check(self, connection, durable)
        checks.append(durable)
        return found

    monkeypatch.setattr(publication_watch, "_SECONDS", 0.05)
    monkeypatch.setattr(publication_watch.PublicationWatch, "check", counted)
    return checks


def test_check_detects_a_difference(database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The check fails for a row that is missing in the log."""
    checks = record_checks(monkeypatch)
    history = History(0, database, tmp_path)
    history.start()
    history.do("INSERT INTO t VALUES (1, 1, 'a')")
    history.check(checks)
    name = TableName("public", "t")
    monkeypatch.setattr(Capture, "changes", lambda *_: [] if name else None)
    with pytest.raises(AssertionError):
        history.check(checks)
    history.capture.stop()
