"""Alarms: each is raised by its condition, and ends with it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.engine.shop import Shop, until

from penstock.catalog.states import SourceState
from penstock.engine import alarms as engine_alarms
from penstock.engine.alarms import (
    CODES,
    AlarmWatch,
    Limits,
    Memory,
    evaluate,
    limits_from_environment,
    read_memory,
    with_alarms,
)
from penstock.engine.status_document import (
    AlarmStatus,
    DiskStatus,
    HomeStatus,
    ProcessStatus,
    ReaderStatus,
    SinkStatus,
    SourceStatus,
    TableStatus,
)
from penstock.errors import UsageError
from penstock.sources.upstream_status import SlotStatus

NOW = datetime(2026, 11, 18, 12, tzinfo=UTC)
GB = 1 << 30
SLOT = SlotStatus("penstock_shop", True, "reserved", 1 << 20, None, "0/100")
TABLE = TableStatus("shop.t", "public.t", "live", "0/100", 0, None, None)
SOURCE = SourceStatus(
    *("shop", "POSTGRES", "db/x", "ready", "0/10", "0/100", None, None, 0, None, None, None),
    [TABLE],
    [ReaderStatus("tables", "0/100", None, 86_400_000.0)],
    retain_history="1 day",
    clock_skew_ms=3.0,
    log_bytes=1000,
    slot=SLOT,
)
SINK = SinkStatus("out", "shop", "t", "t at k", "upsert", "json", "running", "0/100", 0, 1.0, 5)
HOME = HomeStatus(1, "home", 4711, [SOURCE], sinks=[SINK], disk=DiskStatus(50 * GB, 100 * GB))


def home(**changes: Any) -> HomeStatus:
    """The home with a changed source."""
    return replace(HOME, sources=[replace(SOURCE, **changes)])


def slot(**changes: Any) -> HomeStatus:
    return home(slot=replace(SLOT, **changes))


def found(status: HomeStatus) -> list[AlarmStatus]:
    return evaluate(status, Memory(), Limits(), NOW)[0]


def codes(status: HomeStatus) -> list[str]:
    return [alarm.code for alarm in found(status)]


def test_a_healthy_home_has_no_alarms() -> None:
    assert found(HOME) == []
    assert found(replace(HOME, disk=None, sources=[replace(SOURCE, slot=None, clock_skew_ms=None)])) == []


AT_ONCE = {
    "disk_low": (replace(HOME, disk=DiskStatus(4 * GB, 100 * GB)), "warning", None),
    "disk_full": (replace(HOME, disk=DiskStatus(GB // 4, 100 * GB)), "critical", None),
    "slot_lost": (slot(wal_status="lost"), "critical", "shop"),
    "slot_lost, missing": (slot(wal_status=None, invalidated="it does not exist"), "critical", "shop"),
    "slot_at_risk": (slot(wal_status="unreserved"), "critical", "shop"),
    "slot_at_risk, little left": (slot(wal_status="extended", safe_bytes=100), "critical", "shop"),
    "wal_retained": (slot(retained_bytes=11 * GB), "warning", "shop"),
    "clock_skew": (home(clock_skew_ms=6000.0), "warning", "shop"),
    "clock_skew, behind": (home(clock_skew_ms=-6000.0), "warning", "shop"),
    "spark_lost": (
        replace(HOME, process=ProcessStatus(1, "running", "", "", 3, "Spark ended 3 times")),
        "critical",
        None,
    ),
    "history_held": (home(readers=[ReaderStatus("reader x", "0/20", None, 2.1 * 86_400_000)]), "warning", "shop"),
}


@pytest.mark.parametrize("case", AT_ONCE)
def test_conditions_of_one_status(case: str) -> None:
    status, level, source = AT_ONCE[case]
    (alarm,) = found(status)
    assert (alarm.code, alarm.level, alarm.source) == (case.partition(",")[0], level, source)
    assert alarm.hint.endswith(".")
    assert alarm.since == "2026-11-18T12:00:00+00:00"


def test_limits_are_exclusive_of_what_is_normal() -> None:
    assert codes(replace(HOME, disk=DiskStatus(2 * GB, 20 * GB))) == [], "10 % of a small disk"
    assert codes(slot(retained_bytes=9 * GB)) == []
    assert codes(slot(safe_bytes=2 * GB, wal_status="extended")) == []
    assert codes(home(readers=[ReaderStatus("reader x", "0/20", None, 1.5 * 86_400_000)])) == []
    soon = home(retain_history="1 min", readers=[ReaderStatus("reader x", "0/20", None, 600_000.0)])
    assert codes(soon) == [], "ten minutes are not much history"


def test_critical_alarms_come_first() -> None:
    status = replace(
        HOME, disk=DiskStatus(4 * GB, 100 * GB), sources=[replace(SOURCE, slot=replace(SLOT, wal_status="lost"))]
    )
    assert codes(status) == ["slot_lost", "disk_low"]


def test_message_of_a_reader_names_the_amount() -> None:
    readers = [ReaderStatus("tables", "0/90", None, 1000.0), ReaderStatus("reader x", "0/20", None, 3 * 86_400_000)]
    (alarm,) = found(home(readers=readers, log_bytes=12_000_000_000))
    assert alarm.message == 'reader "reader x" holds back 3 d of history of source "shop", in a log of 12.0 GB'


WORK = {
    "source": (home(lag_bytes=100), home(lag_bytes=200, durable="0/101"), home(lag_bytes=200), (None, None)),
    "transaction in parts": (home(lag_bytes=100), home(lag_bytes=200, log_bytes=1001), home(lag_bytes=9), (None, None)),
    "table": (
        home(tables=[replace(TABLE, behind=5)]),
        home(tables=[replace(TABLE, behind=9, position="0/101")]),
        home(tables=[replace(TABLE, behind=9)]),
        ("public.t", None),
    ),
    "snapshot": (
        home(tables=[replace(TABLE, state="pending", copied_rows=5)]),
        home(tables=[replace(TABLE, state="pending", copied_rows=6)]),
        home(tables=[replace(TABLE, state="pending", copied_rows=5)]),
        ("public.t", None),
    ),
    "sink": (
        replace(HOME, sinks=[replace(SINK, behind=3)]),
        replace(HOME, sinks=[replace(SINK, behind=3, messages=6)]),
        replace(HOME, sinks=[replace(SINK, behind=4)]),
        (None, "out"),
    ),
    "waiting": (home(waiting="no answer"), HOME, home(waiting="no answer"), (None, None)),
}


@pytest.mark.parametrize("case", WORK)
def test_no_progress(case: str) -> None:
    """Work that does not move is an alarm after some minutes; it ends when it moves, or there is no work."""
    before, moving, stuck, (table, sink) = WORK[case]
    limits, memory = Limits(stalled=timedelta(minutes=5)), Memory()

    def at(minutes: float, status: HomeStatus) -> list[AlarmStatus]:
        nonlocal memory
        alarms, memory = evaluate(status, memory, limits, NOW + timedelta(minutes=minutes))
        return alarms

    assert at(0, before) == []
    assert at(4.9, stuck) == []
    (alarm,) = at(5.1, stuck)
    assert (alarm.code, alarm.level, alarm.source) == ("no_progress", "critical", "shop")
    assert (alarm.table, alarm.sink) == (table, sink)
    assert at(9, stuck)[0].since == alarm.since == "2026-11-18T12:05:06+00:00"
    assert at(10, moving) == []
    assert at(14, HOME) == [], "no work"
    assert at(60, stuck) == [], "new work"
    assert len(at(66, stuck)) == 1
    assert at(67, HOME) == []


def stalls(*statuses: HomeStatus) -> list[tuple[str | None, str]]:
    """What alarms after the last of these statuses, which follow each other every four minutes."""
    alarms, memory = list[AlarmStatus](), Memory()
    for number, status in enumerate(statuses):
        now = NOW + timedelta(minutes=4 * number)
        alarms, memory = evaluate(status, memory, Limits(stalled=timedelta(minutes=5)), now)
    return [(alarm.table, alarm.code) for alarm in alarms]


def copying(rows: int, size: int, position: str = "0/100") -> HomeStatus:
    """A home with a table that is copied, one whose copy waits for the first, and one that is applied."""
    first = replace(TABLE, state="pending", copied_rows=rows, copied_bytes=size)
    second = replace(TABLE, upstream="public.u", state="pending", copied_rows=0, copied_bytes=0)
    return home(tables=[first, second, replace(TABLE, upstream="public.v", behind=7, position=position)])


def test_a_slow_snapshot_is_progress_also_of_tables_that_wait_for_it() -> None:
    assert stalls(copying(1, 10), copying(1, 20), copying(1, 30)) == [], "one long row after the other"
    assert stalls(copying(1, 10), copying(2, 10), copying(3, 10)) == []
    stuck = stalls(copying(1, 10), copying(2, 10), copying(2, 10), copying(2, 10))
    assert stuck == [(name, "no_progress") for name in ("public.t", "public.u", "public.v")]
    assert stalls(copying(2, 10), copying(2, 10, "0/101"), copying(2, 10, "0/102")) == stuck[:2]


def test_waiting_for_something_else_each_time_is_progress() -> None:
    waits = [home(waiting=f"transaction 5 is incomplete: {number} of 90 events") for number in range(3)]
    assert stalls(*waits) == []
    assert stalls(*waits, waits[-1], waits[-1]) == [(None, "no_progress")]


def test_home_that_is_stopped_makes_no_progress_and_needs_none() -> None:
    """But the server retains WAL for it."""
    stopped = replace(home(lag_bytes=100, slot=replace(SLOT, active=False, retained_bytes=11 * GB)), running=None)
    alarms, memory = evaluate(stopped, Memory(), Limits(), NOW)
    assert memory.moved == {}
    assert [alarm.code for alarm in alarms] == ["wal_retained"]
    assert "penstock run" in alarms[0].hint


def test_every_code_is_documented_and_tested() -> None:
    page = (Path(__file__).parents[2] / "docs/how-to/monitor-with-prometheus.md").read_text()
    assert all(f"| `{code}` |" in page for code in CODES)
    assert {case.partition(",")[0] for case in AT_ONCE} | {"no_progress"} == set(CODES)


def test_limits_are_set_by_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    page = (Path(__file__).parents[2] / "docs/how-to/monitor-with-prometheus.md").read_text()
    assert limits_from_environment() == Limits(), "the defaults"
    values: dict[str, tuple[str, dict[str, Any]]] = {
        "PENSTOCK_ALARM_RETAINED_WAL": ("1 GB", {"retained_wal": GB}),
        "PENSTOCK_ALARM_SAFE_WAL": ("2 GB", {"safe_wal": 2 * GB}),
        "PENSTOCK_ALARM_DISK_FREE": ("3 GB", {"disk_free": 3 * GB}),
        "PENSTOCK_ALARM_STALLED": ("1 min", {"stalled": timedelta(minutes=1)}),
        "PENSTOCK_ALARM_CLOCK_SKEW": ("1 s", {"clock_skew": timedelta(seconds=1)}),
        "PENSTOCK_DISK_FLOOR": ("1 MB", {"disk_floor": 1 << 20}),
    }
    for variable, (text, changed) in values.items():
        with monkeypatch.context() as patch:
            patch.setenv(variable, text)
            assert limits_from_environment() == replace(Limits(), **changed)
            patch.setenv(variable, "much")
            with pytest.raises(UsageError, match=variable):
                limits_from_environment()
        assert variable in page


def test_other_processes_see_the_memory_of_the_running_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_alarms, "_EACH_SECONDS", 0.01)
    monkeypatch.setenv("PENSTOCK_ALARM_STALLED", "1 ms")
    statuses, reported = [home(lag_bytes=100)], list[str]()
    watch = AlarmWatch(tmp_path, lambda: statuses[0], reported.append)
    try:
        until(lambda: reported, "an alarm")
        assert reported[0].startswith('alarm (critical): source "shop" has changes to capture, and has not moved for')
        later = datetime.now(UTC) + timedelta(minutes=1)
        (alarm,) = with_alarms(tmp_path, statuses[0], later).alarms
        assert datetime.fromisoformat(alarm.since) <= later - timedelta(seconds=59)
        statuses[0] = HOME
        until(lambda: len(reported) > 1, "its end")
        assert reported[1].startswith('alarm ended: source "shop" has changes')
        until(lambda: read_memory(tmp_path) == Memory(), "no memory of it")
        assert with_alarms(tmp_path, HOME).alarms == []
    finally:
        watch.stop()


def test_error_in_a_status_does_not_end_the_watch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_alarms, "_EACH_SECONDS", 0.01)
    statuses, reported = iter([HOME, None, None, slot(wal_status="lost")]), list[str]()
    last = slot(wal_status="lost")

    def status() -> HomeStatus:
        found = next(statuses, last)
        if found is None:
            raise ValueError("row value")
        return found

    watch = AlarmWatch(tmp_path, status, reported.append)
    try:
        until(lambda: len(reported) == 2, "the alarm after the error")
        assert "ValueError" in reported[0]
        assert "row value" not in reported[0]
        assert reported[1].startswith("alarm (critical): replication slot")
    finally:
        watch.stop()


def test_lost_and_missing_slots_of_a_real_server(start_shop: Callable[..., Shop]) -> None:
    """The slot of a stopped home retains WAL; then it is dropped."""
    shop = start_shop("CREATE TABLE orders (id int PRIMARY KEY)")
    assert [a for a in shop.home.status().alarms if a.source == "shop"] == []
    shop.running.stop()
    shop.database.execute("INSERT INTO orders SELECT generate_series(1, 20000)")
    (source,) = shop.home.status().sources
    assert source.slot is not None
    assert source.slot.retained_bytes is not None
    assert (source.slot.active, source.slot.retained_bytes > 1_000_000) == (False, True)
    alarms, _ = evaluate(shop.home.status(), Memory(), Limits(retained_wal=1_000_000), NOW)
    assert [a.code for a in alarms if a.source == "shop"] == ["wal_retained"]
    shop.database.execute("SELECT pg_drop_replication_slot('penstock_shop')")
    (alarm,) = [a for a in shop.home.status().alarms if a.source == "shop"]
    assert (alarm.code, alarm.level) == ("slot_lost", "critical")
    assert "does not exist" in alarm.message


def test_capture_and_apply_pause_before_the_disk_is_full(
    start_shop: Callable[..., Shop], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The floor rises above what is free, and falls again: nothing is lost."""
    shop = start_shop("CREATE TABLE orders (id int PRIMARY KEY)")
    shop.database.execute("INSERT INTO orders VALUES (1)")
    until(lambda: shop.rows("orders") == [{"id": 1}], "the first row")
    monkeypatch.setenv("PENSTOCK_DISK_FLOOR", "100000 TB")

    def paused() -> bool:
        (source,) = shop.home.status().sources
        return bool(source.error and "are free on the disk" in source.error and source.slot and not source.slot.active)

    until(paused, "the pause of capture")
    (source,) = shop.home.status().sources
    assert source.state == SourceState.READY.value
    assert source.hint is not None
    assert "PENSTOCK_DISK_FLOOR" in source.hint
    assert "disk_full" in [alarm.code for alarm in shop.home.status().alarms]
    before = shop.home.frontiers("shop").durable
    shop.database.execute("INSERT INTO orders VALUES (2)")
    assert shop.home.frontiers("shop").durable == before
    monkeypatch.delenv("PENSTOCK_DISK_FLOOR")
    until(lambda: shop.rows("orders") == [{"id": 1}, {"id": 2}], "the second row")

    def applied() -> bool:
        (source,) = shop.home.status().sources
        return source.error is None and source.tables[0].behind == 0

    until(applied, "both rows in the base table, and no error")
    assert "disk_full" not in [alarm.code for alarm in shop.home.status().alarms]
