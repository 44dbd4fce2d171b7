"""The metrics: of a status, of processes, of a running home; and every one of them in the documentation."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.engine.shop import Shop, until

from penstock.engine.instruments import count_error
from penstock.engine.metrics import descriptions, metrics_text
from penstock.engine.processes import process_usage
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
from penstock.errors import TransientError
from penstock.positions import Lsn
from penstock.sources.upstream_status import SlotStatus

PAGE = Path(__file__).parents[2] / "docs/reference/metrics.md"


def source(name: str, state: str, lag: int | None, durable: str | None) -> SourceStatus:
    tables = [TableStatus(f"{name}.t", 'public."t"', "live", "0/10", 7, None, None, changes=1234, lag_ms=1500.0)]
    readers = [ReaderStatus("tables", "0/10", None, 60_000.0)]
    at = "2026-11-15T07:15:58.101+00:00"
    return SourceStatus(
        *(name, "POSTGRES", "db/x", state, durable, durable, at, 12.5, lag, None, None, None), tables, readers
    )


def samples(status: HomeStatus) -> dict[tuple[str, ...], float]:
    """All samples, by name and sorted label values without empty ones."""
    return {
        (sample.name, *sorted(value for value in sample.labels.values() if value)): sample.value
        for family in text_string_to_metric_families(metrics_text(status))
        for sample in family.samples
    }


def series(name: str) -> str:
    """The name of a metric, for that of one of its series."""
    return re.sub("_(bucket|sum|count)$", "", name) if name.endswith(_PARTS) else name


_PARTS = ("_seconds_bucket", "_seconds_sum", "_seconds_count")


def test_metrics_by_source_and_table() -> None:
    status = HomeStatus(1, "home", None, [source("a", "ready", 4096, "1/A0"), source("b", "failed", None, None)])
    found = samples(status)
    assert found["penstock_source_durable_lsn", "a"] == Lsn.parse("1/A0")
    assert found["penstock_source_up", "a"] == 1
    assert found["penstock_source_up", "b"] == 0
    assert found["penstock_source_state", "a", "ready"] == found["penstock_source_state", "b", "failed"] == 1
    assert found["penstock_source_lag_bytes", "a"] == 4096
    assert found["penstock_source_commit_to_readable_seconds", "a"] == 0.0125
    assert found["penstock_table_behind", "a", 'public."t"'] == 7
    assert found["penstock_table_state", "a", "live", 'public."t"'] == 1
    assert found["penstock_table_changes_total", "a", 'public."t"'] == 1234
    assert found["penstock_table_lag_seconds", "a", 'public."t"'] == 1.5
    assert found["penstock_reader_lsn", "b", "tables"] == 16
    assert found["penstock_reader_lag_seconds", "b", "tables"] == 60
    assert ("penstock_source_lag_bytes", "b") not in found, "unknown values are omitted"
    assert ("penstock_source_durable_lsn", "b") not in found
    assert found["penstock_running",] == 0


def test_positions_are_exact_up_to_the_documented_one() -> None:
    last = "1FFFFF/FFFFFFFF"
    status = HomeStatus(1, "home", None, [source("a", "ready", 0, last)])
    assert int(samples(status)["penstock_source_durable_lsn", "a"]) == Lsn.parse(last) == 2**53 - 1
    assert "LSN 200000/0" in PAGE.read_text()


def test_slot_disk_and_alarms() -> None:
    slot = SlotStatus("penstock_a", True, "extended", 5000, 700, "1/A0")
    gone = SlotStatus("penstock_b", False, None, None, None, None, "it does not exist")
    sources = [
        replace(source("a", "ready", 0, "1/A0"), slot=slot, clock_skew_ms=-2500.0, log_bytes=9000),
        replace(source("b", "failed", 0, "1/A0"), slot=gone),
    ]
    alarms = [
        AlarmStatus("critical", "disk_low", "full", "Free some.", since="2026-11-15T07:15:58+00:00"),
        AlarmStatus("warning", "no_progress", "stuck", "Look.", "a", "public.t", since="2026-11-15T07:15:58+00:00"),
    ]
    process = ProcessStatus(1, "restarting Spark", "", "", 3)
    found = samples(HomeStatus(1, "home", None, sources, process=process, disk=DiskStatus(10, 100), alarms=alarms))
    assert found["penstock_slot_active", "a", "penstock_a"] == 1
    assert found["penstock_slot_retained_bytes", "a", "penstock_a"] == 5000
    assert found["penstock_slot_safe_bytes", "a", "penstock_a"] == 700
    assert found["penstock_slot_wal_status", "a", "extended", "penstock_a"] == 1
    assert found["penstock_slot_wal_status", "b", "missing", "penstock_b"] == 1
    assert ("penstock_slot_retained_bytes", "b", "penstock_b") not in found
    assert found["penstock_source_clock_skew_seconds", "a"] == -2.5
    assert found["penstock_source_log_bytes", "a"] == 9000
    assert (found["penstock_disk_free_bytes",], found["penstock_disk_total_bytes",]) == (10, 100)
    assert found["penstock_alarm", "critical", "disk_low"] == 1
    assert found["penstock_spark_restarts_total",] == 3
    assert found["penstock_run_state", "restarting Spark"] == 1
    assert found["penstock_alarm", "a", "no_progress", "public.t", "warning"] == 1


def test_errors_are_counted_by_class_without_their_text() -> None:
    key = ("penstock_errors_total", "TransientError", "counted")
    before = samples(HomeStatus(1, "home", None, [])).get(key, 0)
    count_error(TransientError("a secret of counted"), "counted")
    text = metrics_text(HomeStatus(1, "home", None, []))
    assert samples(HomeStatus(1, "home", None, []))[key] == before + 1
    assert "secret" not in text


def test_errors_of_capture_are_counted_by_class(start_shop: Callable[..., Shop]) -> None:
    """The server ends the connection, and capture connects again."""
    shop = start_shop("CREATE TABLE orders (id int PRIMARY KEY)")
    shop.database.execute("SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE active")

    def counted() -> dict[tuple[str, ...], float]:
        return {key: n for key, n in samples(shop.home.status()).items() if key[0] == "penstock_capture_errors_total"}

    until(counted, "the error")
    until(lambda: (slot := shop.home.status().sources[0].slot) is not None and slot.active, "the stream")
    assert sum(counted().values()) >= 1
    assert all(key[1:] != ("DefiniteError", "shop") for key in counted())


def test_memory_of_the_processes() -> None:
    found = samples(HomeStatus(1, "home", os.getpid(), []))
    assert found["penstock_process_resident_memory_bytes", "run"] > 1 << 20
    assert found["penstock_process_threads", "run"] >= 1
    assert found["penstock_process_open_files", "run"] >= 3
    assert found["penstock_process_cpu_seconds_total", "run"] > 0
    assert process_usage(None) == []


def test_every_metric_is_documented_and_every_documented_one_is_in_the_output() -> None:
    """Both directions, and with type and labels: names in the page against names in the output."""
    documented = re.findall(r"^\| `(penstock_\w+)` \| (\w+) \|", PAGE.read_text(), re.MULTILINE)
    text = metrics_text(HomeStatus(1, "home", os.getpid(), [source("a", "ready", 1, "1/A0")]))
    output = re.findall(r"^# TYPE (penstock_\w+) (\w+)$", text, re.MULTILINE)
    assert sorted(documented) == sorted(output)
    assert len(set(documented)) == len(documented)
    labels = {each.name: set(each.labels) for each in descriptions()}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            extra = {"le"} if sample.name.endswith("_bucket") else set()
            assert set(sample.labels) == labels[series(sample.name)] | extra, sample.name


@pytest.mark.parametrize("each", descriptions(), ids=lambda each: each.name)
def test_names_follow_the_habits_of_prometheus(each: Any) -> None:
    assert re.fullmatch(r"penstock_[a-z]+(_[a-z]+)*", each.name)
    assert (each.type == "counter") == each.name.endswith("_total")
    assert not re.search(r"_(ms|milliseconds|kb|mb|minutes)(_|$)", each.name), "base units"
    if each.type == "histogram":
        assert each.name.endswith(("_seconds", "_bytes"))
    assert each.help[0].isalnum() and not each.help.endswith(".")


SETUP = """
CREATE TABLE orders (id int PRIMARY KEY, note text); ALTER TABLE orders REPLICA IDENTITY FULL;
CREATE TABLE items (id int PRIMARY KEY, note text);
INSERT INTO orders SELECT n, 'old' FROM generate_series(1, 100) n
"""
LOAD = (
    "INSERT INTO orders SELECT n, 'new' FROM generate_series(101, 150) n",
    "UPDATE orders SET note = 'changed' WHERE id <= 30",
    "DELETE FROM orders WHERE id > 140",
    "INSERT INTO items SELECT n, 'new' FROM generate_series(1, 7) n",
    "UPDATE items SET id = id + 100",
    "BEGIN; INSERT INTO items VALUES (1, 'not committed'); ROLLBACK",
)
CHANGES = {"public.orders": 50 + 30 + 10, "public.items": 7 + 7}


def test_metrics_agree_with_a_known_load(start_shop: Callable[..., Shop]) -> None:
    """Updates with old rows and changed keys are one change each, and rows of the snapshot are none."""
    shop = start_shop(SETUP)
    for statement in LOAD:
        shop.database.execute(statement)

    def measured() -> dict[tuple[str, ...], float]:
        return samples(shop.home.status())

    def captured() -> bool:
        return all(measured().get(("penstock_table_changes_total", t, "shop"), 0) >= n for t, n in CHANGES.items())

    def applied() -> bool:
        found = measured()
        return all(found["penstock_table_behind", t, "shop"] == 0 for t in CHANGES)

    until(captured, "all changes in the log")
    until(applied, "all changes applied")
    found, status = measured(), shop.home.status()
    assert {t: found["penstock_table_changes_total", t, "shop"] for t in CHANGES} == CHANGES
    assert all(found["penstock_table_lag_seconds", t, "shop"] == 0 for t in CHANGES)
    (table, *_) = [t for t in status.sources[0].tables if t.upstream == "public.orders"]
    assert found["penstock_table_applied_lsn", "public.orders", "shop"] == Lsn.parse(table.position or "")
    assert found["penstock_source_log_bytes", "shop"] > 0
    assert found["penstock_slot_active", "penstock_shop", "shop"] == 1
    assert found["penstock_slot_retained_bytes", "penstock_shop", "shop"] >= 0
    assert found["penstock_slot_wal_status", "penstock_shop", "reserved", "shop"] == 1
    assert abs(found["penstock_source_clock_skew_seconds", "shop"]) < 60, "the same machine"
    assert found["penstock_merge_seconds_count", "shop"] >= 2
    assert found["penstock_apply_round_seconds_count", "shop"] >= 1
    assert found["penstock_snapshot_seconds_count", "shop"] >= 2
    assert found["penstock_source_complete_timestamp_seconds", "shop"] > 0


def test_upstream_that_does_not_answer_has_no_lag_and_no_slot(start_shop: Callable[..., Shop]) -> None:
    shop = start_shop("CREATE TABLE orders (id int PRIMARY KEY)")
    assert ("penstock_source_lag_bytes", "shop") in samples(shop.home.status())
    record = shop.catalog.source("shop")
    assert record is not None
    elsewhere = re.sub(r"port=\d+", "port=1", record.instance)
    assert elsewhere != record.instance
    shop.running.stop()
    shop.catalog.set_source("shop", record.state, instance=elsewhere)
    status = shop.home.status()
    shop.catalog.set_source("shop", record.state, instance=record.instance)
    (found,) = status.sources
    assert (found.lag_bytes, found.slot, found.clock_skew_ms) == (None, None, None)
    assert found.log_bytes is not None
    assert not [name for name in samples(status) if name[0].startswith(("penstock_slot", "penstock_source_lag"))]


def test_snapshot_progress_metrics() -> None:
    shop = source("a", "ready", 0, "1/A0")
    shop.tables.append(TableStatus("a.u", "public.u", "pending", None, 0, None, None, 10, 200, 30, 400))
    found = {
        (sample.name, sample.labels["table"]): sample.value
        for family in text_string_to_metric_families(metrics_text(HomeStatus(1, "home", 1, [shop])))
        for sample in family.samples
        if family.name.startswith(("penstock_table_copied", "penstock_table_estimated"))
    }
    assert found == {
        ("penstock_table_copied_rows", "public.u"): 10,
        ("penstock_table_copied_bytes", "public.u"): 200,
        ("penstock_table_estimated_rows", "public.u"): 30,
        ("penstock_table_estimated_bytes", "public.u"): 400,
    }


def test_metrics_of_sinks() -> None:
    running = SinkStatus("out", "shop", "t", "t at k", "upsert", "json", "running", "1/A0", 3, 41.5, 7)
    failed = SinkStatus("all", "shop", None, "s.* at k", "changes", "json", "failed", error="broken")
    shards = SinkStatus("shards", "shards", None, "s.* at k", "changes", "json", "running", "1/A0 2/B0")
    sinks = [running, failed, shards]
    found = {
        (sample.name.removeprefix("penstock_sink_"), sample.labels["sink"]): sample.value
        for family in text_string_to_metric_families(metrics_text(HomeStatus(1, "home", 1, [], [], sinks)))
        for sample in family.samples
        if family.name.startswith("penstock_sink_") and "batch" not in family.name
    }
    assert found == {
        ("up", "out"): 1,
        ("written_lsn", "out"): Lsn.parse("1/A0"),
        ("behind", "out"): 3,
        ("commit_to_written_seconds", "out"): 0.0415,
        ("messages_total", "out"): 7,
        ("error", "out"): 0,
        ("up", "all"): 0,
        ("error", "all"): 1,
        ("up", "shards"): 1,
        ("error", "shards"): 0,
    }
