"""The status as Prometheus metrics."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from penstock.engine.metrics import metrics_text
from penstock.engine.status import HomeStatus, ReaderStatus, SinkStatus, SourceStatus, TableStatus
from penstock.positions import Lsn


def source(name: str, state: str, lag: int | None, durable: str | None) -> SourceStatus:
    tables = [TableStatus(f"{name}.t", 'public."t"', "live", "0/10", 7, None, None)]
    readers = [ReaderStatus("tables", "0/10", None)]
    at = "2026-11-15T07:15:58.101+00:00"
    return SourceStatus(
        *(name, "POSTGRES", "db/x", state, durable, durable, at, 12.5, lag, None, None, None), tables, readers
    )


def test_metrics_by_source_and_table() -> None:
    status = HomeStatus(1, "home", None, [source("a", "ready", 4096, "1/A0"), source("b", "failed", None, None)])
    samples = {
        (sample.name, *sorted(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(metrics_text(status))
        for sample in family.samples
    }
    assert samples["penstock_source_durable_lsn", "a"] == Lsn.parse("1/A0")
    assert samples["penstock_source_up", "a"] == 1
    assert samples["penstock_source_up", "b"] == 0
    assert samples["penstock_source_state", "a", "ready"] == samples["penstock_source_state", "b", "failed"] == 1
    assert samples["penstock_source_lag_bytes", "a"] == 4096
    assert samples["penstock_source_commit_to_readable_seconds", "a"] == 0.0125
    assert samples["penstock_table_behind", "a", "live", 'public."t"'] == 7
    assert samples["penstock_reader_lsn", "b", "tables"] == 16
    assert ("penstock_source_lag_bytes", "b") not in samples, "unknown values are omitted"
    assert ("penstock_source_durable_lsn", "b") not in samples


def test_snapshot_progress_metrics() -> None:
    shop = source("a", "ready", 0, "1/A0")
    shop.tables.append(TableStatus("a.u", "public.u", "pending", None, 0, None, None, 10, 200, 30, 400))
    samples = {
        (sample.name, sample.labels["table"]): sample.value
        for family in text_string_to_metric_families(metrics_text(HomeStatus(1, "home", 1, [shop])))
        for sample in family.samples
        if family.name.startswith(("penstock_table_copied", "penstock_table_estimated"))
    }
    assert samples == {
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
    samples = {
        (sample.name.removeprefix("penstock_sink_"), sample.labels["sink"]): sample.value
        for family in text_string_to_metric_families(metrics_text(HomeStatus(1, "home", 1, [], [], sinks)))
        for sample in family.samples
    }
    assert samples == {
        ("up", "out"): 1,
        ("written_lsn", "out"): Lsn.parse("1/A0"),
        ("behind", "out"): 3,
        ("commit_to_written_seconds", "out"): 0.0415,
        ("messages", "out"): 7,
        ("up", "all"): 0,
        ("up", "shards"): 1,
    }
