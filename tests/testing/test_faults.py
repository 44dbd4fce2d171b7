"""Faults at named points of a table store and of a change log; each occurs once."""

from __future__ import annotations

import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.changelog.chunks import ORDERS, chunk, inserted
from tests.sources.postgres.capturing import Capture

from penstock.changelog.sqlite.log import SqliteLog
from penstock.errors import TransientError
from penstock.home import Home
from penstock.positions import Lsn
from penstock.sources.postgres.instance import PostgresInstance
from penstock.testing.faults import LOG_OPERATIONS, TABLE_OPERATIONS, Faults, FaultyLog, FaultyTables
from penstock.testing.memory_tables import MemoryBaseTable, MemoryTables
from penstock.testing.waiting import PATIENCE, until


def test_fault_occurs_once_and_only_at_its_point() -> None:
    faults = Faults()
    faults.fail_once("merge.before", TransientError("now"))
    faults.reach("merge.after")
    with pytest.raises(TransientError, match="now"):
        faults.reach("merge.before")
    faults.reach("merge.before")
    assert faults.reached == {"merge.before": 2, "merge.after": 1}


@pytest.mark.parametrize("point", ["merge", "merge.during", "vanish.before"])
def test_unknown_point_is_rejected(point: str) -> None:
    with pytest.raises(ValueError, match="unrecognized fault point"):
        Faults().fail_once(point, TransientError("never"))


def test_operations_exist_in_the_interfaces(tmp_path: Path) -> None:
    log = SqliteLog(tmp_path / "log.db")
    log.create(Lsn(1))
    with closing(log.writer()) as writer:
        assert [name for name in LOG_OPERATIONS if not callable(getattr(writer, name))] == []
    assert [name for name in TABLE_OPERATIONS if not callable(getattr(MemoryBaseTable, name))] == []


def test_paused_thread_waits_until_it_is_released() -> None:
    faults, over = Faults(), threading.Event()

    def work() -> None:
        faults.reach("publish.after")
        over.set()

    with faults.paused("publish.after") as pause:
        thread = threading.Thread(target=work)
        thread.start()
        pause.wait()
        assert not over.is_set()
    thread.join(PATIENCE)
    assert over.is_set()


def test_unreached_pause_is_removed() -> None:
    faults = Faults()
    with faults.paused("create.before"):
        pass
    faults.reach("create.before")  # would block forever


@pytest.mark.parametrize("point", ["create.before", "create.after", "merge.before", "merge.after"])
def test_snapshot_and_apply_recover_from_a_fault_with_every_row_once(
    database: Any, tmp_path: Path, in_process: None, point: str
) -> None:
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, n int); INSERT INTO t SELECT i, i FROM generate_series(1, 9) i"
    )
    home, faults = Home(tmp_path / "home"), Faults()
    home.create(database.url, "shop")
    store = FaultyTables(MemoryTables(), faults)
    faults.fail_once(point, TransientError("a fault, on purpose"))
    with home.run(store) as running:
        running.wait_live(PATIENCE)
        database.execute(
            "INSERT INTO t VALUES (10, 10); UPDATE t SET n = n + 1 WHERE id < 5; DELETE FROM t WHERE id = 9"
        )
        until(
            lambda: faults.reached["merge.after"] > 0 and faults.reached[point] > 0, "the fault and a completed merge"
        )
        assert [(verdict.table, verdict.equal) for verdict in home.verify(store, "shop")] == [("public.t", True)]


@pytest.mark.parametrize("point", ["publish.before", "publish.after", "define.after"])
def test_capture_recovers_from_a_log_fault_without_loss_or_duplicates(
    database: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    faults = Faults()
    capture = Capture(database.url, tmp_path / "log.db", f"{database.name}_faults")
    monkeypatch.setattr(
        "tests.sources.postgres.capturing.PostgresInstance",
        lambda config, log, state=None: PostgresInstance(config, FaultyLog(log, faults), state),
    )
    faults.fail_once(point, TransientError("a fault, on purpose"))
    capture.start()
    try:
        for number in range(5):
            database.execute(f"INSERT INTO t VALUES ({number})")
        capture.wait(Lsn.parse(database.execute("SELECT pg_current_wal_lsn()::text")[0][0]))
    finally:
        capture.stop()
    assert [row["after"]["id"] for row in capture.changes("t")] == list(range(5))
    assert [error.message for error in capture.transient] == ["a fault, on purpose"]


def test_faulty_log_without_faults_behaves_like_the_log(tmp_path: Path) -> None:
    log = FaultyLog(SqliteLog(tmp_path / "log.db"), Faults())
    assert not log.exists()
    log.create(Lsn(10))
    with closing(log.writer()) as writer, closing(log.reader()) as reader:
        version = writer.define(ORDERS, Lsn(10))
        writer.publish([chunk(ORDERS, [inserted(20)], version)], Lsn(20))
        assert reader.frontiers().durable == 20
    log.remove()
    assert not log.exists()
