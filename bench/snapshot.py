"""From a table to Arrow, and to Delta in Spark, compared with `psql` that copies to /dev/null.

The reference is `psql -c "COPY (SELECT * FROM orders) TO STDOUT (FORMAT binary)"` to /dev/null: it receives every byte
and decodes none. The subjects copy the same table at an exported snapshot, as the initial snapshot of a source does:

- **Arrow**: one process, one session, one range of pages; every column is decoded to typed Arrow, then discarded.
- **Arrow, two ranges**: two processes, half of the pages each.
- **Delta**: Spark on two local cores, with the ranges of `InitialSnapshot`, into a Delta table, committed.

All pages are in the cache of the operating system, after an untimed round. The time of the subjects starts when their
processes are ready (kernels loaded, Spark's JVM and workers warm); that of the reference includes its start, some
milliseconds. CPU time is that of the clients: the work of Postgres is the same for all. Memory is the peak resident
size; for Spark, that of the JVM and its workers together. Arrow and Spark copy half of the table as well, to show that
memory does not grow with the table.

Goals: Arrow at least 0.85, Delta at least 0.5 of the reference, on a table of 2 GB or more.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from bench.rounds import Sample, Spread, alternate, median_ratio, print_environment, print_table, size
from penstock.embedded.postgres import EmbeddedPostgres, binaries, start_postgres
from penstock.errors import DefiniteError
from penstock.positions import Lsn
from penstock.sources.postgres.captured_table import CapturedTable
from penstock.sources.postgres.connection import connect
from penstock.sources.postgres.replication.slot import ExportedSnapshot, export_snapshot
from penstock.sources.postgres.snapshot.copy import PageRange, copy_range, copy_ranges
from penstock.sources.postgres.snapshot.database import PostgresCopy
from penstock.sources.postgres.spec import PostgresSource
from penstock.sources.postgres.types import warm
from penstock.spark.session import session
from penstock.tables.base import DeltaBaseTable
from penstock.tables.snapshot_files import files_of_ranges

__all__ = ["Upstream", "prepared", "run"]

_REFERENCE, _ARROW, _TWO, _DELTA = "psql COPY to /dev/null", "Arrow", "Arrow, two ranges", "Delta in Spark"
_ARROW_HALF, _DELTA_HALF = "Arrow, half the table", "Delta, half the table"
_ALL_PAGES = (1 << 32) - 1
_HEADER = ("", "MB", "seconds", "MB/s", "client CPU s", "peak memory MB", "ratio")
_QUERY = "COPY (SELECT * FROM orders) TO STDOUT (FORMAT binary)"
_FULL_ROWS, _QUICK_ROWS = 12_000_000, 1_500_000
_SETTINGS = {"autovacuum": "off", "max_wal_size": "8GB", "checkpoint_timeout": "1h", "synchronous_commit": "off"}
_TABLE = """
CREATE TABLE orders (
    id bigint NOT NULL, customer integer NOT NULL, quantity smallint NOT NULL, status text NOT NULL, note text,
    amount numeric(12,2) NOT NULL, placed timestamptz NOT NULL, paid boolean NOT NULL, weight double precision,
    token uuid NOT NULL, due date, details jsonb)
"""
_FILL = """
INSERT INTO orders SELECT n, n % 50000, n % 100, (ARRAY['new', 'paid', 'sent', 'back'])[1 + n % 4],
    CASE WHEN n % 10 <> 0 THEN 'order number ' || n || ' of a customer' END, (n % 1000000) / 100.0,
    timestamptz '2026-01-01' + n * interval '1 second', n % 3 = 0, n / 7.0, md5(n::text)::uuid,
    date '2026-01-01' + (n % 365)::integer, jsonb_build_object('channel', 'web', 'items', n % 9, 'gift', n % 2 = 0)
    FROM generate_series({first}, {last}) n
