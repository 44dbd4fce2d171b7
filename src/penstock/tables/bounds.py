"""Bounds on the keys of a batch, so that a MERGE opens only files that may contain them.

::

    keys of the net change ─▶ sorted ─▶ cut at the widest gaps ─▶ k BETWEEN a AND b OR k BETWEEN c AND d …

The join condition of a MERGE compares keys with keys. It does not constrain the target alone, so all files of the
target would be read. These bounds are constants, which Delta compares with the statistics of each file. Recent keys
plus a few old ones must not span the whole table, so the bounds consist of several intervals where excluding the gap
between them is worthwhile.

Bounds only exclude keys that cannot match: each interval starts and ends at a key of the batch, in Spark's order of
that type. The estimated width of a gap only decides where to cut. Types whose order or statistics are not fully
reliable (floats with NaN and -0.0, binary, nested types) have no bounds.

Numbers, dates and timestamps are then widened to round values. Such constants are part of the code that Spark compiles
for a query: if they equal those of the previous, similar batch, Spark does not compile again.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from penstock.model import TableSchema
from penstock.tables.columns import column, own

__all__ = ["Interval", "has_bounds", "intervals", "within_keys", "within_rows"]

Interval = tuple[pa.Scalar, pa.Scalar]

_MOST_KEYS = 200_000
"""Up to this many keys are examined one by one; for more, only the minimum and the maximum."""
_MOST_INTERVALS = 16
_MIN_GAP = 1 / 64
"""The minimum width of a gap, as a fraction of the whole span."""
_FIRST_DAY, _LAST_DAY = -719_162, 2_932_896
"""Years 1 to 9999 in days since 1970: the range that a literal can express."""
_DAY = 86_400_000_000
_PREFIX = 6
_MOST_COLUMNS = 4


def within_keys(net: DataFrame, schema: TableSchema, of: str) -> Column:
    """Return a condition on the alias `of` that holds for every row with a key in `net`; reads `net`."""
    return _condition(net, schema, schema.key, of)


def within_rows(rows: DataFrame, schema: TableSchema, of: str) -> Column:
    """Return a condition on the alias `of` that holds for every row that equals one of `rows`; reads `rows`.

    It uses the first columns that have bounds; a null has none.
    """
    return _condition(rows, schema, schema.columns.names, of)


def _condition(rows: DataFrame, schema: TableSchema, names: Sequence[str], of: str) -> Column:
    ordered = [name for name in names if has_bounds(schema.columns.field(name).type)][:_MOST_COLUMNS]
    found = _bounds(rows, schema, ordered) if ordered else {}
    condition = F.lit(True)
    for name, bounds in found.items():
        within = _within(column(name, of), bounds)
        condition &= within if name in schema.key else within | column(name, of).isNull()
    return condition


def has_bounds(kind: pa.DataType) -> bool:
    """Return whether keys of this type have the same order in Spark as here."""
    ordered = (pa.types.is_integer, pa.types.is_decimal, pa.types.is_date32, pa.types.is_timestamp, pa.types.is_string)
    return any(is_it(kind) for is_it in ordered)


def intervals(values: pa.ChunkedArray) -> list[Interval]:
    """Return a few intervals that contain all values, each of which starts and ends at a value."""
    ordered = pc.unique(values.combine_chunks()).drop_null()
    ordered = ordered.take(pc.sort_indices(ordered))
    if not len(ordered):
        return []
    gaps = np.diff(_places(ordered))
    wide = np.flatnonzero(gaps > max(_MIN_GAP * gaps.sum(), 0)) if len(gaps) else np.empty(0, np.int64)
    cuts = np.sort(wide[np.argsort(-gaps[wide], kind="stable")][: _MOST_INTERVALS - 1])
    return [
        (ordered[int(first)], ordered[int(last)])
        for first, last in zip([0, *(cuts + 1)], [*cuts, len(ordered) - 1], strict=True)
    ]


def _bounds(net: DataFrame, schema: TableSchema, names: Sequence[str]) -> dict[str, list[Interval]]:
    keys = net.select(*(column(name) for name in names))
    kinds = pa.schema([schema.columns.field(name).remove_metadata().with_nullable(True) for name in names])
    listed = keys if net.isLocal() else keys.limit(_MOST_KEYS + 1)
    found = listed.toArrow().cast(kinds)
    if len(found) <= _MOST_KEYS:
        return {name: intervals(found.column(name)) for name in names}
    ends = [
        (F.min(column(name)).alias(own(f"low_{i}")), F.max(column(name)).alias(own(f"high_{i}")))
        for i, name in enumerate(names)
    ]
    extremes = keys.agg(*(end for pair in ends for end in pair)).toArrow()
    return {
        name: [tuple(extremes.column(2 * i + end).cast(kinds.field(i).type)[0] for end in (0, 1))]
        for i, name in enumerate(names)
    }


def _within(value: Column, bounds: Sequence[Interval]) -> Column:
    if not all(_can_be_written(end) for interval in bounds for end in interval):
        return F.lit(True)
    condition = F.lit(False)
    for low, high in map(_widened, bounds):
        condition |= (value >= _constant(low)) & (value <= _constant(high))
    return condition


def _widened(bounds: Interval) -> Interval:
    """Return round bounds, at most an eighth of their distance further out on each side."""
    kind = bounds[0].type
    if not (pa.types.is_integer(kind) or pa.types.is_date32(kind) or pa.types.is_timestamp(kind)):
        return bounds
    low, high = (end.as_py() if pa.types.is_integer(kind) else end.value for end in bounds)
    step = 1 << max(0, (high - low).bit_length() - 4)
    least, most = _reach(kind)
    ends = max(least, low // step * step), min(most, -(-high // step) * step)
    return pa.scalar(ends[0], kind), pa.scalar(ends[1], kind)


def _reach(kind: pa.DataType) -> tuple[int, int]:
    """Return the first and the last value of a type that a literal can express, as numbers."""
    if pa.types.is_integer(kind):
        return -(1 << kind.bit_width - 1), (1 << kind.bit_width - 1) - 1
    return (_FIRST_DAY, _LAST_DAY) if pa.types.is_date32(kind) else (_FIRST_DAY * _DAY, (_LAST_DAY + 1) * _DAY - 1)


def _can_be_written(value: pa.Scalar) -> bool:
    if not (pa.types.is_date32(value.type) or pa.types.is_timestamp(value.type)):
        return True
    first, last = _reach(value.type)
    return bool(first <= value.value <= last)


def _constant(value: pa.Scalar) -> Column:
    """Return a literal that depends on neither time zone nor calendar."""
    kind = value.type
    if pa.types.is_timestamp(kind):
        return (
            F.timestamp_micros(F.lit(value.value))
            if kind.tz
            else F.lit(value.as_py().isoformat()).cast("timestamp_ntz")
        )
    if pa.types.is_date32(kind):
        return F.lit(value.as_py().isoformat()).cast("date")
    if pa.types.is_decimal(kind):
        return F.lit(value.as_py()).cast(f"decimal({kind.precision}, {kind.scale})")
    return F.lit(value.as_py())


def _places(ordered: pa.Array) -> npt.NDArray[np.float64]:
    """Return the approximate location of each of some sorted values, as non-decreasing numbers."""
    if pa.types.is_string(ordered.type):
        return _text_places(ordered)
    if pa.types.is_date32(ordered.type):
        ordered = ordered.view(pa.int32())
    elif pa.types.is_timestamp(ordered.type):
        ordered = ordered.view(pa.int64())
    return np.asarray(ordered.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False))


def _text_places(ordered: pa.Array) -> npt.NDArray[np.float64]:
    """Interpret the bytes after the common prefix of all texts as a number."""
    texts = ordered.cast(pa.binary())
    first, last = texts[0].as_py(), texts[-1].as_py()
    common = next((i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), min(len(first), len(last)))
    following = pc.binary_slice(texts, common, common + _PREFIX)
    padded = pc.binary_slice(pc.binary_join_element_wise(following, bytes(_PREFIX), b""), 0, _PREFIX)
    digits = np.frombuffer(padded.cast(pa.binary(_PREFIX)).buffers()[1], np.uint8)
    return digits[: len(texts) * _PREFIX].reshape(-1, _PREFIX) @ (256.0 ** np.arange(_PREFIX - 1, -1, -1))
