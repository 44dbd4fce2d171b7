"""Windows over real tables: ranges and lists of keys, what they wait for, what they leave in the stream."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from typing import Any

import pytest
from psycopg.conninfo import make_conninfo

from penstock.errors import TableError, TransientError, UsageError
from penstock.model import TableName
from penstock.positions import Lsn
from penstock.sources.postgres.spec import PostgresSource
from penstock.sources.postgres.windows import Windows
from penstock.testing.waiting import until

NOBODY = threading.Event()


def told(_: str) -> None:
    """Nobody has to be told."""


@pytest.fixture
def windows(database: Any) -> Iterator[Callable[..., Windows]]:
    opened: list[Windows] = []

    def make(tables: str, settings: str = "", **options: Any) -> Windows:
        database.execute(tables)
        (config,) = PostgresSource.from_url(database.url, "shop", **options).create_instances(1)
        table = next(t for t in config.tables if t.name == TableName("public", "t"))
        config = config.model_copy(update={"connection": make_conninfo(config.connection, options=settings)})
        opened.append(Windows(config, table, uuid.uuid4().hex))
        return opened[-1]

    yield make
    for window in opened:
        window.close()


def all_ranges(windows: Windows, rows: int) -> list[list[Any]]:
    found, after = [], None
    while True:
        window = windows.range(after, rows)
        found.append(window.rows.column(0).to_pylist())
        if window.upto is None:
            return found
        after = window.upto


def test_ranges_hold_every_row_once(windows: Callable[..., Windows]) -> None:
    rows = "INSERT INTO t SELECT n, n FROM generate_series(1, 25) n"
    made = windows(f"CREATE TABLE t (id int PRIMARY KEY, v text); {rows}")
    found = all_ranges(made, 10)
    assert [len(part) for part in found] == [10, 10, 5]
    assert sorted(chain.from_iterable(found)) == list(range(1, 26))


@pytest.mark.parametrize(("rows", "parts"), [(0, [0]), (1, [1]), (10, [10, 0]), (11, [10, 1])])
def test_tables_that_end_with_a_range(windows: Callable[..., Windows], rows: int, parts: list[int]) -> None:
    made = windows(f"CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t SELECT generate_series(1, {rows})")
    assert [len(part) for part in all_ranges(made, 10)] == parts


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("citext", "'a', 'B', 'c', 'D', '''', '\\', ''"),
        ("size", "'small', 'medium', 'large'"),
        ("numeric", "'NaN', '-1.50', '1e20', 'Infinity'"),
        ("float8", "'NaN', '-0.0', '1e-300', '0.1'"),
        ("timestamptz", "'-infinity', '2026-01-01', 'infinity', '0044-03-15 BC'"),
        ("bytea", "'', '\\x00', '\\xff00'"),
        ("char(4)", "'a', 'b ', 'c'"),
        ("uuid", "gen_random_uuid(), gen_random_uuid(), gen_random_uuid()"),
        ("int4range", "'[1,5)', 'empty', '[2,3)'"),
    ],
)
def test_keys_of_any_order(database: Any, windows: Callable[..., Windows], kind: str, values: str) -> None:
    database.execute("CREATE EXTENSION citext; CREATE TYPE size AS ENUM ('small', 'medium', 'large')")
    made = windows(
        f"CREATE TABLE t (id int, k {kind} PRIMARY KEY); "
        f"INSERT INTO t SELECT row_number() OVER (), v::{kind} FROM unnest(ARRAY[{values}]) v",
        text_columns=("public.t.k",),
    )
    found = list(chain.from_iterable(all_ranges(made, 1)))
    assert len(found) == len(set(found)) == database.execute("SELECT count(*) FROM t")[0][0]


def test_composite_keys_in_their_order(windows: Callable[..., Windows]) -> None:
    made = windows(
        "CREATE TABLE t (n int, a text, b int, PRIMARY KEY (a, b));"
        "INSERT INTO t SELECT n, chr(97 + n % 3), n FROM generate_series(1, 20) n"
    )
    assert sorted(chain.from_iterable(all_ranges(made, 3))) == list(range(1, 21))


def test_lists_of_keys_and_what_is_not_there(windows: Callable[..., Windows]) -> None:
    made = windows("CREATE TABLE t (a text, b int, v text, PRIMARY KEY (a, b)); INSERT INTO t VALUES ('x', 1, 'one')")
    keys = [("x", "1"), ("x", "2"), ("it's", "1")]
    assert made.keyed(keys).rows.to_pylist() == [{"a": "x", "b": 1, "v": "one"}]
    assert made.key_values(keys).to_pylist() == [{"a": a, "b": int(b)} for a, b in keys]
    assert made.keyed([]).rows.num_rows == 0
    assert made.key_values([]).num_rows == 0


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5])
def test_many_keys_are_read_in_batches(
    windows: Callable[..., Windows], monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    monkeypatch.setattr("penstock.sources.postgres.windows._KEYS_AT_ONCE", 2)
    made = windows("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t SELECT generate_series(1, 6)")
    keys, ids = [(str(n),) for n in range(1, count + 1)], [{"id": n} for n in range(1, count + 1)]
    assert sorted(made.keyed(keys).rows.to_pylist(), key=lambda row: row["id"]) == ids
    assert made.key_values(keys).to_pylist() == ids


def test_rows_by_a_condition(windows: Callable[..., Windows]) -> None:
    rows = "INSERT INTO t VALUES (1, 'a{b}'), (2, '%s'), (3, NULL)"
    made = windows(f"CREATE SEQUENCE s; CREATE TABLE t (id int PRIMARY KEY, v text); {rows}")
    assert made.chosen("v LIKE 'a{%' OR v = '%s'") == [("1",), ("2",)]
    for wrong in ("nothing = 1", "v =", "id = 'x'", "id = 1) OR (SELECT", "id = 1; DROP TABLE t", "id = nextval('s')"):
        with pytest.raises(UsageError, match="does not take this condition"):
            made.chosen(wrong)


def test_a_window_reads_one_moment_and_writes_nothing_but_its_marks(
    database: Any, windows: Callable[..., Windows]
) -> None:
    made = windows("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)")
    database.execute("SELECT pg_create_logical_replication_slot('s', 'test_decoding')")
    window = made.range(None, 10)
    marks = [
        row[0]
        for row in database.execute("SELECT data FROM pg_logical_slot_peek_changes('s', NULL, NULL)")
        if row[0].startswith("message")
    ]
    assert len(marks) == 2
    assert '"low"' in marks[0]
    assert '"high"' in marks[1]
    assert window.high <= Lsn.parse(database.execute("SELECT pg_current_wal_insert_lsn()::text")[0][0])
    database.execute("SELECT pg_drop_replication_slot('s')")


def test_beginning_waits_for_transactions_that_were_running(database: Any, windows: Callable[..., Windows]) -> None:
    made = windows("CREATE TABLE t (id int PRIMARY KEY)", snapshot_wait="1 s")
    with database.connect(autocommit=False) as open_transaction:
        open_transaction.execute("INSERT INTO t VALUES (1)")
        with pytest.raises(TransientError, match=f"pid {open_transaction.info.backend_pid}"):
            made.begin(told, NOBODY)
        open_transaction.commit()
    before = Lsn.parse(database.execute("SELECT pg_current_wal_insert_lsn()::text")[0][0])
    assert made.begin(told, NOBODY) >= before


def test_a_table_without_a_key_is_refused_with_the_alternative(windows: Callable[..., Windows]) -> None:
    with pytest.raises(TableError, match="no key") as refused:
        windows("CREATE TABLE t (id int); ALTER TABLE t REPLICA IDENTITY FULL")
    assert "parallel" in refused.value.hint


def test_timeouts_of_the_role_do_not_end_a_window(windows: Callable[..., Windows]) -> None:
    made = windows(
        "CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t SELECT generate_series(1, 300000)",
        settings="-c statement_timeout=20ms -c idle_in_transaction_session_timeout=20ms",
    )
    assert made.range(None, 300_001).rows.num_rows == 300_000


def test_a_window_that_waits_for_a_rewrite_sees_what_it_left(database: Any, windows: Callable[..., Windows]) -> None:
    """To a moment before the rewrite the table would look empty, and nothing in the stream would say so."""
    made = windows("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t SELECT generate_series(1, 5)")
    waiting = (
        "SELECT 1 FROM pg_stat_activity WHERE application_name LIKE 'penstock window %' AND wait_event_type = 'Lock'"
    )
    with ThreadPoolExecutor() as pool, database.connect() as other:
        other.execute("BEGIN")
        other.execute("ALTER TABLE t ALTER id TYPE int USING id + 0")
        reading = pool.submit(made.range, None, 10)
        until(lambda: reading.done() or database.execute(waiting), "the window to wait for the lock")
        assert not reading.done()
        other.execute("COMMIT")
        assert reading.result().rows.num_rows == 5
