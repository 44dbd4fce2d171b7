"""Kills a process before and after every step that lasts, whoever takes it: nothing has to be listed, or can be missed.

::

    prepare ─▶ the action, in a process of its own, not killed ─▶ how many steps it takes
    for each step:  prepare ─▶ the action, killed at this step ─▶ whoever asked looks at what is left

Steps that last are commits of SQLite (the catalog, an embedded log), statements that change something in Postgres, ends
of transactions there, and folders and files that come or go.
"""

from __future__ import annotations

import multiprocessing
import os
import re
import signal
import sqlite3
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg

__all__ = ["killed_at_each_step"]

_PROCESSES = multiprocessing.get_context("forkserver")
_PROCESSES.set_forkserver_preload([__name__, "penstock.control.home", "penstock.control.altering"])
_HARMLESS = re.compile(r"\s*(SELECT|SHOW|IDENTIFY_SYSTEM|SET|WITH|BEGIN)\b", re.IGNORECASE)
_CHANGING = re.compile(r"pg_(create|drop|advance)_?\w*replication_slot|pg_create_logical", re.IGNORECASE)
_FILES = ("os.mkdir", "os.remove", "os.rename", "os.rmdir", "shutil.rmtree")
_FOREVER = 1 << 30

Action = Callable[..., object]


def killed_at_each_step(action: Action, *args: Any, notes: Path, prepare: Callable[[], object]) -> Iterator[str]:
    """Do `action` again and again, killed a step later each time; yield the name of that step."""
    prepare()
    count = len(_do(action, args, notes, None))
    assert count > 1
    for step in range(count):
        prepare()
        yield _do(action, args, notes, step)[-1]


def _do(action: Action, args: tuple[Any, ...], notes: Path, kill_at: int | None) -> list[str]:
    """Do it in a process of its own; return the names of the steps that it came to."""
    notes.unlink(missing_ok=True)
    process = _PROCESSES.Process(target=_child, args=(action, args, notes, _FOREVER if kill_at is None else kill_at))
    process.start()
    process.join()
    assert process.exitcode == (0 if kill_at is None else -signal.SIGKILL), (kill_at, notes.read_text())
    return notes.read_text().splitlines()


def _child(action: Action, args: tuple[Any, ...], notes: Path, kill_at: int) -> None:
    steps = _Steps(notes, kill_at)
    _watch_sqlite(steps)
    _watch_postgres(steps)
    sys.addaudithook(lambda event, told: steps.take(f"{event} {told[0]}") if event in _FILES else None)
    steps.armed = True
    action(*args)
    steps.armed = False


class _Steps:
    def __init__(self, notes: Path, kill_at: int) -> None:
        self._notes = notes.open("a", encoding="utf-8")
        self._left = kill_at
        self.armed = False

    def take(self, name: str) -> None:
        """Note a step; die at it, if it is the one."""
        if not self.armed:
            return
        self._notes.write(" ".join(name.split()) + "\n")
        self._notes.flush()
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        self._left -= 1

    @contextmanager
    def around(self, name: str) -> Iterator[None]:
        """Two steps: before something, and after it."""
        self.take(f"before {name}")
        yield
        self.take(f"after {name}")


def _watch_sqlite(steps: _Steps) -> None:
    connect = sqlite3.connect

    class Connection(sqlite3.Connection):
        def execute(self, statement: str, *args: Any) -> sqlite3.Cursor:
            if statement != "COMMIT":
                return super().execute(statement, *args)
            (_, _, path) = super().execute("PRAGMA database_list").fetchone()
            with steps.around(f"commit in {Path(path).name}"):
                return super().execute(statement, *args)

    sqlite3.connect = lambda *args, **options: connect(*args, **{"factory": Connection, **options})  # type: ignore[assignment]


def _watch_postgres(steps: _Steps) -> None:
    execute, transaction = psycopg.Connection.execute, psycopg.Connection.transaction
    changed = set[int]()

    def watched(self: psycopg.Connection[Any], query: Any, *args: Any, **options: Any) -> psycopg.Cursor[Any]:
        text = query if isinstance(query, str) else query.as_string(self)
        if _HARMLESS.match(text) and not _CHANGING.search(text):
            return execute(self, query, *args, **options)
        changed.add(id(self))
        with steps.around(text):
            return execute(self, query, *args, **options)

    @contextmanager
    def whole(self: psycopg.Connection[Any], *args: Any, **options: Any) -> Iterator[Any]:
        changed.discard(id(self))
        with transaction(self, *args, **options) as opened:
            yield opened
        if id(self) in changed:
            steps.take("after the transaction")

    psycopg.Connection.execute = watched  # type: ignore[method-assign]
    psycopg.Connection.transaction = whole  # type: ignore[method-assign,assignment]