"""


@dataclass
class Upstream:
    """The table, an open snapshot of it, and the peak memory of each candidate."""

    server: EmbeddedPostgres
    table: CapturedTable
    snapshot: ExportedSnapshot
    pages: int
    volume: int
    """The number of bytes that the reference receives."""
    memory: dict[str, int] = field(default_factory=dict)

    def record_peak(self, name: str, peak: int) -> None:
        """Record a peak of memory, in bytes."""
        self.memory[name] = max(peak, self.memory.get(name, 0))


def run(quick: bool) -> float:
    """Measure, print, and return the ratio of Delta in Spark."""
    rows, rounds = size(_QUICK_ROWS if quick else _FULL_ROWS, 3)
    with prepared(rows) as upstream, tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        print_environment(upstream.server)
        relation = upstream.server.execute("SELECT pg_relation_size('orders')")[0][0]
        print(f"orders: {rows:,} rows, {len(upstream.table.columns)} columns, {relation / 1e9:.2f} GB of pages")
        spark = session("bench", master="local[2]")
        delta = partial(_delta, upstream, spark, Path(folder))
        half = upstream.pages // 2
        few = max(1, half // 16)
        delta(_DELTA_HALF, [PageRange(0, few), PageRange(few, 2 * few)], 0)  # warm-up
        upstream.memory.clear()
        candidates: dict[str, Callable[[int], Sample]] = {
            _REFERENCE: lambda _: _reference(upstream),
            _ARROW: lambda _: _arrow(upstream, _ARROW, [PageRange(0, _ALL_PAGES)]),
            _TWO: lambda _: _arrow(upstream, _TWO, [PageRange(0, half), PageRange(half, _ALL_PAGES)]),
            _DELTA: partial(delta, _DELTA, _ranges(upstream, _ALL_PAGES)),
        }
        _arrow(upstream, _ARROW_HALF, [PageRange(0, half)])
        delta(_DELTA_HALF, _ranges(upstream, half), 0)
        samples = alternate(candidates, rounds)
        spark.stop()
    return _shown(upstream, samples)


def _shown(upstream: Upstream, samples: dict[str, list[Sample]]) -> float:
    ratios = {name: median_ratio(samples[_REFERENCE], taken) for name, taken in samples.items()}
    rows = []
    for name, taken in samples.items():
        seconds, cpu = (Spread.of([getattr(s, measure) for s in taken]) for measure in ("seconds", "cpu_seconds"))
        rate = f"{upstream.volume / seconds.median / 1e6:.0f}"
        peak = f"{upstream.memory[name] / 1e6:.0f}" if name in upstream.memory else ""
        shown = [f"{upstream.volume / 1e6:.0f}", seconds.show(".2f"), rate, cpu.show(".2f"), peak]
        rows.append([name, *shown, ratios[name].show(".2f")])
    for name in (_ARROW_HALF, _DELTA_HALF):
        rows.append([name, f"{upstream.volume / 2e6:.0f}", "", "", "", f"{upstream.memory[name] / 1e6:.0f}", ""])
    rounds = len(samples[_REFERENCE])
    print_table(f"{rounds} rounds; min / median / max", _HEADER, rows)
    return ratios[_DELTA].median


@contextmanager
def prepared(rows: int) -> Iterator[Upstream]:
    """Start a server with a table of `rows` rows in its cache, and export a snapshot."""
    with start_postgres(fsync=False, settings=_SETTINGS) as server:
        server.execute(_TABLE)
        _fill(server, rows)
        server.execute("ALTER TABLE orders ADD PRIMARY KEY (id)")
        server.execute("VACUUM (FREEZE, ANALYZE) orders")
        server.execute("CHECKPOINT")
        (table,) = PostgresSource.from_url(server.url, "bench").create_instances(1)[0].tables
        pages = server.execute("SELECT pg_relation_size('orders') / current_setting('block_size')::int")[0][0]
        with export_snapshot(server.url) as snapshot:
            yield Upstream(server, table, snapshot, pages, _volume(server))


def _fill(server: EmbeddedPostgres, rows: int) -> None:
    step = 250_000
    parts = [_FILL.format(first=first, last=min(first + step, rows + 1) - 1) for first in range(1, rows + 1, step)]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(server.execute, parts))


def _volume(server: EmbeddedPostgres) -> int:
    """Return the number of bytes that the reference receives; this also reads all pages into the cache."""
    with connect(server.url) as connection, connection.cursor() as cursor, cursor.copy(_QUERY) as copy:
        return sum(len(block) for block in copy)


# -- the candidates ----------------------------------------------------------------------------------------------------


def _reference(upstream: Upstream) -> Sample:
    before = time.perf_counter()
    with Path(os.devnull).open("wb") as nowhere:
        process = subprocess.Popen([binaries() / "psql", upstream.server.url, "-Xqc", _QUERY], stdout=nowhere)
        _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise DefiniteError(f"psql exited with status {status}", "See its output above.")
    return Sample(time.perf_counter() - before, usage.ru_utime + usage.ru_stime)


def _arrow(upstream: Upstream, name: str, ranges: Sequence[PageRange]) -> Sample:
    """Copy with one process per range, concurrently, after all of them are ready."""
    processes = [_started(upstream, pages) for pages in ranges]
    for process in processes:
        assert process.stdout
        process.stdout.readline()
    before = time.perf_counter()
    for process in processes:
        assert process.stdin
        process.stdin.write("go\n")
        process.stdin.flush()
    results = [json.loads(process.communicate()[0]) for process in processes]
    seconds = time.perf_counter() - before
    if any(process.returncode for process in processes):
        raise DefiniteError("a copy to Arrow failed", "See its output above.")
    upstream.record_peak(name, sum(peak for _, peak, _ in results))
    return Sample(seconds, sum(cpu for cpu, _, _ in results))


def _started(upstream: Upstream, pages: PageRange) -> subprocess.Popen[str]:
    request = [upstream.server.url, upstream.snapshot.name, upstream.table.model_dump_json(), pages.first, pages.last]
    return subprocess.Popen(
        [sys.executable, "-m", "bench.snapshot", json.dumps(request)],
        cwd=Path(__file__).parent.parent,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def _copy_to_arrow(url: str, snapshot: str, table: str, first: int, last: int) -> None:
    """Copy in this process after a line on standard input; print CPU time, peak memory and rows."""
    captured, pages = CapturedTable.model_validate_json(table), PageRange(first, last)
    warm()
    print("ready", flush=True)
    sys.stdin.readline()
    before = time.process_time()
    rows = sum(batch.num_rows for batch in copy_range(url, snapshot, captured, pages, Lsn(1)))
    print(json.dumps([time.process_time() - before, _status(os.getpid(), "VmHWM"), rows]))


def _ranges(upstream: Upstream, last: int) -> list[PageRange]:
    """Return the ranges for two cores, up to a page."""
    with connect(upstream.server.url) as connection:
        found = copy_ranges(connection, upstream.table.name, 2)
    return [replace(pages, last=min(pages.last, last)) for pages in found if pages.first < last]


def _delta(
    upstream: Upstream, spark: SparkSession, folder: Path, name: str, ranges: Sequence[PageRange], number: int
) -> Sample:
    schema, target = upstream.table.table_schema(), folder / f"delta-{number}"
    with _watched() as watched:
        before = time.perf_counter()
        copy = PostgresCopy.of(upstream.server.url, upstream.snapshot, upstream.table, ranges)
        files = files_of_ranges(spark, copy, target)
        DeltaBaseTable(spark, str(target), schema).create_from_files(files, upstream.snapshot.lsn)
        seconds = time.perf_counter() - before
    upstream.record_peak(name, watched.peak)
    shutil.rmtree(target)
    return Sample(seconds, watched.cpu)


# -- memory and CPU time of Spark --------------------------------------------------------------------------------------


class _Watched:
    """Memory and CPU time of the child processes, without Postgres."""

    def __init__(self) -> None:
        self.peak = 0
        self.cpu = 0.0
        self._seen: dict[int, float] = {}
        self._initial_cpu = {pid: _cpu(pid) for pid in _descendants()}

    def sample(self) -> None:
        pids = _descendants()
        self.peak = max(self.peak, sum(_status(pid, "VmRSS") for pid in pids))
        self._seen |= {pid: _cpu(pid) for pid in pids}
        self.cpu = sum(seconds - self._initial_cpu.get(pid, 0.0) for pid, seconds in self._seen.items())


@contextmanager
def _watched() -> Iterator[_Watched]:
    watched, done = _Watched(), threading.Event()

    def watch() -> None:
        while not done.wait(0.1):
            watched.sample()

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield watched
    finally:
        done.set()
        thread.join()
        watched.sample()


def _descendants() -> list[int]:
    """Return the pids of the JVM and of Spark's workers, at any depth."""
    parents = {pid: parent for pid, (name, parent, _) in _processes().items() if not name.startswith("postgres")}
    found = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return sorted(found - {os.getpid()})


def _processes() -> dict[int, tuple[str, int, float]]:
    found = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = path.read_text(errors="replace")
        except OSError:
            continue
        name, _, rest = text.partition("(")[2].rpartition(")")
        fields = rest.split()
        ticks = int(fields[11]) + int(fields[12])
        found[int(path.parent.name)] = (name, int(fields[1]), ticks / os.sysconf("SC_CLK_TCK"))
    return found


def _cpu(pid: int) -> float:
    return _processes().get(pid, ("", 0, 0.0))[2]


def _status(pid: int, field_name: str) -> int:
    """Return a size in bytes from the status of a process; 0 if it has exited."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field_name}:")), 0)


if __name__ == "__main__":
    given: list[Any] = json.loads(sys.argv[1])
    _copy_to_arrow(*given)
