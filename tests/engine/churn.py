"""A continuous writer: inserts, updates, deletes, key changes, unchanged TOAST values, truncates.

Two tables: one with an integer key, one whose key is a text and an integer. The text has type citext, which sorts
a < B < c, unlike Spark and Python. The column `body` is stored out of line, so an UPDATE that does not set it does not
send it.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

import psycopg

TABLES = """
CREATE EXTENSION citext;
CREATE TABLE things (id int PRIMARY KEY, status text, body text);
CREATE TABLE pairs (name citext, n int, status text, body text, PRIMARY KEY (name, n));
ALTER TABLE things ALTER body SET STORAGE EXTERNAL;
ALTER TABLE pairs ALTER body SET STORAGE EXTERNAL;
"""
FILL = """
INSERT INTO things SELECT n, 'new', md5(n::text) || repeat('x', 2500) FROM generate_series(1, {rows}) n;
INSERT INTO pairs SELECT substr('aBcDeFgH', 1 + n % 8, 1) || substr('äZ1', 1 + n % 3, 1), n, 'new',
       md5(n::text) || repeat('y', 2500) FROM generate_series(1, {rows}) n;
"""


def fill(rows: int) -> str:
    """Return the statements that create and fill the tables."""
    return TABLES + FILL.format(rows=rows)


class Churn:
    """Writes in a thread during a ``with`` block."""

    def __init__(
        self, url: str, rows: int, seed: int = 0, *, truncates: bool = True, moves: bool = True, pause: float = 0.02
    ) -> None:
        self._pause = pause
        self._url = url
        self._rows = rows
        self._random = random.Random(seed)
        self._truncates = truncates
        self._moves = moves
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.transactions = 0
        self.error: BaseException | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()
        assert self.error is None, self.error

    def _run(self) -> None:
        try:
            with psycopg.connect(self._url) as connection:
                while not self._stop.wait(self._pause):
                    self._transaction(connection)
        except BaseException as error:
            self.error = error

    def _transaction(self, connection: psycopg.Connection[Any]) -> None:
        for _ in range(self._random.randint(1, 6)):
            self._choose()(connection)
        if self._random.random() < 0.1:
            connection.rollback()
        else:
            connection.commit()
        self.transactions += 1

    def _choose(self) -> Callable[[psycopg.Connection[Any]], None]:
        weights = {self._insert: 5, self._touch: 8, self._rewrite: 3, self._delete: 4, self._move: 6 * self._moves}
        if self._truncates and self._random.random() < 0.001:
            return self._truncate
        return self._random.choices(list(weights), list(weights.values()))[0]

    def _key(self) -> tuple[str, int]:
        name = self._random.choice("aBcDeFgH") + self._random.choice("äZ1")
        return name, self._random.randint(1, 2 * self._rows)

    def _insert(self, connection: psycopg.Connection[Any]) -> None:
        name, n = self._key()
        body = f"{self._random.random()}" + "i" * 2500
        connection.execute("INSERT INTO things VALUES (%s, 'in', %s) ON CONFLICT DO NOTHING", (n, body))
        connection.execute("INSERT INTO pairs VALUES (%s, %s, 'in', %s) ON CONFLICT DO NOTHING", (name, n, body))

    def _touch(self, connection: psycopg.Connection[Any]) -> None:
        """Update without setting `body`, so that it is not sent."""
        status, n = f"t{self._random.random()}", self._key()[1]
        connection.execute("UPDATE things SET status = %s WHERE id = %s", (status, n))
        connection.execute("UPDATE pairs SET status = %s WHERE n = %s", (status, n))

    def _rewrite(self, connection: psycopg.Connection[Any]) -> None:
        body, n = f"{self._random.random()}" + "r" * 2500, self._key()[1]
        connection.execute("UPDATE things SET body = %s WHERE id = %s", (body, n))
        connection.execute("UPDATE pairs SET body = %s WHERE n = %s", (body, n))

    def _delete(self, connection: psycopg.Connection[Any]) -> None:
        n = self._key()[1]
        connection.execute("DELETE FROM things WHERE id = %s", (n,))
        connection.execute("DELETE FROM pairs WHERE n = %s", (n,))

    def _move(self, connection: psycopg.Connection[Any]) -> None:
        """Change keys."""
        (name, n), (_, m) = self._key(), self._key()
        connection.execute(
            "UPDATE things SET id = %(n)s WHERE id = %(m)s AND NOT EXISTS (SELECT FROM things WHERE id = %(n)s)",
            {"n": n, "m": m},
        )
        connection.execute(
            "UPDATE pairs SET name = %(name)s, n = %(n)s WHERE (name, n) = (SELECT name, n FROM pairs WHERE n = %(m)s"
            " LIMIT 1) AND NOT EXISTS (SELECT FROM pairs WHERE name = %(name)s AND n = %(n)s)",
            {"name": name, "n": n, "m": m},
        )

    def _truncate(self, connection: psycopg.Connection[Any]) -> None:
        connection.execute(self._random.choice(["TRUNCATE things", "TRUNCATE pairs"]))
        connection.execute(
            "INSERT INTO things SELECT n, 'again', repeat('z', 2500) FROM generate_series(1, %s) n"
            " ON CONFLICT DO NOTHING",
            (self._rows // 3,),
        )
