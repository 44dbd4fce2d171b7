"""A capture in a thread, against a real server, and the contents of its change log as plain rows."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from penstock.changelog.sqlite.log import SqliteLog, SqliteLogReader
from penstock.changelog.user_rows import changes
from penstock.errors import TableError, TransientError
from penstock.model import TableName
from penstock.positions import Lsn
from penstock.sources.postgres.config import PostgresInstanceConfig
from penstock.sources.postgres.instance import PostgresInstance
from penstock.sources.postgres.replication import publication_watch
from penstock.sources.postgres.spec import PostgresSource
from penstock.testing.waiting import PATIENCE, until

Change = dict[str, Any]


def check_publication_often(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Make captures check their publication often; return a function that waits for a check that has not begun yet."""
    check, checks = publication_watch.PublicationWatch.check, list[Lsn]()

    def counted(self: publication_watch.PublicationWatch, connection: Any, durable: Lsn) -> list[TableError]:
        found = check(self, connection, durable)
        checks.append(durable)
        return found

    def wait() -> None:
        finished = len(checks)
        until(lambda: len(checks) >= finished + 2, "checks of the publication")

    monkeypatch.setattr(publication_watch, "_SECONDS", 0.1)
    monkeypatch.setattr(publication_watch.PublicationWatch, "check", counted)
    return wait


class Capture:
    """Captures a database into a log of its own; can be stopped and started again."""

    def __init__(self, url: str, log: Path, name: str, **options: Any) -> None:
        self.source = PostgresSource.from_url(url, name, **options)
        self.config: PostgresInstanceConfig = self.source.create_instances(1)[0].prepare()
        self.log = log
        SqliteLog(log).create(self.config.start())
        self.failure: BaseException | None = None
        self.transient: list[TransientError] = []
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self.folder: Path | None = None
        """The folder for the state that other processes read."""
        self.instance = PostgresInstance(self.config, SqliteLog(log))

    def start(self) -> None:
        """Run, and again after each transient error, as the capture process does; return when connected."""
        self._stop, connected = threading.Event(), threading.Event()
        self.failure = None
        self.instance = PostgresInstance(self.config, SqliteLog(self.log), self.folder)
        self._thread = threading.Thread(target=self._run, args=(connected,))
        self._thread.start()
        until(lambda: connected.is_set() or self.failure is not None, "a connection")

    def _run(self, connected: threading.Event) -> None:
        while not self._stop.is_set():
            try:
                self.instance.run(self._stop, partial(self._connected, connected))
            except TransientError as error:
                self.transient.append(error)
                self._stop.wait(0.1)
            except BaseException as error:
                self.failure = error
                return

    def _connected(self, connected: threading.Event) -> None:
        self.config = self.instance.config()
        connected.set()

    def stop(self) -> None:
        """End the thread; raise its error if it failed."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(PATIENCE)
            assert not self._thread.is_alive()
            self._thread = None
        if self.failure is not None:
            raise self.failure

    def wait(self, lsn: Lsn) -> None:
        """Wait until the log is complete up to a position."""
        with closing(SqliteLogReader(self.log)) as reader:
            until(lambda: self.failure is not None or reader.frontiers().durable >= lsn, f"the log at {lsn}")
        if self.failure is not None:
            raise self.failure

    def durable(self) -> Lsn:
        with closing(SqliteLogReader(self.log)) as reader:
            return reader.frontiers().durable

    def changes(self, table: str, after: Lsn = Lsn.ZERO) -> list[Change]:
        """All changes of ``public.TABLE``."""
        with closing(SqliteLogReader(self.log)) as reader:
            name = TableName("public", table)
            batches = [
                changes(images)
                for images in reader.read(
                    reader.extent(name, max(after, reader.frontiers().valid), reader.frontiers().durable)
                )
            ]
        for batch in batches:
            batch.validate(full=True)
        found = [row for batch in batches for row in batch.to_pylist()]
        positions = [(Lsn.parse(row["_lsn"]), row["_ordinal"]) for row in found]
        assert positions == sorted(set(positions))
        return found

    def error(self, table: str) -> TableError | None:
        with closing(SqliteLogReader(self.log)) as reader:
            return reader.tables()[TableName("public", table)].error


def merged(rows: dict[Any, Change], found: list[Change], key: str = "id") -> dict[Any, Change]:
    """Apply changes to rows by key, the way apply does."""
    rows = dict(rows)
    for change in found:
        before, after = change["before"], change["after"]
        if change["_op"] == "truncate":
            rows.clear()
        elif change["_op"] == "delete":
            del rows[before[key]]
        elif change["_op"] == "insert":
            assert after[key] not in rows
            rows[after[key]] = after
        else:
            old = rows.pop(before[key] if before else after[key])
            kept = {column: old[column] for column in change["_unchanged"] or ()}
            rows[after[key]] = {**after, **kept}
    return rows
