"""The initial snapshot: every row once, at one position of the stream."""

from __future__ import annotations

import json
import random
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import psycopg
import pyarrow as pa
import pytest
from psycopg import sql
from tests.sources.postgres.capturing import Capture, merged

from penstock.errors import TableError, TransientError
from penstock.positions import Lsn
from penstock.sources.database import Tally
from penstock.sources.postgres.captured_table import CapturedTable
from penstock.sources.postgres.connection import connect
from penstock.sources.postgres.replication.slot import export_snapshot
from penstock.sources.postgres.snapshot import copy
from penstock.sources.postgres.snapshot.copy import PageRange, copy_range, copy_ranges, page_ranges
from penstock.sources.postgres.snapshot.copy_format import split_rows
from penstock.sources.postgres.snapshot.database import PostgresCopy
from penstock.sources.postgres.spec import PostgresSource
from penstock.testing.waiting import PATIENCE


def captured_table(url: str, table: str = "t") -> CapturedTable:
    (instance,) = PostgresSource.from_url(url, "copying").create_instances(1)
    return next(found for found in instance.tables if found.name.name == table)


def copied(url: str, table: CapturedTable, snapshot: str, pieces: int) -> list[list[dict[str, Any]]]:
    """Copy range by range."""
    schema = table.table_schema()
    with connect(url) as connection:
        ranges = page_ranges(connection, schema.table, pieces)
    found = []
    for pages in ranges:
        batches = list(copy_range(url, snapshot, table, pages, Lsn(1)))
        for batch in batches:
            batch.validate(full=True)
            assert batch.schema.equals(schema.columns.remove_metadata())
        found.append([row for batch in batches for row in batch.to_pylist()])
    return found


@pytest.mark.parametrize("pieces", [1, 3, 1000])
def test_snapshot_has_all_rows_exactly_once(database: Any, pieces: int) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY, body text)")
    database.execute("INSERT INTO t SELECT n, repeat('x', 200) FROM generate_series(1, 20000) n")
    database.execute("DELETE FROM t WHERE id % 7 = 0; UPDATE t SET body = 'y' WHERE id % 11 = 0")
    with export_snapshot(database.url) as snapshot:
        parts = copied(database.url, captured_table(database.url), snapshot.name, pieces)
    assert (len(parts) > 1) == (pieces > 1)
    rows = sorted((row["id"], row["body"]) for part in parts for row in part)
    assert rows == [tuple(row) for row in database.execute("SELECT id, body FROM t ORDER BY id")]


def test_empty_table(database: Any) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    with export_snapshot(database.url) as snapshot:
        assert copied(database.url, captured_table(database.url), snapshot.name, 4) == [[]]


def test_rows_added_after_the_last_range_are_copied(database: Any) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY, body text)")
    table = captured_table(database.url)
    with connect(database.url) as connection:
        (pages,) = page_ranges(connection, table.name, 4)
    database.execute("INSERT INTO t SELECT n, repeat('x', 500) FROM generate_series(1, 5000) n")
    with export_snapshot(database.url) as snapshot:
        batches = copy_range(database.url, snapshot.name, table, pages, Lsn(1))
        assert sum(batch.num_rows for batch in batches) == 5000


def test_rate(database: Any) -> None:
    """No more bytes per second are read, so the copy takes at least as long as its bytes need."""
    database.execute("CREATE TABLE t (id int PRIMARY KEY, body text)")
    database.execute("INSERT INTO t SELECT n, repeat('x', 1000) FROM generate_series(1, 1000) n")
    table, tally, began = captured_table(database.url), Tally(), time.monotonic()
    with export_snapshot(database.url) as snapshot:
        pages = PageRange(0, 2**32 - 1)
        batches = list(copy_range(database.url, snapshot.name, table, pages, Lsn(1), tally=tally, rate=4 << 20))
    assert sum(batch.num_rows for batch in batches) == 1000
    assert time.monotonic() - began >= tally.bytes / (4 << 20) > 0.2


