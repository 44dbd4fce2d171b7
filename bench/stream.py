"""From commit to durable change log, compared with `pg_recvlogical` that discards its output.

The subject is Penstock's capture in a separate process: receive, decode to typed Arrow, write to the change log with
fsync, confirm. It ends when the durable frontier of the log reaches the last transaction. The reference is
`pg_recvlogical` with the same plugin and publication, as text, to /dev/null: it decodes and stores nothing.

::

    slots, one per candidate and round ─▶ load, once ─▶ rounds: each drains the same WAL from its own slot

Both are timed from START_REPLICATION, as logged by the server, so that startup is excluded: imports and loading of
compiled kernels for the subject, the connection for the reference. The reference ends with its process; the process of
the subject prints when the durable frontier reached the end. A small transaction follows the load, and both end after
it. CPU time is that of the client process (for the reference, it includes its start, some milliseconds).

Goal: at least 1.0 with transactions of 1,000 rows.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bench.rounds import Sample, Spread, alternate, median_ratio, print_environment, print_table, size
from penstock.changelog.sqlite.log import SqliteLog
from penstock.embedded.postgres import EmbeddedPostgres, binaries, start_postgres
from penstock.errors import DefiniteError
from penstock.positions import Lsn
from penstock.sources.postgres.config import PostgresInstanceConfig
from penstock.sources.postgres.instance import PostgresInstance
from penstock.sources.postgres.spec import PostgresSource
from penstock.sources.postgres.types import warm

__all__ = ["Load", "prepared_load", "run", "subject"]

_PENSTOCK, _REFERENCE = "penstock", "pg_recvlogical"
_SETTINGS = {
    "log_replication_commands": "on",
    "log_line_prefix": "%n ",
    "max_replication_slots": "40",
    "autovacuum": "off",
}
_HEADER = ("", "rows per transaction", "rows", "seconds", "client CPU s", "rows/s", "MB/s", "ratio")
_TABLE = """
CREATE TABLE orders (
    id bigint PRIMARY KEY, customer integer NOT NULL, quantity smallint NOT NULL, status text NOT NULL, note text,
    amount numeric(12,2) NOT NULL, placed timestamptz NOT NULL, paid boolean NOT NULL, weight double precision,
    token uuid NOT NULL, due date, details jsonb);
ALTER TABLE orders REPLICA IDENTITY FULL;
CREATE PROCEDURE load(transactions integer, size integer) LANGUAGE plpgsql AS $$
DECLARE start bigint;
BEGIN
    PERFORM set_config('synchronous_commit', 'off', false);
    FOR t IN 0..transactions - 1 LOOP
        start := t::bigint * size + 1;
        INSERT INTO orders SELECT n, n % 50000, n % 100, (ARRAY['new', 'paid', 'sent', 'back'])[1 + n % 4],
            CASE WHEN n % 10 <> 0 THEN 'order number ' || n || ' of a customer' END, (n % 1000000) / 100.0,
            timestamptz '2026-01-01' + n * interval '1 second', n % 3 = 0, n / 7.0, md5(n::text)::uuid,
            date '2026-01-01' + (n % 365)::integer,
            jsonb_build_object('channel', 'web', 'items', n % 9, 'gift', n % 2 = 0)
            FROM generate_series(start, start + size - 1) n WHERE n % 4 <> 0;
        UPDATE orders SET status = 'changed', amount = amount + 1, paid = true
            WHERE id BETWEEN start - 1 AND start + size - 2 AND id % 4 = 3;
        COMMIT;
    END LOOP;
