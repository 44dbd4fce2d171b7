"""Overlay in Arrow: a table at T, in one pass over the base table at L, with the net change of (L, T].

::

    base batches ──▶ minus touched keys ──────────────▶ kept rows ─┐
                └──▶ base rows that supply values                  ├─▶ the table at T
    net ──▶ present rows ─────────── omitted values ───────────────┘

If tasks read the base table in parts, each part yields its `kept_rows`, and `new_rows` are added once. A row with
omitted values is emitted by the part that contains its base row; all its values are in one base row. Only a reader of
the whole base table can detect that such a base row is missing: `live_rows`, for a base in one part, checks this and
raises an error.

A keyless table is counted. If the count of a row increases, that many copies are added at the end; if it decreases,
that many copies are dropped as they are read, no matter which. Copies may be in any file, so a base table in which any
count decreases cannot be read in parts (`can_split`).

Looking up keys costs a hash table per batch. Base batches are combined until they are no smaller than the net change,
so that this cost never exceeds that of the rows themselves.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa

from penstock.changelog.rescued_texts import text_of, with_texts
from penstock.model import RESCUED, is_rescuable, is_rescued
from penstock.tables.arrow.distinct_rows import Numbers
from penstock.tables.arrow.fold import KeyedNet, KeylessNet, missing_base_row

__all__ = ["base_columns", "can_split", "kept_rows", "live_rows", "new_rows"]

_Batches = Iterator[pa.RecordBatch]


def live_rows(
    base: Iterable[pa.RecordBatch], net: KeyedNet | KeylessNet, names: Sequence[str] | None = None
) -> _Batches:
    """Yield the rows of the whole `base` with `net` applied; only the columns `names`, if given."""
    wanted = list(names or net.schema.columns.names)
    if isinstance(net, KeylessNet):
        yield from _kept_of_keyless(base, net, wanted)
    else:
        yield from _kept_of_keys(base, net, wanted, whole=True)
    yield from new_rows(net, wanted)


def can_split(net: KeyedNet | KeylessNet) -> bool:
    """Return whether the base table may be read in parts."""
    return net.truncated or isinstance(net, KeyedNet) or bool((net.counts >= 0).all())


def kept_rows(
    base: Iterable[pa.RecordBatch], net: KeyedNet | KeylessNet, names: Sequence[str] | None = None
) -> _Batches:
    """Yield the rows of one part of the base with `net` applied, for a table that may be read in parts."""
    wanted = list(names or net.schema.columns.names)
    if isinstance(net, KeylessNet):
        return _kept_of_keyless(base, net, wanted)
    return _kept_of_keys(base, net, wanted, whole=False)


def new_rows(net: KeyedNet | KeylessNet, names: Sequence[str] | None = None) -> _Batches:
    """Yield the rows that take no values from the base; call this once, regardless of the number of parts."""
    rows = net.rows.select(list(names or net.schema.columns.names))
    if isinstance(net, KeylessNet):
        copies = net.counts if net.truncated else np.maximum(net.counts, 0)
        _check_counts(copies, net)
        at = np.repeat(np.arange(len(copies)), copies)
    else:
        sources = _sources(net, rows.column_names)
        if net.truncated and (sources >= 0).any():
            raise missing_base_row(net.schema.table, net.lsn)
        at = np.flatnonzero(sources < 0)
    yield from rows.take(pa.array(at)).combine_chunks().to_batches()


def base_columns(net: KeyedNet | KeylessNet, names: Sequence[str]) -> pa.Schema:
    """Return the columns that base batches must have for a reader of `names`."""
    columns = net.schema.columns
    needed = columns.names if isinstance(net, KeylessNet) else {*names, *net.schema.key}
    return pa.schema([field for field in columns if field.name in needed])


# -- tables with a key ----------------------------------------------------------------------------------------------


def _kept_of_keys(base: Iterable[pa.RecordBatch], net: KeyedNet, names: list[str], *, whole: bool) -> _Batches:
    sources = _sources(net, names)
    taken = np.zeros(len(net.touched), np.bool_)
    taken[sources[sources >= 0]] = True
    found: list[tuple[Numbers, pa.RecordBatch]] = []
    for batch in () if net.truncated else _gathered(base, len(net.touched)):
        keys = net.touched.find([batch.column(name) for name in net.schema.key])
        if (keys < 0).all():
            yield batch.select(names)
            continue
        looked_for = np.flatnonzero((keys >= 0) & taken[keys])
        if len(looked_for):
            found.append((keys[looked_for], batch.take(pa.array(looked_for))))
        yield from _nonempty(batch.select(names).filter(pa.array(keys < 0)))
    yield from _completed(net, found, names, whole=whole)


def _sources(net: KeyedNet, names: Sequence[str]) -> Numbers:
    """Return the sources of the rows that take values in one of the columns `names`."""
    taking = np.zeros(len(net.sources), np.bool_)
    for name, rows in net.left_out.items():
        if name in names:
            taking[rows] = True
    return np.where(taking, net.sources, -1)


def _completed(
    net: KeyedNet, found: list[tuple[Numbers, pa.RecordBatch]], names: list[str], *, whole: bool
) -> _Batches:
    """Yield the rows that take values from the base rows in `found`."""
    place = np.full(len(net.touched), -1)
    keys = np.concatenate([np.empty(0, np.int64), *(keys for keys, _ in found)])
    place[keys] = np.arange(len(keys))
    sources = _sources(net, names)
    taking = np.flatnonzero(sources >= 0)
    there = taking[place[sources[taking]] >= 0]
    if whole and len(there) < len(taking):
        raise missing_base_row(net.schema.table, net.lsn)
    if not len(there):
        return
    base = pa.Table.from_batches([batch for _, batch in found])
    columns = [_filled(net, name, base, place, there) for name in names]
    schema = pa.schema([net.schema.columns.field(name) for name in names])
    yield from pa.Table.from_arrays(columns, schema=schema).combine_chunks().to_batches()


def _filled(net: KeyedNet, name: str, base: pa.Table, place: Numbers, there: Numbers) -> pa.ChunkedArray:
    """Return one column of the rows `there`: their own values, or those of their base rows if omitted."""
    own = net.rows.column(name)
    if name not in net.left_out:
        return own.take(pa.array(there))
    if is_rescued(net.schema.columns.field(name)):
        return _with_base_texts(net, base, place, there)
    at = np.arange(len(own))
    rows = np.intersect1d(net.left_out[name], there)
    at[rows] = len(own) + place[net.sources[rows]]
    both = pa.chunked_array([*own.chunks, *base.column(name).chunks], own.type)
    return both.take(pa.array(at[there]))


def _with_base_texts(net: KeyedNet, base: pa.Table, place: Numbers, there: Numbers) -> pa.ChunkedArray:
    """Return the column `RESCUED` of the rows `there`: their own texts, and those of omitted values in base rows."""
    own, rescued = _one(net.rows.column(RESCUED).take(pa.array(there))), _one(base.column(RESCUED))
    texts = {}
    for name, rows in net.left_out.items():
        if name != RESCUED and is_rescuable(net.schema.columns.field(name).type):
            taken = np.isin(there, rows)
            at = pa.array(place[net.sources[there]], mask=~taken)
            texts[name] = text_of(rescued, name).take(at)
    return pa.chunked_array([with_texts(own, texts)])


def _one(column: pa.ChunkedArray) -> pa.Array:
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.nulls(0, column.type)


# -- keyless tables -------------------------------------------------------------------------------------------------


def _kept_of_keyless(base: Iterable[pa.RecordBatch], net: KeylessNet, names: list[str]) -> _Batches:
    if net.truncated:
        return
    fewer = np.maximum(-net.counts, 0)
    for batch in _gathered(base, len(net.touched)):
        if not fewer.any():
            yield batch.select(names)
            continue
        rows = net.touched.find([batch.column(name) for name in net.schema.columns.names])
        lost = _lost(rows, fewer)
        fewer = fewer - np.bincount(rows[lost], minlength=len(fewer))
        yield from _nonempty(batch.select(names).filter(pa.array(~lost)))
    _check_counts(-fewer, net)


def _lost(rows: Numbers, fewer: Numbers) -> np.ndarray:
    """Return which rows of a batch are dropped: the first `fewer` copies of each."""
    order = np.argsort(rows, kind="stable")
    ordered = rows[order]
    starts = np.searchsorted(ordered, ordered)
    lost = np.zeros(len(rows), np.bool_)
    lost[order] = (ordered >= 0) & (np.arange(len(rows)) - starts < fewer[ordered])
    return lost


def _check_counts(counts: Numbers, net: KeylessNet) -> None:
    if (counts < 0).any():
        raise missing_base_row(net.schema.table, net.lsn)


# -- both -----------------------------------------------------------------------------------------------------------


def _gathered(batches: Iterable[pa.RecordBatch], rows: int) -> _Batches:
    """Combine batches until each, except the last, has at least `rows` rows."""
    waiting: list[pa.RecordBatch] = []
    for batch in batches:
        waiting.append(batch)
        if sum(map(len, waiting)) >= rows:
            yield from _nonempty(pa.concat_batches(waiting) if len(waiting) > 1 else batch)
            waiting = []
    if waiting:
        yield from _nonempty(pa.concat_batches(waiting))


def _nonempty(batch: pa.RecordBatch) -> _Batches:
    if len(batch):
        yield batch