def test_sessions_share_the_rate(database: Any) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY, body text)")
    options = {"snapshot_sessions": 4, "snapshot_rate": "20 MB"}
    made = PostgresSource.from_url(database.url, "x", **options)
    (instance,) = made.create_instances(1)
    upstream = made.database(instance)
    assert upstream.options.tables_at_a_time(2) == 2
    assert upstream.options.sessions_of_a_table(2, workers=16) == 2
    with upstream.snapshot(lambda _: None, threading.Event()) as snapshot:
        copy = snapshot.copy(instance.tables[0], 2)
        assert isinstance(copy, PostgresCopy)
        assert (copy.sessions(), copy.rate) == (2, 5 << 20)
        assert snapshot.copy(instance.tables[0], 16).sessions() == 4


@pytest.mark.parametrize("kind", ["STORED", "VIRTUAL"])
def test_generated_columns_are_left_out(database: Any, kind: str) -> None:
    if kind == "VIRTUAL":
        database.needs(18, "virtual columns")
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, twice int GENERATED ALWAYS AS (id * 2) STORED,"
        f' thrice int GENERATED ALWAYS AS (id * 3) {kind}, "Odd ""name" text)'
    )
    database.execute("INSERT INTO t VALUES (1, DEFAULT, DEFAULT, 'x')")
    with export_snapshot(database.url) as snapshot:
        parts = copied(database.url, captured_table(database.url), snapshot.name, 1)
    assert parts == [[{"id": 1, 'Odd "name': "x"}]]


def test_inheritance_children_are_not_copied_with_their_parent(database: Any) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY); CREATE TABLE child (PRIMARY KEY (id)) INHERITS (t)")
    database.execute("INSERT INTO t VALUES (1); INSERT INTO child VALUES (2)")
    with export_snapshot(database.url) as snapshot:
        assert copied(database.url, captured_table(database.url), snapshot.name, 1) == [[{"id": 1}]]


def test_row_larger_than_the_buffer(database: Any) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY, body text)")
    database.execute("INSERT INTO t VALUES (1, 'a'), (2, repeat('x', 6000000)), (3, 'b')")
    with export_snapshot(database.url) as snapshot:
        ((first, second, third),) = copied(database.url, captured_table(database.url), snapshot.name, 1)
    assert (first["body"], len(second["body"]), third["body"]) == ("a", 6_000_000, "b")


def test_unsupported_value_is_a_table_error(database: Any) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY, day date); INSERT INTO t VALUES (1, 'infinity')")
    with export_snapshot(database.url) as snapshot, pytest.raises(TableError, match="column day") as caught:
        copied(database.url, captured_table(database.url), snapshot.name, 1)
    assert (caught.value.table, caught.value.lsn) == ("public.t", 1)
    assert caught.value.hint


def test_closed_snapshot_is_a_transient_error(database: Any) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    table = captured_table(database.url)
    with export_snapshot(database.url) as snapshot:
        pass
    with pytest.raises(TransientError, match="cannot import the exported snapshot"):
        copied(database.url, table, snapshot.name, 1)


def test_dropped_table_is_a_table_error(database: Any) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    table = captured_table(database.url)
    database.execute("DROP TABLE t")
    with export_snapshot(database.url) as snapshot, pytest.raises(TableError, match=r"public\.t"):
        copied(database.url, table, snapshot.name, 4)


def busy(url: str, seed: int, stop: threading.Event, paused: threading.Event) -> None:
    """Insert, update, move and delete rows, several per transaction, until `stop` is set."""
    rng, ids, at = random.Random(seed), list(range(seed, 3000, 3)), 10_000 + seed
    with psycopg.connect(url) as connection:
        while not stop.is_set():
            for _ in range(rng.randint(1, 5)):
                row = rng.choice(ids)
                what = rng.random()
                if what < 0.4:
                    at += 3
                    ids.append(at)
                    connection.execute("INSERT INTO t VALUES (%s, %s, 0)", [at, "n" * rng.randint(0, 3000)])
                elif what < 0.7:
                    connection.execute("UPDATE t SET n = n + 1 WHERE id = %s", [row])
                elif what < 0.85:
                    at += 3
                    ids[ids.index(row)] = at
                    connection.execute("UPDATE t SET id = %s WHERE id = %s", [at, row])
                else:
                    ids.remove(row)
                    connection.execute("DELETE FROM t WHERE id = %s", [row])
            connection.commit()
            paused.set()


