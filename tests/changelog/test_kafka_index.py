"""The index of a log in Kafka, without a broker: what records make of it, also when the beginning was cut off."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.changelog.chunks import ITEMS, ORDERS

from penstock.changelog.interface import StagedCommit
from penstock.changelog.kafka.index import Index
from penstock.changelog.kafka.records import (
    Assembler,
    Created,
    Defined,
    Described,
    Failed,
    Opened,
    Pinned,
    Published,
    Record,
    Settled,
    Staged,
    StagedPart,
    messages,
    to_text,
)
from penstock.errors import DefiniteError, LogCorruptError
from penstock.positions import Lsn


@dataclass
class Writer:
    """Makes records as the writer does, with the state of the log at hand; cuts as `retain` does."""

    records: list[tuple[Record | Pinned, int]] = field(default_factory=list)
    index: Index = field(default_factory=Index)
    first: int = 0
    """Where the index topic begins."""
    offset: int = 0
    data: int = 0

    @property
    def serial(self) -> int:
        return -1 if self.index.serial is None else self.index.serial

    def write(self, record: Record | Pinned) -> None:
        parts = messages(record, 50)
        assembler = Assembler()
        for n, message in enumerate(parts):
            found = assembler.feed(message, self.offset + n)
            assert (found is not None) == (n == len(parts) - 1)
        assert found is not None
        assert found[1] == self.offset
        self.records.append((found[0], self.offset))
        self.offset += len(parts) + 1
        feed(self.index, *self.records[-1])

    def described(self, table: int, first: int, last: int) -> Described:
        self.data += 2
        return Described(table, 1, first, last, 3, 100, 128, 77, self.data, 1, 10)

    def cut(self, valid: int) -> None:
        valid = max(self.index.valid, min(valid, self.index.durable, *(pin.at for pin in self.index.pins(0))))
        state = self.index.state(self.serial + 1, valid, self.index.valid_at, self.offset, 0)
        self.write(Pinned("between", valid, None))  # by a reader that was not seen when the cut began
        self.write(state)
        self.first = max(self.first, self.index.needed()[0])
        assert all(durable > valid for durable in self.index.publications.durable)
        assert "between" in [pin.reader for pin in self.index.pins(0)]


def feed(index: Index, record: Record | Pinned, offset: int) -> None:
    if isinstance(record, Pinned):
        index.apply_pin(record, offset)
    else:
        index.apply(record, offset)


def answers(index: Index) -> tuple[object, ...]:
    tables = {name: (replace(t, error=None), t.error and t.error.args) for name, t in index.tables().items()}
    extents = [index.extent(t.table, index.valid_of(t.table), Lsn(index.durable)) for t in (ORDERS, ITEMS)]
    times = [list(index.publications.durable), list(index.publications.peak), list(index.publications.offset)]
    return index.frontiers(), tables, extents, times, index.pins(0), index.staging.dump(), index.needed(), index.owner


STEPS = st.sampled_from(["publish", "publish", "stage", "commit", "prepare", "discard", "cut", "pin", "open", "anew"])


@settings(max_examples=500, deadline=None)
@given(st.lists(st.tuples(STEPS, st.integers(0, 30)), max_size=25))
def test_a_reader_that_begins_at_a_cut_knows_as_much_as_any(steps: list[tuple[str, int]]) -> None:
    made = Writer()
    made.write(Created(0, 10, 5))
    made.write(Opened(1, "me"))
    for number, schema in ((1, ORDERS), (2, ITEMS)):
        made.write(Defined(made.serial + 1, number, 1, to_text(schema.to_bytes()), None, 0, 0))
    for step, n in steps:
        take(made, step, n)
        fresh = Index()
        for record, offset in made.records:
            if offset >= made.first:
                feed(fresh, record, offset)
        assert fresh.whole
        assert answers(fresh) == answers(made.index)


def take(made: Writer, step: str, n: int) -> None:
    index, serial, lsn, xid = made.index, made.serial + 1, made.index.durable + 1 + n, n % 3
    part = StagedPart(made.described(1 + n % 2, -1, -1), ((0, xid, 2), (1, 100, 1)))
    match step:
        case "publish":
            chunks = (made.described(1 + n % 2, index.durable + 1, lsn),) if n % 5 else ()
            errors = (Failed("public.orders", lsn, "no", ""),) if n % 7 == 0 else ()
            made.write(Published(serial, lsn, lsn, lsn, max(index.peak, n), chunks, (), errors))
        case "stage":
            made.write(Staged(serial, xid, (part,)))
        case "commit":
            ended = tuple(index.staging.committed(xid, StagedCommit(Lsn(lsn), n, frozenset({100}))))
            made.write(Published(serial, lsn, None, lsn, max(index.peak, n), ended, (xid,), ()))
        case "prepare" | "discard":
            made.write(Settled(serial, xid, step == "prepare", (100,)))
        case "pin":
            made.write(Pinned("ab"[n % 2], index.valid + n if n % 3 else None, None))
        case "open":
            made.write(Opened(serial, f"writer {n}"))
        case "anew":
            told = (1, 1, to_text(ORDERS.to_bytes()), index.durable, n, index.durable)
            made.write(Defined(serial, *told))
        case "cut":
            made.write(Pinned("between", None, None))
            made.cut(index.durable - n)


def test_what_is_not_needed_is_cut_off() -> None:
    made = Writer()
    made.write(Created(0, 10, 5))
    for serial in (1, 2, 3):
        made.write(Published(serial, 10 * serial + 10, None, 1, 5, (made.described(1, 15, 10 * serial + 10),), (), ()))
    second = made.records[2]
    made.cut(25)
    assert made.index.needed() == (second[1], 4), "the publication that reaches beyond, and its chunk"
    made.write(Staged(5, 7, (StagedPart(made.described(1, -1, -1), ()),)))
    end = made.offset
    made.write(Pinned("between", None, None))
    made.cut(40)
    assert made.index.needed() == (end + 2, 8), "what comes after the cut, and the staged part"
    made.write(Settled(7, 7, False, ()))
    assert made.index.needed() == (end + 2, 7), "all that was published"


def test_a_record_that_is_missing_is_found() -> None:
    index = Index()
    index.apply(Created(0, 10, 5), 0)
    index.apply(Created(0, 99, 5), 1)
    assert index.valid == 10, "of two beginnings the first counts"
    index.apply(Opened(1, "me"), 2)
    with pytest.raises(LogCorruptError, match="record 2 is missing") as caught:
        index.apply(Opened(3, "you"), 4)
    assert caught.value.hint


def test_subtransactions_that_were_rolled_back_are_left_out() -> None:
    made = Writer()
    made.write(Created(0, 10, 5))
    whole = StagedPart(made.described(1, -1, -1), ((0, 7, 2), (1, 8, 1), (2, 9, 4)))
    made.write(Staged(1, 7, (whole, StagedPart(made.described(1, -1, -1), ((0, 8, 5),)))))
    made.write(Settled(2, 7, True, (8,)))
    [left] = made.index.staging.committed(7, StagedCommit(Lsn(30), 31, frozenset({9})))
    assert (left.first, left.last, left.rows) == (30, 30, 2)
    assert left.staged == (7, 31, to_text(b"\x01\0\0\0\x02\0\0\0"))


@pytest.mark.parametrize("limit", [3, 10, 1000])
def test_a_pin_may_stand_between_the_parts_of_a_record(limit: int) -> None:
    assembler, found = Assembler(), []
    [pin] = messages(Pinned("slow", 5, None), limit)
    for offset, message in enumerate(messages(Opened(4, "é" * 20), limit)):
        found += [assembler.feed(pin, 100), assembler.feed(message, offset)]
    records = [each[0] for each in found if each is not None]
    assert records[-1] == Opened(4, "é" * 20)
    assert records[:-1] == [Pinned("slow", 5, None)] * (len(found) // 2)


@pytest.mark.parametrize(
    "message", [b"", b"\x01", b"\x00.[]", b"\x01.", b"\x01.[", b"\x01.[]", b'\x01.["pin"]', b"\x01.7"]
)
def test_garbage_is_refused(message: bytes) -> None:
    with pytest.raises(DefiniteError) as caught:
        Assembler().feed(message, 0)
    assert caught.value.hint
