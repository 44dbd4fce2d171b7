"""WindowReader on real tables: ranges and lists of keys, waiting for transactions, and watermarks in the stream."""

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
from penstock.sources.postgres.snapshot.watermark_windows import WindowReader
from penstock.sources.postgres.spec import PostgresSource
from penstock.testing.waiting import until

NEVER_STOP = threading.Event()


def ignore_report(_: str) -> None:
    """Discard a progress report."""


@pytest.fixture
def windows(database: Any) -> Iterator[Callable[..., WindowReader]]:
    opened: list[WindowReader] = []

    def make(tables: str, settings: str = "", **options: Any) -> WindowReader:
        database.execute(tables)
        (config,) = PostgresSource.from_url(database.url, "shop", **options).create_instances(1)
        table = next(t for t in config.tables if t.name == TableName("public", "t"))
        config = config.model_copy(update={"connection": make_conninfo(config.connection, options=settings)})
        opened.append(WindowReader(config, table, uuid.uuid4().hex))
        return opened[-1]

    yield make
    for window in opened:
        window.close()


def all_ranges(windows: WindowReader, rows: int) -> list[list[Any]]:
    found, after = [], None
    while True:
        window = windows.read_range(after, rows)
        found.append(window.rows.column(0).to_pylist())
        if window.upto is None:
            return found
        after = window.upto


def test_ranges_contain_every_row_once(windows: Callable[..., WindowReader]) -> None:
    rows = "INSERT INTO t SELECT n, n FROM generate_series(1, 25) n"
    made = windows(f"CREATE TABLE t (id int PRIMARY KEY, v text); {rows}")
    found = all_ranges(made, 10)
    assert [len(part) for part in found] == [10, 10, 5]
    assert sorted(chain.from_iterable(found)) == list(range(1, 26))


@pytest.mark.parametrize(("rows", "parts"), [(0, [0]), (1, [1]), (10, [10, 0]), (11, [10, 1])])
def test_range_boundaries_at_the_end_of_a_table(
    windows: Callable[..., WindowReader], rows: int, parts: list[int]
) -> None:
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
def test_keys_of_any_type(database: Any, windows: Callable[..., WindowReader], kind: str, values: str) -> None:
    database.execute("CREATE EXTENSION citext; CREATE TYPE size AS ENUM ('small', 'medium', 'large')")
    made = windows(
        f"CREATE TABLE t (id int, k {kind} PRIMARY KEY); "
        f"INSERT INTO t SELECT row_number() OVER (), v::{kind} FROM unnest(ARRAY[{values}]) v",
        text_columns=("public.t.k",),
    )
    found = list(chain.from_iterable(all_ranges(made, 1)))
    assert len(found) == len(set(found)) == database.execute("SELECT count(*) FROM t")[0][0]


def test_composite_keys(windows: Callable[..., WindowReader]) -> None:
    made = windows(
        "CREATE TABLE t (n int, a text, b int, PRIMARY KEY (a, b));"
        "INSERT INTO t SELECT n, chr(97 + n % 3), n FROM generate_series(1, 20) n"
    )
    assert sorted(chain.from_iterable(all_ranges(made, 3))) == list(range(1, 21))


