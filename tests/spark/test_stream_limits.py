"""The end of a micro-batch under a row limit: random histories of two tables."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.changelog.chunks import ITEMS, ORDERS, chunk, inserted

from penstock.changelog.sqlite.log import SqliteLog
from penstock.positions import Lsn
from penstock.spark.stream_reader import Limits

TRANSACTIONS = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=1, max_size=5)


@settings(max_examples=60, deadline=None)
@given(st.lists(TRANSACTIONS, min_size=1, max_size=5), st.integers(1, 25))
def test_batches_end_between_transactions_and_respect_the_limit(
    publications: list[list[tuple[int, int]]], limit: int
) -> None:
    with TemporaryDirectory() as folder:
        log = SqliteLog(Path(folder) / "log.db")
        log.create(Lsn(10))
        rows: dict[int, int] = {}
        with closing(log.writer()) as writer, closing(log.reader()) as reader:
            for schema in (ORDERS, ITEMS):
                writer.define(schema, Lsn(10))
            at = 10
            for publication in publications:
                both: tuple[list[int], list[int]] = ([], [])
                for counts in publication:
                    at += 1
                    rows[at] = sum(counts)
                    for found, count in zip(both, counts, strict=True):
                        found += [at] * count
                chunks = [
                    chunk(schema, [inserted(lsn, n) for n, lsn in enumerate(lsns)])
                    for schema, lsns in zip((ORDERS, ITEMS), both, strict=True)
                    if lsns
                ]
                writer.publish(chunks, Lsn(at), committed_at=at)
            after, batches = Lsn(10), []
            while after < at:
                extents = [reader.extent(schema.table, after, Lsn(at)) for schema in (ORDERS, ITEMS)]
                end = Limits(rows=limit).end(reader, extents, Lsn(at))
                assert after < end <= at
                batches.append([rows[lsn] for lsn in range(after + 1, end + 1)])
                after = end
        assert [count for batch in batches for count in batch] == list(rows.values())
        for batch in batches:
            some = [count for count in batch if count]
            assert sum(batch) <= limit or len(some) == 1, "only a single transaction may exceed the limit"
