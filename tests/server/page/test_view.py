"""What the page shows, from a status document alone: verdicts, problems, slots, unknown numbers, the drawing."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.server.page.homes import HOMES, RichStatus

from penstock.errors import DefiniteError
from penstock.server.page.levels import worst
from penstock.server.page.pipe import Drawing, draw_pipe
from penstock.server.page.quantities import (
    age_text,
    count_text,
    lag_text,
    parse_moment,
    rate_text,
    short_count_text,
    size_text,
)
from penstock.server.page.view import PageView, page_view, unreadable_view

NOW = datetime(2026, 11, 18, 10, 30, tzinfo=UTC)


def view_of(status: RichStatus, series: dict[str, Any] | None = None, spark: str | None = None) -> PageView:
    return page_view(status.as_json(), series or {}, spark, NOW)


def view(name: str, series: dict[str, Any] | None = None, spark: str | None = None) -> PageView:
    return view_of(HOMES[name](3600.0), series, spark)


# -- verdict -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "level"),
    [
        *(("streaming", "ok"), ("empty", "ok"), ("snapshot", "busy"), ("failed_table", "critical")),
        *(("lost_postgres", "warning"), ("not_running", "idle"), ("wal_alarm", "warning"), ("odd_names", "critical")),
    ],
)
def test_the_level_of_each_state(name: str, level: str) -> None:
    assert view(name).verdict.level == level


def test_what_needs_an_operator_comes_before_what_goes_on_by_itself() -> None:
    waits = "Spark is being started"
    assert view("streaming", spark=waits).verdict.headline == waits
    assert view("failed_table", spark=waits).verdict.headline == "1 table failed: shop.payments"
    failed, lost = HOMES["failed_table"](3600.0), HOMES["lost_postgres"](3600.0)
    both = replace(failed, sources=[failed.sources[0], replace(lost.sources[0], name="other", tables=[])])
    assert view_of(both).verdict.headline == "1 table failed: shop.payments"


def test_a_failed_source_is_named() -> None:
    found = HOMES["streaming"](3600.0)
    failed = replace(found.sources[0], state="failed", error="the slot was dropped", hint="Create the source again.")
    shown = view_of(replace(found, sources=[failed, found.sources[1]]))
    assert shown.verdict.headline == "1 source failed: shop"
    assert [(p.subject, p.message, p.hint) for p in shown.problems] == [
        ("shop", "the slot was dropped", "Create the source again.")
    ]


def test_the_verdict_gives_lag_and_rate() -> None:
    series = {"source:shop": {"rate": 1200.0}, "source:bank": {"rate": 40.0}}
    verdict = view("streaming", series).verdict
    assert verdict.lag.endswith(" ms behind")
    assert verdict.detail == "1,240 changes/s from 2 sources."
    assert view("streaming").verdict.detail == "Waiting for changes."
    assert view("topics").verdict.lag == ""


def test_a_long_name_is_not_part_of_the_verdict() -> None:
    found = HOMES["odd_names"](3600.0)
    tables = [
        replace(t, state="failed" if "very_long" in t.name else "live", error=None) for t in found.sources[0].tables
    ]
    source = replace(found.sources[0], tables=tables, waiting=None)
    assert view_of(replace(found, sources=[source], sinks=[])).verdict.headline == "1 table failed"


def test_an_unreadable_status_is_no_empty_home() -> None:
    shown = unreadable_view(DefiniteError("the catalog is damaged", "Restore it."), "/srv/home", NOW)
    assert (shown.verdict.level, shown.is_empty) == ("critical", False)
    assert shown.problems[0].hint == "Restore it."
    assert draw_pipe(shown)[0].boxes == ()


def test_one_alarm_is_the_verdict_in_a_few_words() -> None:
    found = replace(HOMES["wal_alarm"](3600.0), debts=[])
    assert view_of(found).verdict.headline == "WAL piles up: bank"
    disk = {"level": "critical", "code": "disk_full", "message": "no space", "hint": "", "since": None}
    assert view_of(replace(found, more={"alarms": [disk]})).verdict.headline == "Paused: the disk is full"


# -- problems ----------------------------------------------------------------------------------------------------------


def test_an_error_that_an_alarm_reports_is_listed_once() -> None:
    found = HOMES["failed_table"](3600.0)
    error = next(table.error for table in found.sources[0].tables if table.error)
    alarm = {"level": "critical", "code": "table_failed", "message": error, "hint": "Retry it.", "source": "shop"}
    with_alarm = replace(found, more={**found.more, "alarms": [{**alarm, "table": "shop.payments", "since": None}]})
    assert [(p.subject, p.hint) for p in view_of(with_alarm).problems] == [("shop.payments", "Retry it.")]


def test_problems_are_sorted_by_urgency_and_limited() -> None:
    found = HOMES["many_tables"](3600.0)
    tables = [replace(table, state="failed", error="broken", hint="Retry.") for table in found.sources[0].tables[:20]]
    tables.append(replace(found.sources[0].tables[30], error="merge is retried"))
    shown = view_of(replace(found, sources=[replace(found.sources[0], tables=tables)]))
    assert {problem.level for problem in shown.problems} == {"critical"}
    assert len(shown.problems) + shown.more_problems == 21
    assert shown.tables[-1].level == "warning"


def test_objects_left_upstream_are_a_problem_with_the_statement() -> None:
    (debt,) = [problem for problem in view("wal_alarm").problems if problem.subject == "old"]
    assert "SELECT pg_drop_replication_slot('penstock_old');" in (debt.hint or "")


# -- numbers -----------------------------------------------------------------------------------------------------------


def test_missing_fields_are_unknown_and_not_zero() -> None:
    document = {"home": "h", "running": 1, "sources": [{"name": "s", "tables": [{"name": "s.t", "state": "live"}]}]}
    shown = page_view(document, {}, None, NOW)
    (table,), (source,) = shown.tables, shown.sources
    assert (table.rows, table.rate, table.behind, table.lag_ms) == (None, None, None, None)
    assert (source.lag_bytes, source.latency_ms, source.slot, source.log_bytes, source.committed) == (None,) * 5
    assert draw_pipe(shown)[0].boxes


@pytest.mark.parametrize(
    ("change", "level", "fraction"),
    [
        ({}, "ok", 0.125),
        ({"retained_bytes": 5, "safe_bytes": 3}, "warning", 0.625),
        ({"retained_bytes": 7, "safe_bytes": 1}, "critical", 0.875),
        ({"retained_bytes": 8, "safe_bytes": -2}, "critical", 1.0),
        ({"safe_bytes": None}, "ok", None),
        ({"safe_bytes": None, "wal_status": "extended"}, "warning", None),
        ({"active": False}, "warning", 0.125),
        ({"wal_status": "lost"}, "critical", 0.125),
        ({"invalidated": "wal_removed"}, "critical", 0.125),
        ({"retained_bytes": None}, "ok", None),
    ],
)
def test_the_level_of_a_slot_warns_before_it_is_lost(
    change: dict[str, Any], level: str, fraction: float | None
) -> None:
    base = {"name": "p", "active": True, "wal_status": "reserved", "retained_bytes": 1, "safe_bytes": 7}
    found = HOMES["streaming"](3600.0)
    shown = view_of(replace(found, more={"sources": {"shop": {"slot": {**base, **change}}}}))
    slot = shown.sources[0].slot
    assert slot is not None
    assert (slot.level, slot.fraction) == (level, fraction)


def test_a_snapshot_never_claims_to_be_complete() -> None:
    """Postgres estimates the number of rows, and the estimate may be too low."""
    found = HOMES["snapshot"](3600.0)
    tables = [replace(table, copied_rows=500, estimated_rows=100) for table in found.sources[0].tables]
    shown = view_of(replace(found, sources=[replace(found.sources[0], tables=tables)]))
    (orders,) = [table for table in shown.tables if table.name == "shop.orders"]
    assert orders.fraction == 0.99
    assert orders.progress == "500 of about 500 rows"


def test_numbers_as_text() -> None:
    assert [count_text(0), count_text(1_234_567)] == ["0", "1,234,567"]
    assert [short_count_text(n) for n in (9_999, 12_300, 450_000, 4_500_000)] == ["9,999", "12.3 k", "450 k", "4.5 M"]
    assert [rate_text(r) for r in (0, 0.04, 3.21, 12.4, 1240)] == ["0/s", "0.0/s", "3.2/s", "12/s", "1,240/s"]
    assert [size_text(n) for n in (0, 999, 1 << 20, 1500 << 20)] == ["0 B", "999 B", "1.0 MB", "1.5 GB"]
    assert [lag_text(ms) for ms in (0.2, 40, 1500, 90_000, 7_200_000)] == [
        "under 1 ms",
        "40 ms",
        "1.5 s",
        "2 min",
        "2 h",
    ]
    assert age_text(None, NOW) is None
    assert age_text((NOW - timedelta(minutes=3)).isoformat(), NOW) == "3 min ago"
    assert age_text((NOW + timedelta(seconds=3)).isoformat(), NOW) == "just now"
    moment = parse_moment("2026-11-18T10:30:00")
    assert moment == NOW


def test_worst_level() -> None:
    assert worst([]) == "idle"
    assert worst(["ok", "warning", "busy"]) == "warning"


# -- drawing -----------------------------------------------------------------------------------------------------------


def boxes(drawing: Drawing, kind: str) -> list[str]:
    return [box.title for box in drawing.boxes if box.kind == kind]


@pytest.mark.parametrize("name", HOMES)
def test_boxes_of_a_drawing_are_inside_it_and_do_not_overlap(name: str) -> None:
    for drawing in draw_pipe(view(name)):
        for place, box in enumerate(drawing.boxes):
            assert 0 <= box.x <= box.x + box.width <= drawing.width
            assert 0 <= box.y <= box.bottom <= drawing.height
            for other in drawing.boxes[:place]:
                beside = box.x >= other.x + other.width or other.x >= box.x + box.width
                assert beside or box.y >= other.bottom or other.y >= box.bottom
            assert all(box.y < dot.y and dot.y + dot.height < box.bottom for dot in box.dots)


def test_shards_are_one_box_and_the_last_box_is_the_rest() -> None:
    assert boxes(draw_pipe(view("shards"))[0], "source") == ["app"]
    assert boxes(draw_pipe(view("shards"))[0], "sink") == ["posts_out"]
    many = draw_pipe(view("many_sources"))[0]
    assert boxes(many, "source")[-1] == "6 more sources"
    assert boxes(many, "sink")[:4] == ["out_region_0", "more_0", "more_1", "4 more sinks"]


def test_water_stops_where_a_source_is_lost() -> None:
    lost = draw_pipe(view("lost_postgres", {"source:shop": {"rate": 0.0}}))[0]
    assert [pipe.level for pipe in lost.pipes[:2]] == ["warning", "ok"]
    assert {pipe.level for pipe in draw_pipe(view("not_running"))[0].pipes} == {"idle"}
