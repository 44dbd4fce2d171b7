"""Calls of a function, on a real log: whatever fails, a call that did not return is repeated with the same rows."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest
from py4j.protocol import Py4JError
from pyspark.errors import PySparkValueError
from tests.changelog.chunks import ORDERS, inserted
from tests.seeds import seed
from tests.sinks.test_delivery import NEEDS, Setup

from penstock.errors import DefiniteError, TransientError
from penstock.model import TableName
from penstock.positions import Lsn
from penstock.sinks import delivery
from penstock.sinks.call_record import CallRecord, RecordedCall, calls_path, remove_calls
from penstock.sinks.delivery import Delivery, TableImages
from penstock.sinks.function.output import ChangeFrame, Frames, FunctionOutput

Range = tuple[Lsn | None, Lsn]


class FakeFrames(Frames):
    """Positions of changes, or the name of a table, in place of DataFrames."""

    @contextmanager
    def snapshot(self, table: TableName, at: Lsn) -> Iterator[list[int]]:
        yield [-1]

    @contextmanager
    def changes(self, tables: Iterable[TableImages]) -> Iterator[ChangeFrame]:
        found = [lsn for each in tables for lsn in each.images.column("_lsn").to_pylist()]
        yield ChangeFrame(found, len(found), 1 if found else None)


class Crash(BaseException):
    """The end of the process: no handler of Penstock runs."""


class Calls:
    """A sink of one table, in processes that crash: each `deliver` is one process."""

    def __init__(self, folder: Path) -> None:
        self.setup = Setup(folder)
        del self.setup.tables.found[TableName("public", "items")]
        self.setup.tables.counts["orders"] = 0  # rows are read by Spark
        self.home = folder / "home"
        self.begun: list[tuple[Range, list[int]]] = []
        self.ended: list[tuple[Range, list[int]]] = []
        self.fails: Iterator[str | None] = iter(())
        self.started = False

    def function(self, df: list[int], first: Lsn | None, last: Lsn) -> None:
        call = (first, last), df
        self.begun.append(call)
        match next(self.fails, None):
            case "inside":
                raise Crash
            case "error":
                raise ValueError("12 apples\nare too many")
            case "after":
                self.ended.append(call)
                raise Crash  # the record was not written
        self.ended.append(call)

    def output(self) -> FunctionOutput:
        record = CallRecord(self.home, "out", "shop")
        return FunctionOutput(lambda: self.function, "mine:to_http", FakeFrames(), record, started=self.started)

    def delivery(self, *, snapshot: bool = True) -> Delivery:
        tables, log = self.setup.tables, self.setup.log
        return Delivery("sink-out", log, tables, self.output(), snapshot=snapshot, needs=NEEDS)

    def deliver(self, *, snapshot: bool = True) -> None:
        """Deliver everything that is in the log."""
        with closing(self.delivery(snapshot=snapshot)) as opened:
            opened.open(1.0, started=self.started)
            while opened.step(0.0) or not self.is_done(opened):
                self.started = True

    def is_done(self, opened: Delivery) -> bool:
        found = opened.position
        return found is not None and found.tables.keys() == self.setup.tables.states().keys()

    def ranges(self) -> list[Range]:
        return [call[0] for call in self.ended]


@pytest.fixture
def calls(tmp_path: Path) -> Iterator[Calls]:
    made = Calls(tmp_path)
    yield made
    made.setup.writer.close()


def test_snapshot_then_contiguous_ranges(calls: Calls, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery, "_IDLE_SECONDS", 0.0)  # the position advances between calls
    calls.setup.publish((ORDERS, inserted(20)))
    calls.deliver()
    for lsn in (30, 40):
        calls.setup.writer.publish([], Lsn(lsn - 5))
        calls.deliver()
        calls.setup.publish((ORDERS, inserted(lsn)))
        calls.deliver()
    assert calls.ended == [((None, 20), [-1]), ((20, 30), [30]), ((30, 40), [40])]


def test_changes_only(calls: Calls) -> None:
    calls.setup.publish((ORDERS, inserted(20)))
    calls.deliver(snapshot=False)
    calls.setup.publish((ORDERS, inserted(30, 0)), (ORDERS, inserted(30, 1)))
    calls.deliver(snapshot=False)
    assert calls.ended == [((20, 30), [30, 30])]


@pytest.mark.parametrize("where", ["inside", "error", "after"])
def test_call_that_did_not_return_is_repeated_with_the_same_range(calls: Calls, where: str) -> None:
    calls.fails = iter([where, None, where])
    for lsn in (20, 30):
        calls.setup.publish((ORDERS, inserted(lsn)))
        with pytest.raises((Crash, TransientError)):
            calls.deliver()
    calls.setup.publish((ORDERS, inserted(40)))
    calls.deliver()
    snapshot, first, second = ((None, 20), [-1]), ((20, 30), [30]), ((30, 40), [40])
    assert calls.begun == [snapshot, snapshot, first, first, second], "although the log had advanced"


def test_crashes_anywhere(calls: Calls, monkeypatch: pytest.MonkeyPatch) -> None:
    dice = random.Random(seed())
    monkeypatch.setattr(delivery, "_WINDOW_BYTES", 400)  # several windows: a repeated one must not be divided again
    calls.fails = (dice.choice(["inside", "error", "after", None, None]) for _ in range(10_000))
    write = CallRecord.write

    def unreliable(record: CallRecord, call: RecordedCall) -> None:
        where = dice.choice(["before", "after", *[None] * 6])
        if where == "before":
            raise Crash
        write(record, call)
        if where == "after":
            raise Crash

    monkeypatch.setattr(CallRecord, "write", unreliable)
    lsn = 20
    while lsn < 300:
        for _ in range(dice.randrange(4)):
            lsn += 1
            calls.setup.publish(*((ORDERS, inserted(lsn, number)) for number in range(dice.randrange(1, 4))))
        with suppress(Crash, TransientError):
            calls.deliver()
    monkeypatch.undo()
    calls.fails = iter(())
    calls.deliver()
    first = calls.begun[0][0][1]
    by_range: dict[Range, list[int]] = {}
    for found, rows in calls.begun:
        assert by_range.setdefault(found, rows) == rows, "a repeated call has the same rows"
    ranges = list(by_range)
    assert ranges[0] == (None, first)
    assert [r[0] for r in ranges[1:]] == [r[1] for r in ranges[:-1]], "contiguous"
    assert {row for rows in by_range.values() for row in rows if row > 0} == set(range(first + 1, lsn + 1))
    assert all(r[0] is None or r[0] < row <= r[1] for r, rows in by_range.items() for row in rows)
    assert by_range == dict(calls.ended)
    assert len(calls.begun) > len(ranges) + 10, "some calls were repeated"


def test_error_names_type_line_and_text(calls: Calls) -> None:
    calls.fails = iter(["error"])
    with pytest.raises(TransientError) as caught:
        calls.deliver()
    line = caught.value.message
    assert line.startswith("function mine:to_http failed with ValueError at tests.sinks.function.test_output:")
    assert line.endswith(": 12 apples, in its call with the initial snapshot")


class DataError(Exception):
    """An error of a database driver, as psycopg has it."""

    sqlstate = "22P02"


@pytest.mark.parametrize(
    ("error", "shown"),
    [
        (Py4JError("row 4711"), "Py4JError at "),
        (DataError("invalid input: 4711"), "DataError at "),
        (PySparkValueError(errorClass="CANNOT_BE_NONE", messageParameters={"arg_name": "4711"}), ": CANNOT_BE_NONE,"),
    ],
)
def test_errors_that_may_quote_rows_have_no_text(
    calls: Calls, error: Exception, shown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(calls, "function", fail)
    with pytest.raises(TransientError) as caught:
        calls.deliver()
    assert shown in caught.value.message
    assert "4711" not in str(caught.value)


def test_second_caller_waits_for_the_first(calls: Calls) -> None:
    with closing(calls.delivery()) as opened:
        opened.open(1.0, started=False)
        with pytest.raises(TransientError, match="an earlier call of the function of sink out has not returned yet"):
            calls.deliver()
    calls.deliver()


def test_lost_or_broken_record_is_an_error(calls: Calls) -> None:
    calls.deliver()
    file = calls_path(calls.home, "out") / "shop.json"
    before = file.read_text()
    for broken in ("{", "{}", before.replace('"version": 1', '"version": 2', 1)):
        file.write_text(broken)
        with pytest.raises(DefiniteError, match=r"not the record of a sink|has version 2"):
            calls.deliver()
    remove_calls(calls.home, "out")
    with pytest.raises(DefiniteError, match="record of the calls of function mine:to_http is missing"):
        calls.deliver()
