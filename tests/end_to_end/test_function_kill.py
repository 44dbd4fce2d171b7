"""kill -9 inside the function of a sink, under load: the same range again, and at the end a table equal to Postgres."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from penstock.home import Home
from penstock.positions import Lsn
from penstock.testing.waiting import until
from tests.conftest import Database
from tests.end_to_end.conftest import Penstock

pytestmark = pytest.mark.deep
SETUP = (
    "CREATE TABLE orders (id int PRIMARY KEY, amount int); INSERT INTO orders SELECT n, 0 FROM generate_series(1, 50) n"
)
KILLS = [1, 3, 4]
"""Inside the first call (the snapshot), inside a call of changes, and again inside its repetition."""
Range = tuple[str | None, str]


@dataclass
class FunctionHome(Penstock):
    """The program of `tests.end_to_end.function_home`."""

    calls: Path = field(init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.calls = self.home.with_suffix(".calls")

    def start(self) -> None:
        words = [str(self.home.absolute()), str(self.calls), json.dumps(KILLS)]
        with self.output.open("ab") as output:
            command = [sys.executable, "-m", "tests.end_to_end.function_home", *words]
            self.process = subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True)

    def found(self) -> list[tuple[Range, list[Any]]]:
        """Return the calls so far."""
        lines = self.calls.read_text(encoding="utf-8").splitlines() if self.calls.exists() else []
        return [((first, last), rows) for first, last, rows in map(json.loads, lines)]

    def table(self) -> dict[int, int]:
        """Apply the calls, each once."""
        table: dict[int, int] = {}
        for (first, _), rows in {tuple(found): rows for found, rows in self.found()}.items():
            assert first is None or table
            for _, _, _, old, new, amount in sorted(rows, key=lambda row: (Lsn.parse(row[0]), row[1] or 0)):
                if old is not None:
                    table.pop(old)
                if new is not None:
                    table[new] = amount
        return table


@pytest.fixture
def program(tmp_path: Path, database: Database) -> Iterator[FunctionHome]:
    database.execute(SETUP)
    home = Home(tmp_path / "home")
    home.create(database.url, "shop")
    made = FunctionHome(home.path, database.url)
    yield made
    if made.process is not None and made.process.poll() is None:
        made.kill()
    until(lambda: made.capture_pid() is None, "capture to end with the process that started it")


def write(database: Database, stop: threading.Event) -> None:
    """Change rows until the test ends."""
    with database.connect() as session:
        for number in range(100, 1_000_000):
            if stop.wait(0.05):
                return
            with session.transaction():
                session.execute("INSERT INTO orders VALUES (%s, 1)", [number])
                session.execute("UPDATE orders SET amount = amount + 1 WHERE id = %s", [number % 50 + 1])
                session.execute("DELETE FROM orders WHERE id = %s", [number - 10])


@pytest.mark.timeout(900)
def test_killed_calls_are_repeated(program: FunctionHome, database: Database) -> None:
    stop = threading.Event()
    load = threading.Thread(target=write, args=(database, stop))
    load.start()
    try:
        for kill in KILLS:
            program.start()
            assert program.process is not None
            assert program.process.wait(300) == -9, program.output.read_text()
            assert len(program.found()) == kill
        program.start()
        until(lambda: len(program.found()) >= KILLS[-1] + 3, "more calls")
    finally:
        stop.set()
        load.join()
    upstream = dict(database.execute("SELECT id, amount FROM orders"))
    until(lambda: program.table() == upstream, "the changes")
    program.require_running()
    calls = program.found()
    assert calls[0] == calls[1]
    assert calls[0][0][0] is None
    assert calls[2] == calls[3] == calls[4]
    ranges = list(dict.fromkeys(found for found, _ in calls))
    assert [first for first, _ in ranges[1:]] == [last for _, last in ranges[:-1]]
    assert len(ranges) == len(calls) - 3, "no other call was repeated"
    for (first, last), rows in calls[2:]:
        assert first is not None
        assert all(Lsn.parse(first) < Lsn.parse(row[0]) <= Lsn.parse(last) for row in rows)