END $$;
"""


@dataclass(frozen=True)
class Load:
    """Changes in the WAL, the slots before them and the position after them."""

    server: EmbeddedPostgres
    config: PostgresInstanceConfig
    changes: int
    end: Lsn
    folder: Path

    def began(self, slot: str) -> float:
        """Return when the server received START_REPLICATION for this slot, in seconds since 1970."""
        wanted = f'received replication command: START_REPLICATION SLOT "{slot}"'
        found = [line for line in self.server.log.read_text(errors="replace").splitlines() if wanted in line]
        if not found:
            raise DefiniteError(
                f"the server log has no START_REPLICATION for slot {slot}", "This is a bug: please report it."
            )
        return float(found[-1].split()[0])


def run(quick: bool) -> float:
    """Measure, print, and return the ratio for transactions of 1,000 rows."""
    sizes = {1000: 240_000} if quick else {1000: 1_000_000, 10: 500_000, 1: 100_000}
    rows: list[list[str]] = []
    ratios: dict[int, Spread] = {}
    for transaction, planned in sizes.items():
        changes, rounds = size(planned, 5 if quick else 7)
        with prepared_load(changes, transaction, rounds) as load:
            if not ratios:
                print_environment(load.server)
            measured, ratios[transaction] = _measure(load, rounds)
            rows += [[name, f"{transaction:,}", *figures] for name, figures in measured.items()]
    print_table(f"{rounds} rounds; min / median / max", _HEADER, rows)
    return ratios[1000].median


def _measure(load: Load, rounds: int) -> tuple[dict[str, list[str]], Spread]:
    """Drain the load with both, after a warm-up round; return rows of the table and the ratio."""
    volume = _volume(load)
    subject(load, 0)
    samples = alternate({_REFERENCE: partial(_reference, load), _PENSTOCK: partial(subject, load)}, rounds)
    ratio = median_ratio(samples[_REFERENCE], samples[_PENSTOCK])
    shown = {_REFERENCE: "1", _PENSTOCK: ratio.show(".2f")}
    return {name: [*_figures(load.changes, volume, taken), shown[name]] for name, taken in samples.items()}, ratio


@contextmanager
def prepared_load(changes: int, transaction: int, rounds: int) -> Iterator[Load]:
    """Start a server with changes in its WAL, and a pair of slots for each round, starting with 0."""
    with start_postgres(settings=_SETTINGS) as server, tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        server.execute(_TABLE)
        config = PostgresSource.from_url(server.url, "bench").create_instances(1)[0].prepare()
        for name in (f"{who}_{number}" for who in (_PENSTOCK, _REFERENCE) for number in range(rounds + 1)):
            server.execute(f"SELECT pg_copy_logical_replication_slot('{config.slot}', '{name}')")
        transactions = max(1, changes // transaction)
        server.execute(f"CALL load({transactions}, {transaction})")
        end = Lsn.parse(server.execute("SELECT pg_current_wal_insert_lsn()")[0][0])
        server.execute("UPDATE orders SET paid = NOT paid WHERE id = 1")
        server.execute("CHECKPOINT")
        yield Load(server, config, transactions * transaction, end, Path(folder))


def subject(load: Load, number: int) -> Sample:
    """Capture from a slot into a new log, until all changes are durable."""
    config = load.config.model_copy(update={"slot": f"{_PENSTOCK}_{number}"})
    log = load.folder / f"{number}.log"
    SqliteLog(log).create(config.start())
    process = subprocess.run(
        [sys.executable, "-m", "bench.stream", str(log), str(load.end)],
        input=config.model_dump_json(),
        cwd=Path(__file__).parent.parent,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    for path in load.folder.glob(f"{log.stem}.*"):
        path.unlink()
    ended, cpu = json.loads(process.stdout)
    return Sample(ended - load.began(config.slot), cpu)


def _reference(load: Load, number: int, output: str = os.devnull) -> Sample:
    """Drain a slot with `pg_recvlogical`."""
    slot = f"{_REFERENCE}_{number}"
    where = [f"--slot={slot}", f"--dbname={load.server.url}", f"--endpos={load.end}", f"--file={output}"]
    options = ["-o", "proto_version=1", "-o", f"publication_names={load.config.publication}"]
    process = subprocess.Popen([binaries() / "pg_recvlogical", "--start", "--no-loop", *where, *options])
    _, status, usage = os.wait4(process.pid, 0)
    ended = time.time()
    if status:
        raise DefiniteError(f"pg_recvlogical exited with status {status}", "See its output above.")
    return Sample(ended - load.began(slot), usage.ru_utime + usage.ru_stime)


def _volume(load: Load) -> int:
    """Return the number of bytes that the reference receives, from an untimed round."""
    path = load.folder / "volume"
    _reference(load, 0, str(path))
    volume = path.stat().st_size
    path.unlink()
    return volume


def _figures(changes: int, volume: int, taken: list[Sample]) -> list[str]:
    seconds = Spread.of([sample.seconds for sample in taken])
    cpu = Spread.of([sample.cpu_seconds for sample in taken])
    rates = f"{changes / seconds.median:,.0f}", f"{volume / seconds.median / 1e6:.0f}"
    return [f"{changes:,}", seconds.show(".2f"), cpu.show(".2f"), *rates]


def _capture(log: Path, end: Lsn) -> None:
    """Capture in this process, with the configuration from standard input; print the time at which all was durable."""
    config = PostgresInstanceConfig.model_validate_json(sys.stdin.read())
    warm()
    instance, stop, began = PostgresInstance(config, SqliteLog(log)), threading.Event(), []
    thread = threading.Thread(target=instance.run, args=(stop, lambda: began.append(time.process_time())))
    thread.start()
    while instance.durable_frontier() < end and thread.is_alive():
        time.sleep(0.001)
    print(json.dumps([time.time(), time.process_time() - began[0]]))
    stop.set()
    thread.join()


if __name__ == "__main__":
    _capture(Path(sys.argv[1]), Lsn.parse(sys.argv[2]))