def test_snapshot_and_stream_fit_without_gap_or_overlap(
    database: Any, capture: Callable[..., Capture], now: Callable[[], Lsn]
) -> None:
    """Under concurrent writes: the snapshot at S plus the changes after S is the table, for any S."""
    database.execute("CREATE TABLE t (id int PRIMARY KEY, body text, n int)")
    database.execute("ALTER TABLE t ALTER body SET STORAGE EXTERNAL")
    database.execute("INSERT INTO t SELECT n, repeat('x', 2500), 0 FROM generate_series(0, 2999) n")
    running = capture()
    stop, paused = threading.Event(), threading.Event()
    writers = [threading.Thread(target=busy, args=(database.url, seed, stop, paused)) for seed in range(3)]
    for writer in writers:
        writer.start()
    table, copies = running.config.tables[0], []
    for _ in range(3):
        paused.clear()
        assert paused.wait(PATIENCE)
        with export_snapshot(database.url) as snapshot:
            copies.append((snapshot.lsn, copied(database.url, table, snapshot.name, 4)))
    stop.set()
    for writer in writers:
        writer.join()
    running.wait(now())
    final = {row[0]: row for row in database.execute("SELECT id, body, n FROM t")}
    assert len({lsn for lsn, _ in copies}) == 3
    for lsn, parts in copies:
        base = {row["id"]: row for part in parts for row in part}
        assert len(base) == sum(len(part) for part in parts)
        table_now = merged(base, running.changes("t", after=lsn))
        assert {key: tuple(row.values()) for key, row in table_now.items()} == final


PEAK = """
import json, sys
from pathlib import Path
from penstock.positions import Lsn
from penstock.sources.postgres.captured_table import CapturedTable
from penstock.sources.postgres.snapshot.copy import PageRange, copy_range
url, snapshot, table = json.loads(sys.stdin.read())
pages = PageRange(0, 2**32 - 1)
rows = sum(b.num_rows for b in copy_range(url, snapshot, CapturedTable.model_validate_json(table), pages, Lsn(1)))
lines = Path("/proc/self/status").read_text().splitlines()
print(rows, next(int(line.split()[1]) // 1024 for line in lines if line.startswith("VmHWM")))
"""


def peak(url: str, table: CapturedTable) -> tuple[int, int]:
    """The rows and the peak memory in MB of a process that copies a table and discards every batch."""
    with export_snapshot(url) as snapshot:
        given = json.dumps([url, snapshot.name, table.model_dump_json()])
        done = subprocess.run([sys.executable, "-c", PEAK], input=given, capture_output=True, text=True, check=True)
    rows, most = done.stdout.split()
    return int(rows), int(most)


@pytest.mark.deep
@pytest.mark.any_version("the memory is that of the client")
def test_memory_does_not_grow_with_the_table(database: Any) -> None:
    """The larger table has 200 MB, so keeping more than a few buffers of it would show."""
    for name, rows in (("small", 10_000), ("large", 100_000)):
        database.execute(f"CREATE TABLE {name} (id int PRIMARY KEY, body text)")
        database.execute(f"ALTER TABLE {name} ALTER body SET STORAGE PLAIN")
        database.execute(f"INSERT INTO {name} SELECT n, repeat('x', 2000) FROM generate_series(1, {rows}) n")
    small, large = (peak(database.url, captured_table(database.url, name)) for name in ("small", "large"))
    assert (small[0], large[0]) == (10_000, 100_000)
    assert large[1] < small[1] + 50


@pytest.mark.deep
def test_memory_of_a_huge_value_is_bounded_and_released(database: Any) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY, body text)")
    database.execute("INSERT INTO t VALUES (1, 'a'); INSERT INTO t VALUES (2, repeat('x', 200000000))")
    database.execute("INSERT INTO t SELECT n, repeat('y', 1000) FROM generate_series(3, 20000) n")
    table = captured_table(database.url)
    rows, most = peak(database.url, table)
    assert rows == 20_000
    assert most < 1500
    with export_snapshot(database.url) as snapshot:
        batches = copy_range(database.url, snapshot.name, table, PageRange(0, 2**32 - 1), Lsn(1))
        sizes = [batch.nbytes for batch in batches]
    assert sum(size > 100_000_000 for size in sizes) == 1
    assert max(sizes[-3:]) < 8_000_000, "batches after it are small again"


