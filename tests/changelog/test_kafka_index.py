"""The index of a Kafka log, without a broker: its state after records, also when its beginning was truncated."""

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
    IndexedChunk,
    Leased,
    Opened,
    Published,
    Record,
    Settled,
    Staged,
    StagedPart,
    TableFailure,
    messages,
    to_text,
)
from penstock.errors import DefiniteError, LogCorruptError
from penstock.positions import Lsn


@dataclass
class Writer:
    """Writes records as the log writer does, and truncates as `retain` does."""

    records: list[tuple[Record | Leased, int]] = field(default_factory=list)
    index: Index = field(default_factory=Index)
    first: int = 0
    """First offset of the index topic."""
    offset: int = 0
    data: int = 0

    @property
    def serial(self) -> int:
        return -1 if self.index.serial is None else self.index.serial

    def write(self, record: Record | Leased) -> None:
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

    def described(self, table: int, first: int, last: int) -> IndexedChunk:
        self.data += 2
        return IndexedChunk(table, 1, first, last, 3, 100, 128, 77, self.data, 1, 10, changes=2)

    def truncate(self, valid: int) -> None:
        valid = max(self.index.valid, min(valid, self.index.durable, *(lease.at for lease in self.index.leases(0))))
        state = self.index.state(self.serial + 1, valid, self.index.valid_at, self.offset, 0)
        self.write(Leased("between", valid, None))  # by a reader that registers during the truncation
        self.write(state)
        self.first = max(self.first, self.index.first_needed_offsets()[0])
        assert all(durable > valid for durable in self.index.publications.durable)
        assert "between" in [lease.reader for lease in self.index.leases(0)]


def feed(index: Index, record: Record | Leased, offset: int) -> None:
    if isinstance(record, Leased):
        index.apply_lease(record, offset)
    else:
        index.apply(record, offset)


def answers(index: Index) -> tuple[object, ...]:
    tables = {name: (replace(t, error=None), t.error and t.error.args) for name, t in index.tables().items()}
    extents = [index.extent(t.table, index.history_start(t.table), Lsn(index.durable)) for t in (ORDERS, ITEMS)]
    times = [list(index.publications.durable), list(index.publications.peak), list(index.publications.offset)]
    return (
        index.frontiers(),
        tables,
        extents,
        times,
        index.leases(0),
        index.staging.dump(),
        index.first_needed_offsets(),
        index.owner,
        index.changes(),
        index.size(),
    )


STEPS = st.sampled_from(
    ["publish", "publish", "stage", "commit", "prepare", "discard", "truncate", "lease", "open", "redefine"]
)


@settings(max_examples=500, deadline=None)
@given(st.lists(st.tuples(STEPS, st.integers(0, 30)), max_size=25))
def test_reader_starting_at_a_truncation_has_complete_state(steps: list[tuple[str, int]]) -> None:
    writer = Writer()
    writer.write(Created(0, 10, 5))
    writer.write(Opened(1, "me"))
    for number, schema in ((1, ORDERS), (2, ITEMS)):
        writer.write(Defined(writer.serial + 1, number, 1, to_text(schema.to_bytes()), None, 0, 0))
    for step, n in steps:
        perform(writer, step, n)
        fresh = Index()
        for record, offset in writer.records:
            if offset >= writer.first:
                feed(fresh, record, offset)
        assert fresh.is_complete
        assert answers(fresh) == answers(writer.index)


