"""Which positions a time selects, for one source and for several."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.changelog.chunks import ORDERS
from tests.changelog.test_retention import later, moment, publish

from penstock.changelog.interface import ChangeLogWriter
from penstock.changelog.sqlite.log import SqliteLog
from penstock.engine.as_of import choose_positions, requested_positions, seconds
from penstock.errors import HistoryExpiredError, TransientError, UsageError
from penstock.positions import Lsn, parse_as_of
from penstock.testing.waiting import PATIENCE, stays

NOON = moment(later(12))
DAY = datetime(2026, 11, 15, 12, 30, tzinfo=UTC)


class TwoSources:
    """Two sources whose logs the test writes."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.logs = {name: SqliteLog(folder / f"{name}.db") for name in ("a", "b")}
        self.writers: dict[str, ChangeLogWriter] = {}
        for name, log in self.logs.items():
            log.create(Lsn(10))
            self.writers[name] = stack.enter_context(closing(log.writer()))
            self.writers[name].define(ORDERS, Lsn(10))

    def at(self, as_of: Any, wait: float = 0.0) -> dict[str, Lsn]:
        positions = choose_positions(self.logs, requested_positions(as_of, sorted(self.logs)), wait)
        return {source: chosen.position for source, chosen in positions.items()}


@pytest.fixture
def two_sources(tmp_path: Path) -> Iterator[TwoSources]:
    with ExitStack() as stack:
        sources = TwoSources(tmp_path, stack)
        publish(sources.writers["a"], (20, later(10)), (21, later(11)), (22, later(20)))
        publish(sources.writers["b"], (500, later(9)), (600, later(11.5)), (700, later(30)))
        yield sources


@pytest.mark.parametrize(
    ("text", "expected"),
    [("0/1F", Lsn(31)), (Lsn(31), Lsn(31)), (DAY, DAY), (DAY.isoformat(), DAY), (f" {DAY.isoformat()} ", DAY)],
)
def test_as_of_accepts_positions_and_times(text: Any, expected: Any) -> None:
    assert parse_as_of(text) == expected


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (datetime(2026, 11, 15, 12), r"12:00:00 has no time zone\nhint: Add one: 2026-11-15T12:00:00Z"),  # noqa: DTZ001
        ("2026-11-15", "has no time zone"),
        ("soon", "'soon' is neither an LSN nor a time"),
        (17, "of type int: expected an LSN or a timestamp"),
    ],
)
def test_invalid_as_of_values(given: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_as_of(given)


def test_requested_positions_per_source() -> None:
    assert requested_positions(None, ["a", "b"]) == {"a": None, "b": None}
    assert requested_positions(NOON, ["a", "b"]) == {"a": NOON, "b": NOON}
    assert requested_positions("0/1F", ["a"]) == {"a": 31}
    assert requested_positions({"b": "0/1F"}, ["a", "b"]) == {"a": None, "b": 31}
    with pytest.raises(UsageError, match="several sources") as caught:
        requested_positions("0/1F", ["a", "b"])
    assert "as_of={'a': '0/1F'}" in caught.value.hint
    with pytest.raises(UsageError, match="source c, which does not exist"):
        requested_positions({"c": NOON}, ["a", "b"])


def test_wait_in_seconds() -> None:
    assert [seconds(wait) for wait in (None, 2, 0.5, timedelta(minutes=1))] == [0.0, 2, 0.5, 60.0]


def test_time_selects_the_last_transaction_at_or_before_it_in_each_source(two_sources: TwoSources) -> None:
    assert two_sources.at(NOON) == {"a": 21, "b": 600}
    assert two_sources.at(moment(later(11.4))) == {"a": 21, "b": 500}
    assert two_sources.at(moment(later(1))) == {"a": 10, "b": 10}
    assert two_sources.at(None) == {"a": 22, "b": 700}
    assert two_sources.at({"a": "0/15"}) == {"a": 21, "b": 700}
    assert two_sources.at({"b": Lsn(650)}) == {"a": 22, "b": 650}


def test_time_that_not_all_sources_have_reached(two_sources: TwoSources) -> None:
    with pytest.raises(TransientError) as caught:
        two_sources.at(moment(later(25)))
    assert f"source a has reached {moment(later(20)).isoformat(sep=' ')}, not" in caught.value.message
    assert "source b" not in caught.value.message
    two_sources.writers["a"].publish([], Lsn(40), passed=later(26))
    assert two_sources.at(moment(later(25))) == {"a": 22, "b": 600}
    with pytest.raises(TransientError, match=r"source a has reached 0/28, not 0/29"):
        two_sources.at({"a": Lsn(41)})


def test_as_of_before_the_start_of_history(two_sources: TwoSources) -> None:
    two_sources.writers["a"].retain(moment(later(11)))
    message = f"its history begins at 0/15 ({moment(later(11)).isoformat(sep=' ')})"
    for as_of in (moment(later(10.5)), {"a": Lsn(20)}):
        with pytest.raises(HistoryExpiredError) as caught:
            two_sources.at(as_of)
        assert message in caught.value.message
        assert caught.value.message.startswith("source a cannot be read as of ")
    assert two_sources.at(moment(later(11))) == {"a": 21, "b": 500}


def test_wait_for_a_future_time(two_sources: TwoSources) -> None:
    positions: list[dict[str, Lsn]] = []
    thread = threading.Thread(target=lambda: positions.append(two_sources.at(moment(later(25)), wait=PATIENCE)))
    thread.start()
    stays(lambda: positions == [], "the view waits", 0.3)
    two_sources.writers["a"].publish([], Lsn(40), passed=later(26))
    thread.join(PATIENCE)
    assert positions == [{"a": 22, "b": 600}]