def test_lists_of_keys_with_missing_rows(windows: Callable[..., WindowReader]) -> None:
    made = windows("CREATE TABLE t (a text, b int, v text, PRIMARY KEY (a, b)); INSERT INTO t VALUES ('x', 1, 'one')")
    keys = [("x", "1"), ("x", "2"), ("it's", "1")]
    assert made.read_keys(keys).rows.to_pylist() == [{"a": "x", "b": 1, "v": "one"}]
    assert made.key_values(keys).to_pylist() == [{"a": a, "b": int(b)} for a, b in keys]
    assert made.read_keys([]).rows.num_rows == 0
    assert made.key_values([]).num_rows == 0


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5])
def test_many_keys_are_read_in_batches(
    windows: Callable[..., WindowReader], monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    monkeypatch.setattr("penstock.sources.postgres.snapshot.watermark_windows._KEYS_AT_ONCE", 2)
    made = windows("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t SELECT generate_series(1, 6)")
    keys, ids = [(str(n),) for n in range(1, count + 1)], [{"id": n} for n in range(1, count + 1)]
    assert sorted(made.read_keys(keys).rows.to_pylist(), key=lambda row: row["id"]) == ids
    assert made.key_values(keys).to_pylist() == ids


def test_find_keys_by_condition(windows: Callable[..., WindowReader]) -> None:
    rows = "INSERT INTO t VALUES (1, 'a{b}'), (2, '%s'), (3, NULL)"
    made = windows(f"CREATE SEQUENCE s; CREATE TABLE t (id int PRIMARY KEY, v text); {rows}")
    assert made.find_keys("v LIKE 'a{%' OR v = '%s'") == [("1",), ("2",)]
    for wrong in ("nothing = 1", "v =", "id = 'x'", "id = 1) OR (SELECT", "id = 1; DROP TABLE t", "id = nextval('s')"):
        with pytest.raises(UsageError, match="rejects this condition"):
            made.find_keys(wrong)


def test_window_writes_only_its_two_watermarks(database: Any, windows: Callable[..., WindowReader]) -> None:
    made = windows("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)")
    database.execute("SELECT pg_create_logical_replication_slot('s', 'test_decoding')")
    window = made.read_range(None, 10)
    watermarks = [
        row[0]
        for row in database.execute("SELECT data FROM pg_logical_slot_peek_changes('s', NULL, NULL)")
        if row[0].startswith("message")
    ]
    assert len(watermarks) == 2
    assert '"low"' in watermarks[0]
    assert '"high"' in watermarks[1]
    assert window.high <= Lsn.parse(database.execute("SELECT pg_current_wal_insert_lsn()::text")[0][0])
    database.execute("SELECT pg_drop_replication_slot('s')")


def test_begin_waits_for_running_transactions(database: Any, windows: Callable[..., WindowReader]) -> None:
    made = windows("CREATE TABLE t (id int PRIMARY KEY)", snapshot_wait="1 s")
    with database.connect(autocommit=False) as open_transaction:
        open_transaction.execute("INSERT INTO t VALUES (1)")
        with pytest.raises(TransientError, match=f"pid {open_transaction.info.backend_pid}"):
            made.begin(ignore_report, NEVER_STOP)
        open_transaction.commit()
    before = Lsn.parse(database.execute("SELECT pg_current_wal_insert_lsn()::text")[0][0])
    assert made.begin(ignore_report, NEVER_STOP) >= before


def test_keyless_table_is_rejected_with_a_hint(windows: Callable[..., WindowReader]) -> None:
    with pytest.raises(TableError, match="no key") as caught:
        windows("CREATE TABLE t (id int); ALTER TABLE t REPLICA IDENTITY FULL")
    assert "parallel" in caught.value.hint


def test_timeouts_of_the_role_do_not_end_a_window(windows: Callable[..., WindowReader]) -> None:
    made = windows(
        "CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t SELECT generate_series(1, 300000)",
        settings="-c statement_timeout=20ms -c idle_in_transaction_session_timeout=20ms",
    )
    assert made.read_range(None, 300_001).rows.num_rows == 300_000


def test_window_that_waits_for_a_rewrite_sees_its_result(database: Any, windows: Callable[..., WindowReader]) -> None:
    """To a snapshot before the rewrite the table would look empty, without any sign of it in the stream."""
    made = windows("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t SELECT generate_series(1, 5)")
    waiting = (
        "SELECT 1 FROM pg_stat_activity WHERE application_name LIKE 'penstock window %' AND wait_event_type = 'Lock'"
    )
    with ThreadPoolExecutor() as pool, database.connect() as other:
        other.execute("BEGIN")
        other.execute("ALTER TABLE t ALTER id TYPE int USING id + 0")
        reading = pool.submit(made.read_range, None, 10)
        until(lambda: reading.done() or database.execute(waiting), "the window to wait for the lock")
        assert not reading.done()
        other.execute("COMMIT")
        assert reading.result().rows.num_rows == 5