def perform(writer: Writer, step: str, n: int) -> None:
    index, serial, lsn, xid = writer.index, writer.serial + 1, writer.index.durable + 1 + n, n % 3
    part = StagedPart(writer.described(1 + n % 2, -1, -1), ((0, xid, 2, 1), (1, 100, 1, 1)))
    match step:
        case "publish":
            chunks = (writer.described(1 + n % 2, index.durable + 1, lsn),) if n % 5 else ()
            errors = (TableFailure("public.orders", lsn, "no", ""),) if n % 7 == 0 else ()
            writer.write(Published(serial, lsn, lsn, lsn, max(index.peak, n), chunks, (), errors))
        case "stage":
            writer.write(Staged(serial, xid, (part,)))
        case "commit":
            ended = tuple(index.staging.committed(xid, StagedCommit(Lsn(lsn), n, frozenset({100}))))
            writer.write(Published(serial, lsn, None, lsn, max(index.peak, n), ended, (xid,), ()))
        case "prepare" | "discard":
            writer.write(Settled(serial, xid, step == "prepare", (100,)))
        case "lease":
            writer.write(Leased("ab"[n % 2], index.valid + n if n % 3 else None, None))
        case "open":
            writer.write(Opened(serial, f"writer {n}"))
        case "redefine":
            definition = (1, 1, to_text(ORDERS.to_bytes()), index.durable, n, index.durable)
            writer.write(Defined(serial, *definition))
        case "truncate":
            writer.write(Leased("between", None, None))
            writer.truncate(index.durable - n)


def test_unneeded_records_are_truncated() -> None:
    writer = Writer()
    writer.write(Created(0, 10, 5))
    for serial in (1, 2, 3):
        writer.write(
            Published(serial, 10 * serial + 10, None, 1, 5, (writer.described(1, 15, 10 * serial + 10),), (), ())
        )
    second = writer.records[2]
    writer.truncate(25)
    assert writer.index.first_needed_offsets() == (second[1], 4), (
        "the publication that extends beyond 25, and its chunk"
    )
    writer.write(Staged(5, 7, (StagedPart(writer.described(1, -1, -1), ()),)))
    end = writer.offset
    writer.write(Leased("between", None, None))
    writer.truncate(40)
    assert writer.index.first_needed_offsets() == (end + 2, 8), "after the truncation record, and the staged part"
    writer.write(Settled(7, 7, False, ()))
    assert writer.index.first_needed_offsets() == (end + 2, 7), "all published data"


def test_missing_record_is_detected() -> None:
    index = Index()
    index.apply(Created(0, 10, 5), 0)
    index.apply(Created(0, 99, 5), 1)
    assert index.valid == 10, "of two Created records the first one counts"
    index.apply(Opened(1, "me"), 2)
    with pytest.raises(LogCorruptError, match="record 2 is missing") as caught:
        index.apply(Opened(3, "you"), 4)
    assert caught.value.hint


def test_rolled_back_subtransactions_are_omitted() -> None:
    writer = Writer()
    writer.write(Created(0, 10, 5))
    whole = StagedPart(writer.described(1, -1, -1), ((0, 7, 2, 1), (1, 8, 1, 1), (2, 9, 4, 4)))
    writer.write(Staged(1, 7, (whole, StagedPart(writer.described(1, -1, -1), ((0, 8, 5, 5),)))))
    writer.write(Settled(2, 7, True, (8,)))
    [left] = writer.index.staging.committed(7, StagedCommit(Lsn(30), 31, frozenset({9})))
    assert (left.first, left.last, left.rows) == (30, 30, 2)
    assert left.staged == (7, 31, to_text(b"\x01\0\0\0\x02\0\0\0"))


@pytest.mark.parametrize("limit", [3, 10, 1000])
def test_lease_may_occur_between_the_parts_of_a_record(limit: int) -> None:
    assembler, found = Assembler(), []
    [lease] = messages(Leased("slow", 5, None), limit)
    for offset, message in enumerate(messages(Opened(4, "é" * 20), limit)):
        found += [assembler.feed(lease, 100), assembler.feed(message, offset)]
    records = [each[0] for each in found if each is not None]
    assert records[-1] == Opened(4, "é" * 20)
    assert records[:-1] == [Leased("slow", 5, None)] * (len(found) // 2)


@pytest.mark.parametrize(
    "message", [b"", b"\x01", b"\x00.[]", b"\x01.", b"\x01.[", b"\x01.[]", b'\x01.["pin"]', b"\x01.7"]
)
def test_garbage_is_rejected(message: bytes) -> None:
    with pytest.raises(DefiniteError) as caught:
        Assembler().feed(message, 0)
    assert caught.value.hint