def test_connection_is_usable_after_a_copy(database: Any) -> None:
    """A socket that still waits for a full buffer would wait forever for the short answer to the next command."""
    database.execute("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t SELECT generate_series(1, 10)")
    table = captured_table(database.url)
    with connect(database.url) as connection:
        for _ in range(2):
            batches = copy.copy_rows(connection, table, sql.SQL("SELECT id FROM t").format(), Lsn(1))
            assert sum(batch.num_rows for batch in batches) == 10
            assert connection.execute("SELECT 1").fetchone() == (1,)


def test_ranges_are_neither_tiny_nor_huge(database: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY, body text)")
    database.execute("INSERT INTO t SELECT n, repeat('x', 1000) FROM generate_series(1, 8000) n")  # 9 MB
    name = captured_table(database.url).name
    with connect(database.url) as connection:
        assert len(copy_ranges(connection, name, 4)) == 1, "a small table is one file"
        monkeypatch.setattr(copy, "_LEAST_BYTES", 1 << 20)
        assert len(copy_ranges(connection, name, 4)) == 4, "one range per task"
        monkeypatch.setattr(copy, "_LEAST_BYTES", 1 << 18)
        monkeypatch.setattr(copy, "_MOST_BYTES", 1 << 20)
        ranges = copy_ranges(connection, name, 4)
        assert len(ranges) == 12, "ranges are limited in size, with the same number for each task"
    assert [pages.first for pages in ranges[1:]] == [pages.last for pages in ranges[:-1]]


def copy_message(data: bytes) -> bytes:
    return struct.pack("<I", len(data)) + data


ROW = struct.pack(">H", 2) + struct.pack(">I", 3) + b"abc" + struct.pack(">i", -1)
COPY_HEADER = b"PGCOPY\n\xff\r\n\0" + bytes(8)


def split(data: bytes, columns: int = 2) -> tuple[int, int]:
    off, length = np.zeros((columns, 10), np.int32), np.zeros((columns, 10), np.int32)
    buffer = np.frombuffer(bytearray(data), np.uint8)
    rows, at = split_rows(buffer, 0, len(data), off, length)
    return int(rows), int(at)


def test_rows_are_split() -> None:
    for head in (copy_message(COPY_HEADER) + copy_message(ROW), copy_message(COPY_HEADER + ROW)):
        data = head + copy_message(ROW) + copy_message(b"\xff\xff")
        assert split(data) == (2, len(data))


def test_malformed_rows_are_rejected() -> None:
    cases = [ROW[:cut] for cut in range(1, len(ROW))]
    cases += [ROW + b"\0", b"\0\3" + ROW[2:], b"\xff\xff\0", COPY_HEADER[:10] + b"x" + bytes(8) + ROW]
    cases += [ROW[:2] + struct.pack(">I", 0x7FFFFFFF) + ROW[6:], ROW[:2] + struct.pack(">i", -2) + ROW[6:]]
    for case in cases:
        assert split(copy_message(ROW) + copy_message(case)) == (-1, 4 + len(ROW)), case


def test_buffers_that_end_inside_a_message_are_rejected() -> None:
    whole = copy_message(ROW) + copy_message(ROW)
    for end in range(len(whole) // 2 + 1, len(whole)):
        assert split(whole[:end]) == (-1, 4 + len(ROW)), end


def test_batches_do_not_share_memory_with_the_reused_buffer(database: Any) -> None:
    """The buffer is filled again while earlier batches are still in use."""
    database.execute("CREATE TABLE t (id int PRIMARY KEY, body text)")
    database.execute("INSERT INTO t SELECT n, n || repeat('x', 1000) FROM generate_series(1, 9000) n")
    table = captured_table(database.url)
    with export_snapshot(database.url) as snapshot:
        rest = copy_range(database.url, snapshot.name, table, PageRange(0, 2**32 - 1), Lsn(1))
        whole = pa.Table.from_batches(list(rest))
    assert whole.num_rows == 9000
    assert all(row["body"] == f"{row['id']}{'x' * 1000}" for row in whole.to_pylist())
