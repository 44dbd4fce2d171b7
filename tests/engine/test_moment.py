"""Which positions a moment means, for one source and for several."""

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
from penstock.engine.as_of import asked_of, choose_positions, seconds
from penstock.errors import HistoryExpiredError, TransientError, UsageError
from penstock.positions import Lsn, parse_as_of
from penstock.testing.waiting import PATIENCE, stays

NOON = moment(later(12))
DAY = datetime(2026, 11, 15, 12, 30, tzinfo=UTC)


class Two:
    """Two sources, whose logs are written by hand."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.logs = {name: SqliteLog(folder / f"{name}.db") for name in ("a", "b")}
        self.writers: dict[str, ChangeLogWriter] = {}
        for name, log in self.logs.items():
            log.create(Lsn(10))
            self.writers[name] = stack.enter_context(closing(log.writer()))
            self.writers[name].define(ORDERS, Lsn(10))

    def at(self, as_of: Any, wait: float = 0.0) -> dict[str, Lsn]:
        found = choose_positions(self.logs, asked_of(as_of, sorted(self.logs)), wait)
        return {source: chosen.position for source, chosen in found.items()}


@pytest.fixture
def two(tmp_path: Path) -> Iterator[Two]:
    with ExitStack() as stack:
        made = Two(tmp_path, stack)
        publish(made.writers["a"], (20, later(10)), (21, later(11)), (22, later(20)))
        publish(made.writers["b"], (500, later(9)), (600, later(11.5)), (700, later(30)))
        yield made


@pytest.mark.parametrize(
    ("text", "found"),
    [("0/1F", Lsn(31)), (Lsn(31), Lsn(31)), (DAY, DAY), (DAY.isoformat(), DAY), (f" {DAY.isoformat()} ", DAY)],
)
def test_positions_and_moments_as_they_are_written(text: Any, found: Any) -> None:
    assert parse_as_of(text) == found


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (datetime(2026, 11, 15, 12), r"12:00:00 does not say its time zone\nWrite it with one: 2026-11-15T12:00:00Z"),  # noqa: DTZ001
        ("2026-11-15", "does not say its time zone"),
        ("soon", "'soon' is neither an LSN nor a time"),
        (17, "a int is neither a position nor a moment"),
    ],
)
def test_what_is_neither(given: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        parse_as_of(given)


def test_what_is_asked_of_each_source() -> None:
    assert asked_of(None, ["a", "b"]) == {"a": None, "b": None}
    assert asked_of(NOON, ["a", "b"]) == {"a": NOON, "b": NOON}
    assert asked_of("0/1F", ["a"]) == {"a": 31}
    assert asked_of({"b": "0/1F"}, ["a", "b"]) == {"a": None, "b": 31}
    with pytest.raises(UsageError, match="several sources") as caught:
        asked_of("0/1F", ["a", "b"])
    assert "as_of={'a': '0/1F'}" in caught.value.hint
    with pytest.raises(UsageError, match="there is no source c"):
        asked_of({"c": NOON}, ["a", "b"])


def test_how_long_to_wait() -> None:
    assert [seconds(wait) for wait in (None, 2, 0.5, timedelta(minutes=1))] == [0.0, 2, 0.5, 60.0]


def test_a_moment_is_the_last_transaction_at_or_before_it_in_each_source(two: Two) -> None:
    assert two.at(NOON) == {"a": 21, "b": 600}
    assert two.at(moment(later(11.4))) == {"a": 21, "b": 500}
    assert two.at(moment(later(1))) == {"a": 10, "b": 10}
    assert two.at(None) == {"a": 22, "b": 700}
    assert two.at({"a": "0/15"}) == {"a": 21, "b": 700}
    assert two.at({"b": Lsn(650)}) == {"a": 22, "b": 650}


def test_a_moment_that_not_all_have_passed(two: Two) -> None:
    with pytest.raises(TransientError) as caught:
        two.at(moment(later(25)))
    assert f"source a has come to {moment(later(20)).isoformat(sep=' ')}, not to" in caught.value.message
    assert "source b" not in caught.value.message
    two.writers["a"].publish([], Lsn(40), passed=later(26))
    assert two.at(moment(later(25))) == {"a": 22, "b": 600}
    with pytest.raises(TransientError, match=r"source a has come to 0/28, not to 0/29"):
        two.at({"a": Lsn(41)})


def test_before_history_begins(two: Two) -> None:
    two.writers["a"].retain(moment(later(11)))
    begun = f"its history begins at 0/15 ({moment(later(11)).isoformat(sep=' ')})"
    for asked in (moment(later(10.5)), {"a": Lsn(20)}):
        with pytest.raises(HistoryExpiredError) as caught:
            two.at(asked)
        assert begun in caught.value.message
        assert caught.value.message.startswith("source a cannot be read as of ")
    assert two.at(moment(later(11))) == {"a": 21, "b": 500}


def test_waiting(two: Two) -> None:
    found: list[dict[str, Lsn]] = []
    waiting = threading.Thread(target=lambda: found.append(two.at(moment(later(25)), wait=PATIENCE)))
    waiting.start()
    stays(lambda: found == [], "it waits", 0.3)
    two.writers["a"].publish([], Lsn(40), passed=later(26))
    waiting.join(PATIENCE)
    assert found == [{"a": 22, "b": 600}]
