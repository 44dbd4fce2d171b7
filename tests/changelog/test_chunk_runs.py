"""Runs of small chunks: chunks read together give the same rows as chunks read one by one."""

from __future__ import annotations

import random

import pytest
from tests.changelog.chunks import ORDERS, Row, chunk
from tests.changelog.conftest import START
from tests.changelog.test_interface import WIDER, part

from penstock.changelog import chunk_codec as module
from penstock.changelog.chunk_codec import runs
from penstock.changelog.interface import ChangeLogReader, ChangeLogWriter, ChunkRef, StagedCommit
from penstock.model import Image
from penstock.positions import Lsn


def ref(number: int, *, rows: int = 1, size: int = 100, version: int = 1, staged: bool = False) -> ChunkRef:
    of_staged = (7, 0, None) if staged else None
    return ChunkRef((number,), version, Lsn(number), Lsn(number), rows, size, 64, False, 0, of_staged)


def numbers(chunks: list[ChunkRef]) -> list[list[int]]:
    return [[chunk.location[0] for chunk in run] for run in runs(chunks)]


def test_runs_of_chunks() -> None:
    assert numbers([]) == []
    assert numbers([ref(n) for n in range(3)]) == [[0, 1, 2]]
    assert numbers([ref(0), ref(1, version=2), ref(2, version=2)]) == [[0], [1, 2]]
    assert numbers([ref(0), ref(1, staged=True), ref(2, staged=True), ref(3), ref(4)]) == [[0], [1], [2], [3, 4]]
    assert numbers([ref(0), ref(1, rows=module._ROWS), ref(2)]) == [[0], [1], [2]]
    assert numbers([ref(0), ref(1, size=2 * module._BYTES), ref(2), ref(3)]) == [[0], [1], [2, 3]]


@pytest.mark.parametrize("seed", range(6))
def test_chunks_read_together_equal_chunks_read_alone(
    writer: ChangeLogWriter, reader: ChangeLogReader, seed: int
) -> None:
    rng = random.Random(seed)
    lsn = int(START)
    for step in range(40):
        schema = ORDERS if step < 25 else WIDER
        version = writer.define(schema)
        rows = []
        for _ in range(rng.randrange(1, 4)):
            lsn += rng.randrange(1, 3)
            rows += [_row(lsn, n, len(schema.columns), rng) for n in range(rng.randrange(1, 4))]
        staged = {}
        if rng.random() < 0.2 and schema is ORDERS:
            first = rows[0].lsn
            writer.stage(first, [part((first, -1, step))])
            staged = {first: StagedCommit(Lsn(first), first)}
        writer.publish([chunk(schema, rows, version)], Lsn(lsn), staged=staged)
    for _ in range(10):
        after = rng.randrange(START, lsn)
        extent = reader.extent(ORDERS.table, Lsn(after), Lsn(rng.randrange(after, lsn + 1)))
        alone = [row for one in extent.divided(1) for batch in reader.read(one) for row in batch.to_pylist()]
        batches = list(reader.read(extent))
        assert [row for batch in batches for row in batch.to_pylist()] == alone
        for batch in batches:
            batch.validate(full=True)
        wide = [batch.schema for batch in reader.read(extent, WIDER.columns)]
        assert len(set(map(str, wide))) <= 1


def _row(lsn: int, ordinal: int, columns: int, rng: random.Random) -> Row:
    values = (rng.randrange(100), rng.choice([None, "a", "bcd"]), "n", 7)[:columns]
    if rng.random() < 0.1:
        return Row(lsn, ordinal, Image.TRUNCATE, None)
    return Row(lsn, ordinal, Image.UPDATED, values, rng.choice([None, (1,)]))
