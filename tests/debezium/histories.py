"""Two reproducible histories of a database: tables of all types, and a bank.

``types``: a table with a column of each type, and one whose keys change, in concurrent transactions and by COPY.
``bank``: accounts in two tables and transfers between them, whose sum is the same after every transaction.
"""

from __future__ import annotations

import time
from random import Random
from typing import Any

import psycopg
from tests.debezium.recording import Rows, canonical

TYPES = ("public.typed", "public.moved")
BANK = ("public.checking", "public.savings")
ACCOUNTS, START = 6, 100
"""Accounts in each table of the bank, and the initial balance of each account."""
TYPED = """
    CREATE TABLE typed (
        id int, part text, PRIMARY KEY (id, part),
        flag boolean, small smallint, big bigint, single real, double float8,
        price numeric(20,4), free numeric, huge numeric(60,10),
        words text, data bytea, day date, clock time, local timestamp, local3 timestamp(3), moment timestamptz,
        own uuid, doc jsonb, bits bit(11), place point,
        numbers int[], names text[], times timestamp[], prices numeric(10,2)[]
    )
"""
ROWS = """
    INSERT INTO typed SELECT i, 'p' || i % 2, i % 3 = 0, -i, 9007199254740993 + i, i / 8.0, 0.1 * i,
        (i - 5) * 1234.5678, (i - 5) / 7.0, 1e40 + i, CASE i % 4 WHEN 0 THEN NULL WHEN 1 THEN '' ELSE 'ä' || i END,
        decode(lpad(to_hex(i * 37), 4, '0'), 'hex'), '1999-12-31'::date + i * 777,
        '00:00'::time + i * interval '3723.040506 s', '1969-12-31 23:59:59.999999'::timestamp + i * interval '1 hour',
        '2026-03-29 01:59:59.123'::timestamp(3) + i * interval '1 day',
        '1883-11-18 12:00:00.000001+00'::timestamptz + i * interval '7 years',
        md5(i::text)::uuid, jsonb_build_object('n', i), (i * 91)::bit(11), point(i, -i),
        ARRAY[i, NULL, -i], ARRAY['x' || i, NULL], ARRAY['2026-01-01'::timestamp + i * interval '1.5 s'],
        ARRAY[i / 4.0, NULL]
    FROM generate_series({first}, {last}) i
"""
PLAIN = ("id", "part", "flag", "small", "big", "single", "double", "words", "own", "doc", "numbers", "names")
"""The columns of `typed` that plain JSON represents unchanged; it has no logical types."""
COMPARED = {
    "public.typed": [
        *PLAIN,
        *("price", "free", "data", "day", "clock", "local", "local3", "moment", "times", "prices"),
    ],
    "public.moved": ["id", "n", "text"],
    **{table: ["id", "slot", "balance"] for table in BANK},
}
"""The columns of each table that are compared with those of Postgres."""
_AS_TEXT = {
    **{name: f"{name}::text" for name in ("own", "doc", "clock")},
    "free": "trim_scale(free)::text",
    "moment": "moment AT TIME ZONE 'UTC'",
}


def make_types(url: str) -> None:
    """Create the tables of `types` with the rows that Debezium copies."""
    with psycopg.connect(url) as connection:
        connection.execute(TYPED)
        connection.execute("CREATE TABLE moved (id int PRIMARY KEY, n int, text text)")
        for table in TYPES:
            connection.execute(f"ALTER TABLE {table} REPLICA IDENTITY FULL")
        connection.execute(ROWS.format(first=1, last=9))
        connection.execute("INSERT INTO moved SELECT i, i, 'first' FROM generate_series(1, 20) i")


