"""A table at T, in Arrow: one pass over the base at L, with the net effect of (L, T] laid over it.

::

    base batches ──▶ minus touched keys ──────────────▶ kept rows ─┐
                └──▶ base rows that values are taken from          ├─▶ the table at T
    net ──▶ rows that are there ──── left-out values ──────────────┘

A base in parts, each read by a task, gives the same table in parts: `kept_rows` of each part, and `new_rows` once. A
row that takes left-out values comes with the part that holds its base row: all of them are in one. What only the whole
can tell is whether every such base row was there; `live_rows`, for a base in one part, holds to that and raises.

A table without a key is counted. A row of which there are more is given once more at the end for each; one of which
there are fewer loses that many copies as they come by, whichever they are. Copies lie anywhere, so a base of which any
row becomes fewer cannot be read in parts (`in_parts`).

Looking up keys costs a hash table per batch. Base batches are gathered until they are no smaller than the net, so that
this cost is never more than that of the rows themselves.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa

from penstock.errors import TableError
from penstock.model import TableSchema
from penstock.positions import Lsn
from penstock.spark.distinct import Numbers
from penstock.spark.net import BagNet, KeyedNet

__all__ = ["absent_base_row", "base_columns", "in_parts", "kept_rows", "live_rows", "new_rows"]

_Batches = Iterator[pa.RecordBatch]


def live_rows(base: Iterable[pa.RecordBatch], net: KeyedNet | BagNet, names: Sequence[str] | None = None) -> _Batches:
    """Yield the rows that `base`, all of it, becomes through `net`; of their columns those in `names`, or all."""
    wanted = list(names or net.schema.columns.names)
    if isinstance(net, BagNet):
        yield from _kept_of_bag(base, net, wanted)
    else:
        yield from _kept_of_keys(base, net, wanted, whole=True)
    yield from new_rows(net, wanted)


def in_parts(net: KeyedNet | BagNet) -> bool:
    """Whether the base may be read in parts."""
    return net.truncated or isinstance(net, KeyedNet) or bool((net.counts >= 0).all())


def kept_rows(base: Iterable[pa.RecordBatch], net: KeyedNet | BagNet, names: Sequence[str] | None = None) -> _Batches:
    """Yield what a part of the base, of a table that may be read in parts, becomes."""
    wanted = list(names or net.schema.columns.names)
    if isinstance(net, BagNet):
        return _kept_of_bag(base, net, wanted)
    return _kept_of_keys(base, net, wanted, whole=False)


def new_rows(net: KeyedNet | BagNet, names: Sequence[str] | None = None) -> _Batches:
    """Yield the rows that need nothing of the base: once, whatever the parts."""
    rows = net.rows.select(list(names or net.schema.columns.names))
    if isinstance(net, BagNet):
        copies = net.counts if net.truncated else np.maximum(net.counts, 0)
        _refuse_fewer_than_none(copies, net)
        at = np.repeat(np.arange(len(copies)), copies)
    else:
        sources = _sources(net, rows.column_names)
        if net.truncated and (sources >= 0).any():
            raise absent_base_row(net)
        at = np.flatnonzero(sources < 0)
    yield from rows.take(pa.array(at)).combine_chunks().to_batches()


def base_columns(net: KeyedNet | BagNet, names: Sequence[str]) -> pa.Schema:
    """Return the columns that batches of the base must have for a reader of `names`."""
    columns = net.schema.columns
    needed = columns.names if isinstance(net, BagNet) else {*names, *net.schema.key}
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
        yield from _some(batch.select(names).filter(pa.array(keys < 0)))
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
        raise absent_base_row(net)
    if not len(there):
        return
    base = pa.Table.from_batches([batch for _, batch in found])
    columns = [_filled(net, name, base, place, there) for name in names]
    schema = pa.schema([net.schema.columns.field(name) for name in names])
    yield from pa.Table.from_arrays(columns, schema=schema).combine_chunks().to_batches()


def _filled(net: KeyedNet, name: str, base: pa.Table, place: Numbers, there: Numbers) -> pa.ChunkedArray:
    """Return one column of the rows `there`: their own values, and those of base rows behind them where left out."""
    own = net.rows.column(name)
    if name not in net.left_out:
        return own.take(pa.array(there))
    at = np.arange(len(own))
    rows = np.intersect1d(net.left_out[name], there)
    at[rows] = len(own) + place[net.sources[rows]]
    both = pa.chunked_array([*own.chunks, *base.column(name).chunks], own.type)
    return both.take(pa.array(at[there]))


# -- tables without one ---------------------------------------------------------------------------------------------


def _kept_of_bag(base: Iterable[pa.RecordBatch], net: BagNet, names: list[str]) -> _Batches:
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
        yield from _some(batch.select(names).filter(pa.array(~lost)))
    _refuse_fewer_than_none(-fewer, net)


def _lost(rows: Numbers, fewer: Numbers) -> np.ndarray:
    """Return which rows of a batch go: of each, the first so many."""
    order = np.argsort(rows, kind="stable")
    ordered = rows[order]
    starts = np.searchsorted(ordered, ordered)
    lost = np.zeros(len(rows), np.bool_)
    lost[order] = (ordered >= 0) & (np.arange(len(rows)) - starts < fewer[ordered])
    return lost


def _refuse_fewer_than_none(counts: Numbers, net: BagNet) -> None:
    if (counts < 0).any():
        raise absent_base_row(net)


# -- both -----------------------------------------------------------------------------------------------------------


def _gathered(batches: Iterable[pa.RecordBatch], rows: int) -> _Batches:
    """Put batches together until each has as many rows, but for the last."""
    waiting: list[pa.RecordBatch] = []
    for batch in batches:
        waiting.append(batch)
        if sum(map(len, waiting)) >= rows:
            yield from _some(pa.concat_batches(waiting) if len(waiting) > 1 else batch)
            waiting = []
    if waiting:
        yield from _some(pa.concat_batches(waiting))


def _some(batch: pa.RecordBatch) -> _Batches:
    if len(batch):
        yield batch


def absent_base_row(net: KeyedNet | BagNet) -> TableError:
    """Say that the base does not hold a row that the net needs."""
    schema: TableSchema = net.schema
    message = f"a change of {schema.table} up to {Lsn(net.lsn)} needs a row that its base table does not hold"
    hint = "Drop the source and capture it again: its tables are then copied afresh."
    return TableError(str(schema.table), net.lsn, message, hint)
