"""The history of rates and lags: values, rates from counters, and bounds."""

from __future__ import annotations

import itertools
import sys
from typing import Any

import pytest

from penstock.server.history import History

START = 1_795_000_000.0


def document(tables: dict[str, int | None], **source: Any) -> dict[str, Any]:
    """A status with the counts of changes by table."""
    shop = {
        "name": "shop",
        "latency_ms": 12.5,
        "lag_bytes": 100,
        "tables": [
            {"name": f"shop.{name}", "behind": 3} | ({} if count is None else {"changes": count})
            for name, count in tables.items()
        ],
    }
    sink = {"name": "out", "messages": tables.get("orders"), "lag_ms": 40.0, "behind": 2}
    return {"sources": [shop | source], "sinks": [sink]}


def test_rates_are_differences_of_counts() -> None:
    history = History()
    first = history.add(START, document({"orders": 100, "lines": 10}))
    second = history.add(START + 2, document({"orders": 150, "lines": 30}, slot={"retained_bytes": 7}))
    assert first["table:shop.orders"] == {"rate": None, "behind": 3}
    assert second["table:shop.orders"] == {"rate": 25.0, "behind": 3}
    assert second["table:shop.lines"]["rate"] == 10.0
    assert second["source:shop"] == {"rate": 35.0, "lag_ms": 12.5, "lag_bytes": 100, "retained_bytes": 7}
    assert second["sink:out"] == {"rate": 25.0, "lag_ms": 40.0, "behind": 2}


def test_unknown_counts_and_counts_that_begin_again_have_no_rate() -> None:
    history = History()
    history.add(START, document({"orders": 100, "lines": None}))
    point = history.add(START + 1, document({"orders": 5, "lines": None}))
    assert point["table:shop.orders"]["rate"] is None
    assert point["table:shop.lines"]["rate"] is None
    assert point["source:shop"]["rate"] is None
    assert history.add(START + 2, document({"orders": 6}))["source:shop"]["rate"] == 1.0


def test_series_appear_and_disappear_with_their_tables() -> None:
    history = History()
    history.add(START, document({"orders": 1}))
    history.add(START + 1, document({"orders": 2, "new": 5}))
    series = history.as_json()["series"]
    assert series["table:shop.new"]["behind"] == [None, 3]
    history.add(START + 2, document({"new": 6}))
    found = history.as_json()
    assert "table:shop.orders" not in found["series"]
    assert found["series"]["table:shop.new"]["rate"] == [None, None, 1.0]
    assert found["at"] == [START, START + 1, START + 2]


def test_three_hours_take_bounded_memory_and_cover_one_hour() -> None:
    history = History()
    tables = {f"t{number}": 0 for number in range(20)}
    for second in range(3 * 3600):
        history.add(START + second, document(dict.fromkeys(tables, 5 * second)))
    found = history.as_json()
    at = found["at"]
    assert len(at) <= 720
    assert at == sorted(at)
    assert 3590 <= at[-1] - at[0] <= 3610
    assert at[-120:] == [START + 3 * 3600 - 120 + second for second in range(120)], "the newest are one per second"
    assert max(later - earlier for earlier, later in itertools.pairwise(at)) <= 16
    rates = found["series"]["table:shop.t7"]["rate"]
    assert len(rates) == len(at)
    assert set(rates) == {5.0}
    stored = sum(sys.getsizeof(row.values) for row in [*history._fine, *history._coarse])
    assert stored < 720 * 20 * 3 * 8 * 2


@pytest.mark.parametrize("pause", [3, 20])
def test_slow_samples_also_cover_one_hour(pause: int) -> None:
    """A status of hundreds of tables is read less often."""
    history = History()
    for number in range(2 * 3600 // pause):
        history.add(START + pause * number, document({"orders": number}))
    at = history.as_json()["at"]
    assert len(at) <= 720
    assert 3500 <= at[-1] - at[0] <= 3600 + 240 * pause


def test_old_values_are_averages_of_the_known_ones() -> None:
    history = History()
    for second in range(600):
        lag = float(second % 8) if second < 300 else None
        history.add(START + second, document({"orders": second}, latency_ms=lag))
    found = history.as_json()
    lags = found["series"]["source:shop"]["lag_ms"]
    assert lags[0] == pytest.approx(3.5)
    assert lags[-1] is None