def change_types(url: str, number: int) -> None:
    """Change both tables, including keys: in concurrent transactions and by COPY. `number` distinguishes the rounds."""
    random = Random(number)
    with psycopg.connect(url) as one, psycopg.connect(url) as other:
        one.execute("UPDATE typed SET price = price + 1, words = 'other', times = NULL WHERE id % 4 = 0")
        one.execute("UPDATE typed SET part = part || 'x' WHERE id = 3")
        one.execute("DELETE FROM typed WHERE id = 5")
        first = 10 + 3 * number
        one.execute(ROWS.format(first=first, last=first + 2))
        one.commit()
        for turn in range(4):
            free = 1000 + random.randint(0, 10**8)
            lower, upper = (random.randint(1, 5) for _ in range(2))
            one.execute("INSERT INTO moved VALUES (%s, 1, 'one')", [free])
            other.execute("INSERT INTO moved VALUES (%s, 2, 'other')", [free + 1])
            one.execute("UPDATE moved SET n = n + 1 WHERE id <= %s AND id > 0", [lower])
            other.execute("UPDATE moved SET n = n * 2 WHERE id BETWEEN 11 AND %s", [10 + upper])
            if turn == 2:
                other.rollback()
            other.commit()
            one.execute("UPDATE moved SET id = -id WHERE id = %s OR id = %s", [free + 1, lower])
            one.execute("DELETE FROM moved WHERE id = %s", [-free - 1])
            one.commit()
        with one.cursor().copy("COPY moved (id, n, text) FROM STDIN") as copy:
            for n in range(10):
                copy.write_row((10**9 + 100 * number + n, n, "copied"))


def make_bank(url: str) -> None:
    """Create the tables of `bank`."""
    with psycopg.connect(url) as connection:
        connection.execute("CREATE SEQUENCE ids")
        for table in BANK:
            create_table = f"CREATE TABLE {table} (id int PRIMARY KEY DEFAULT nextval('ids'), slot int, balance int)"
            connection.execute(create_table)
            connection.execute(f"ALTER TABLE {table} REPLICA IDENTITY FULL")
            connection.execute(
                f"INSERT INTO {table} (slot, balance) SELECT n, {START} FROM generate_series(0, {ACCOUNTS - 1}) n"
            )


def reset_bank(url: str) -> None:
    """Reset every account to its initial balance in one transaction: the history after it is the same in each run."""
    with psycopg.connect(url) as connection:
        for table in BANK:
            connection.execute(f"UPDATE {table} SET balance = {START}")


class Tellers:
    """Three sessions whose transactions overlap and never wait for each other."""

    def __init__(self, url: str, seed: int, *, keys_change: bool) -> None:
        self._random, self._keys_change = Random(seed), keys_change
        self._sessions = [psycopg.connect(url) for _ in range(3)]
        self._left = [0] * len(self._sessions)
        """The remaining transfers of each session's open transaction."""
        self._locked: list[set[tuple[str, int]]] = [set() for _ in self._sessions]

    def close(self) -> None:
        """End the sessions."""
        for session in self._sessions:
            session.close()

    def work(self, transactions: int, pause: float = 0.0) -> None:
        """Commit a number of transactions, with a pause after each."""
        for _ in range(transactions):
            number = self._random.randrange(len(self._sessions))
            while not self._step(number):
                number = self._random.randrange(len(self._sessions))
            time.sleep(pause)
        for number, locked in enumerate(self._locked):
            locked.clear()
            self._left[number] = 0
            self._sessions[number].rollback()

    def _step(self, number: int) -> bool:
        """Let one session take a step; return whether it committed."""
        session, locked = self._sessions[number], self._locked[number]
        if not locked:
            self._left[number] = self._random.choice([1, 1, 2])
        if self._left[number]:
            self._left[number] -= 1
            for amount in (-3, 3):
                table, slot = self._account(number)
                session.execute(f"UPDATE {table} SET balance = balance + {amount} WHERE slot = {slot}")
            return False
        if self._keys_change and self._random.random() < 0.3:
            table, slot = self._account(number)
            session.execute(f"UPDATE {table} SET id = nextval('ids') WHERE slot = {slot}")
        session.commit()
        locked.clear()
        return True

    def _account(self, number: int) -> tuple[str, int]:
        """Choose an account that no other session has changed, and lock it."""
        others = {one for place, locked in enumerate(self._locked) if place != number for one in locked}
        accounts = [(table, slot) for table in BANK for slot in range(ACCOUNTS)]
        chosen = self._random.choice([one for one in accounts if one not in others])
        self._locked[number].add(chosen)
        return chosen


def rows_of(url: str, table: str) -> Rows:
    """Return the rows of a table, in their canonical form and in a fixed order."""
    columns = COMPARED[table]
    with psycopg.connect(url) as connection:
        query = f"SELECT {', '.join(_AS_TEXT.get(name, name) for name in columns)} FROM {table} ORDER BY id"
        found: list[Any] = connection.execute(query).fetchall()
    return Rows(columns, [canonical(row) for row in found])
