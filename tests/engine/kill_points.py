"""Kills a process before each durable step, and at its end. Steps are detected, so no test has to list them.

::

    for each step:  prepare ─▶ run the action in a child process, killed at the step ─▶ the test checks what is left

Durable steps are SQLite commits (of the catalog or an embedded log), statements that change something in Postgres, and
files and folders that are created or removed. Nothing durable changes between two steps: the state after one is the
state before the next.
"""

from __future__ import annotations

import itertools
import os
import re
import signal
import sqlite3
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
from tests.forks import FORKS

from penstock.testing.waiting import until

__all__ = ["killed_at", "killed_at_each_step", "killed_when"]

_HARMLESS = re.compile(r"\s*(SELECT|SHOW|IDENTIFY_SYSTEM|SET|WITH|BEGIN)\b", re.IGNORECASE)
_CHANGING = re.compile(r"pg_(create|drop|advance)_?\w*replication_slot|pg_create_logical", re.IGNORECASE)
_FILES = ("os.mkdir", "os.remove", "os.rename", "os.rmdir", "shutil.rmtree")
_END = "the end"

Action = Callable[..., object]


def killed_at_each_step(action: Action, *args: Any, notes: Path, prepare: Callable[[], object]) -> Iterator[str]:
    """Run `action` repeatedly, each time killed one step later; yield the name of that step."""
    for number in itertools.count():
        prepare()
        step = killed_at(number, action, *args, notes=notes)
        yield step
        if step == _END:
            return


def killed_at(number: int, action: Action, *args: Any, notes: Path) -> str:
    """Run `action` in a child process that is killed at a step; return the name of the step."""
    notes.unlink(missing_ok=True)
    process = FORKS.Process(target=_child, args=(action, args, notes, number))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    return notes.read_text().splitlines()[-1]


def killed_when(reached: Callable[[], bool], action: Action, *args: Any) -> None:
    """Run `action` in a child process that is killed in the middle of a step: as soon as `reached` returns true."""
    process = FORKS.Process(target=action, args=args)
    process.start()

    def reached_it() -> bool:
        alive = process.is_alive()
        found = reached()
        assert found or alive, "the process ended before it reached the step"
        return found

    until(reached_it, "the middle of a step")
    process.kill()
    process.join()


def _child(action: Action, args: tuple[Any, ...], notes: Path, kill_at: int) -> None:
    steps = _Steps(notes, kill_at)
    _watch_sqlite(steps)
    _watch_postgres(steps)
    sys.addaudithook(lambda event, arguments: _watch_file(steps, event, *arguments))
    steps.armed = True
    action(*args)
    steps.take(_END)


class _Steps:
    def __init__(self, notes: Path, kill_at: int) -> None:
        self._notes = notes.open("a", encoding="utf-8")
        self._left = kill_at
        self.armed = False

    def take(self, name: str) -> None:
        """Record a step; kill the process if it is the step to kill at."""
        if not self.armed:
            return
        self._notes.write(" ".join(name.split()) + "\n")
        self._notes.flush()
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        self._left -= 1


def _watch_file(steps: _Steps, event: str, *arguments: Any) -> None:
    if event in _FILES and not (event == "os.mkdir" and Path(arguments[0]).exists()):
        steps.take(f"{event} {arguments[0]}")


def _watch_sqlite(steps: _Steps) -> None:
    connect = sqlite3.connect

    class Connection(sqlite3.Connection):
        def execute(self, statement: str, *args: Any) -> sqlite3.Cursor:
            if statement == "COMMIT":
                (_, _, path) = super().execute("PRAGMA database_list").fetchone()
                steps.take(f"commit in {Path(path).name}")
            return super().execute(statement, *args)

    sqlite3.connect = lambda *args, **options: connect(*args, **{"factory": Connection, **options})


def _watch_postgres(steps: _Steps) -> None:
    execute = psycopg.Connection.execute

    def execute_watched(self: psycopg.Connection[Any], query: Any, *args: Any, **options: Any) -> psycopg.Cursor[Any]:
        text = query if isinstance(query, str) else query.as_string(self)
        if not _HARMLESS.match(text) or _CHANGING.search(text):
            steps.take(text)
        return execute(self, query, *args, **options)

    psycopg.Connection.execute = execute_watched  # type: ignore[method-assign]
