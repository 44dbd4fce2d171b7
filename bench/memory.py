"""Resident memory of capture for a huge transaction, compared with a small transaction.

Two kinds of transactions, each with more rows than fit in memory: an UPDATE of all rows; and inserts of which every
second subtransaction is rolled back (the transaction is streamed in progress, and the log must not contain the rolled
back half). A separate process captures each into a new log. The table shows the peak resident memory of that process,
and the number of images in the log.

Goal: less than 600 MB at 10 million rows.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import closing
from pathlib import Path

from bench.rounds import print_environment, print_table, size
from penstock.changelog.sqlite.log import SqliteLog, SqliteLogReader
from penstock.embedded.postgres import EmbeddedPostgres, start_postgres
from penstock.errors import DefiniteError
from penstock.model import TableName
from penstock.positions import Lsn
from penstock.sources.postgres.config import PostgresInstanceConfig
from penstock.sources.postgres.instance import PostgresInstance
from penstock.sources.postgres.spec import PostgresSource
from penstock.sources.postgres.types import warm

__all__ = ["run"]

_TABLE = """
CREATE TABLE big (id bigint PRIMARY KEY, name text, amount numeric(12,2), at timestamptz);
INSERT INTO big SELECT n, 'row number ' || n, n / 100.0, now() FROM generate_series(1, {rows}) n
"""
_UPDATE = "UPDATE big SET amount = amount + 1"
_SUBTRANSACTIONS = """
DO $$
DECLARE each integer := greatest(1, {rows} / 200);
BEGIN
    FOR part IN 1..200 LOOP
        BEGIN
            INSERT INTO big SELECT n, 'new row ' || n, 1, now()
                FROM generate_series({rows} + part * each + 1, {rows} + (part + 1) * each) n;
            IF part % 2 = 0 THEN RAISE EXCEPTION 'not this one'; END IF;
        EXCEPTION WHEN raise_exception THEN NULL;
        END;
    END LOOP;
END $$
"""
_SMALL = "UPDATE big SET amount = amount + 1 WHERE id <= 100"


def run(quick: bool) -> float:
    """Measure, print, and return the ratio of the peak memory to that of a small transaction."""
    rows, _ = size(1_000_000 if quick else 10_000_000, 1)
    with start_postgres(fsync=False, settings={"autovacuum": "off", "max_wal_size": "8GB"}) as server:
        print_environment(server)
        server.execute(_TABLE.format(rows=rows))
        loads = {"small": _SMALL, "update of all rows": _UPDATE, "half rolled back": _SUBTRANSACTIONS.format(rows=rows)}
        expected = dict(zip(loads, (100, rows, 100 * max(1, rows // 200)), strict=True))
        found = {name: _peak(server, name.split()[0], load) for name, load in loads.items()}
    for name, (_, images) in found.items():
        if images != expected[name]:
            raise DefiniteError(
                f"{name}: {images} images instead of {expected[name]}", "This is a bug: please report it."
            )
    shown = [[name, f"{images:,}", f"{peak / 1e6:.0f}"] for name, (peak, images) in found.items()]
    print_table(f"{rows:,} rows", ("transaction", "images in the log", "peak resident MB"), shown)
    return max(peak for peak, _ in found.values()) / found["small"][0]


def _peak(server: EmbeddedPostgres, name: str, load: str) -> tuple[int, int]:
    """Capture one transaction; return the peak resident memory in bytes, and the number of images in the log."""
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        config = PostgresSource.from_url(server.url, name).create_instances(1)[0].prepare()
        log = Path(folder) / "log.db"
        SqliteLog(log).create(config.start())
        server.execute(load)
        end = Lsn.parse(server.execute("SELECT pg_current_wal_insert_lsn()")[0][0])
        command = [sys.executable, "-m", "bench.memory", str(log), str(end)]
        given = config.model_dump_json().encode()
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=Path(__file__).parents[1]
        )
        out, _ = process.communicate(given)
        if process.returncode:
            raise DefiniteError(f"capture exited with status {process.returncode}", "See its output above.")
        with closing(SqliteLogReader(log)) as reader:
            images = reader.extent(TableName("public", "big"), reader.frontiers().valid, end).rows
        config.cleanup()
        return int(json.loads(out)), images


def _capture(log: Path, end: Lsn) -> None:
    """Run capture in this process, and print the peak resident memory."""
    config = PostgresInstanceConfig.model_validate_json(sys.stdin.read())
    warm()
    instance, stop = PostgresInstance(config, SqliteLog(log)), threading.Event()
    thread = threading.Thread(target=instance.run, args=(stop, lambda: None))
    thread.start()
    while instance.durable_frontier() < end and thread.is_alive():
        time.sleep(0.01)
    stop.set()
    thread.join()
    status = Path(f"/proc/{os.getpid()}/status").read_text()
    peak = next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM"))
    print(json.dumps(int(peak) * 1024))


if __name__ == "__main__":
    _capture(Path(sys.argv[1]), Lsn.parse(sys.argv[2]))
