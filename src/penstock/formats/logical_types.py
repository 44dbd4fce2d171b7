"""Logical types of Kafka Connect and Debezium: convert numbers, texts and bytes to the values that they represent.

Connect encodes a timestamp as a number and a decimal as bytes, and names the logical type in the schema (Avro:
``connect.name``; JSON: ``name``). A resolved format stores these names by field path. Decoding returns the physical
values; the functions here convert them, whole Arrow arrays at a time::

    decoded rows + (path, name) of each logical type ──▶ logical_struct   the type of the converted rows
                                                     ──▶ convert_rows     the rows, and a problem for rows that fail

A field gets a type that loses nothing, the same as the column has in a Postgres source:

| Connect, Debezium | column |
|---|---|
| Date | DATE |
| Debezium's Timestamp, MicroTimestamp: no time zone | TIMESTAMP_NTZ |
| Connect's Timestamp; ZonedTimestamp: an instant | TIMESTAMP |
| Time, MicroTime, NanoTime | STRING: ``HH:MM:SS[.ffffff]`` |
| Decimal of up to 38 digits | DECIMAL |
| VariableScaleDecimal | STRING: all its digits |
| bytes in JSON | BINARY |
| NanoTimestamp | BIGINT, unconverted: TIMESTAMP has microseconds |

All other types keep their decoded values: Json, Uuid and Enum are text, Bits and larger decimals bytes, geometry a
struct. Avro's own logical types are not listed here: the Avro decoder converts them. If a value does not fit its column
(infinity, years outside 0001 to 9999, 39 digits), its message is rejected.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.formats.base64_arrays import decode_base64
from penstock.formats.format import LogicalType, ResolvedFormat

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

__all__ = ["BASE64", "ITEM", "NAMES", "arrow_type", "convert_rows", "logical_struct", "spark_type"]

ITEM = "[]"
"""Denotes the items of an array in the path of a field."""

BASE64 = "base64"
"""Bytes that JSON encodes as base64 text."""

NAMES = frozenset(
    {
        "org.apache.kafka.connect.data.Date",
        "org.apache.kafka.connect.data.Decimal",
        "org.apache.kafka.connect.data.Time",
        "org.apache.kafka.connect.data.Timestamp",
        "io.debezium.data.VariableScaleDecimal",
        "io.debezium.time.Date",
        "io.debezium.time.MicroTime",
        "io.debezium.time.MicroTimestamp",
        "io.debezium.time.NanoTime",
        "io.debezium.time.NanoTimestamp",
        "io.debezium.time.Time",
        "io.debezium.time.Timestamp",
        "io.debezium.time.ZonedTimestamp",
    }
)
"""Logical types whose values are converted. Values of all others (Json, Uuid, Enum, Bits, geometry) are kept."""

_Path = tuple[str, ...]
_Bools = npt.NDArray[np.bool_]

_FIRST_DAY, _LAST_DAY = -719_162, 2_932_896
_DAY = 86_400_000_000
_FIRST, _LAST = _FIRST_DAY * _DAY, (_LAST_DAY + 1) * _DAY - 1
_DECIMAL = re.compile(r"^org\.apache\.kafka\.connect\.data\.Decimal\((\d+),(\d+)\)$")
_MAX_DIGITS = 38
_SCALES = (-131_072, 16_383)
"""The range of scales of a Postgres numeric."""

_BAD_TIME = "infinity, or outside the years 0001 to 9999: exclude the column (column.exclude.list)"
_BAD_TIME_OF_DAY = "not a time of day: exclude the column (column.exclude.list)"
_BAD_DECIMAL = (
    "more digits than its DECIMAL has, or no number: let Debezium write text (decimal.handling.mode = string)"
)
_BAD_VARIABLE_DECIMAL = "more than 38 digits, or no number: let Debezium write text (decimal.handling.mode = string)"
_BAD_BASE64 = "not base64, as which Connect writes bytes: let Connect's JsonConverter write the topic"


@dataclass(frozen=True)
class _Conversion:
    """The conversion of physical values: an invalid value becomes null, and its message gets the problem."""

    type: pa.DataType
    convert: Callable[[pa.Array], pa.Array]
    problem: str


@dataclass(frozen=True)
class _Failure:
    """The rows whose value at a path could not be converted."""

    text: str
    rows: _Bools


_Conversions = Mapping[_Path, _Conversion]


def arrow_type(resolved: ResolvedFormat) -> pa.StructType:
    """Return the Arrow type of decoded rows."""
    return logical_struct(resolved.physical_type, resolved.logical_types)


def spark_type(resolved: ResolvedFormat) -> StructType:
    """Return the Spark type of decoded rows."""
    from pyspark.sql.pandas.types import from_arrow_type
    from pyspark.sql.types import StructType

    result = from_arrow_type(arrow_type(resolved))
    assert isinstance(result, StructType)
    return result


def logical_struct(physical: pa.StructType, logical_types: Sequence[LogicalType]) -> pa.StructType:
    """Return the type of rows after conversion from the `physical` type."""
    return _logical(physical, (), _conversions(physical, logical_types))


def convert_rows(
    rows: pa.StructArray, problems: pa.StringArray, logical_types: Sequence[LogicalType]
) -> tuple[pa.StructArray, pa.StringArray]:
    """Convert decoded rows to their logical types; a row with a value that cannot be converted gets a problem."""
    conversions = _conversions(rows.type, logical_types)
    if not conversions:
        return rows, problems
    result, failures = _convert(rows, (), conversions)
    failed = pc.is_null(rows).to_numpy(zero_copy_only=False)
    free = pc.is_null(problems)
    for failure in reversed(failures):  # the first failure of a row is reported
        problems = pc.if_else(pc.and_(free, failure.rows), failure.text, problems)
        failed = failed | failure.rows
    return pa.StructArray.from_arrays(result.flatten(), fields=list(result.type), mask=pa.array(failed)), problems


# -- conversions by path -------------------------------------------------------------------------------------------


def _conversions(physical: pa.StructType, logical_types: Sequence[LogicalType]) -> dict[_Path, _Conversion]:
    known = {}
    for path, name in logical_types:
        found = _type_at(physical, path)
        conversion = None if found is None else _conversion(name, found)
        if conversion is not None:
            known[tuple(path)] = conversion
    return known


def _type_at(kind: pa.DataType, path: Sequence[str]) -> pa.DataType | None:
    """Return the type at a path; None if there is none, as inside of maps."""
    for name in path:
        if pa.types.is_list(kind) and name == ITEM:
            kind = kind.value_type
        elif pa.types.is_struct(kind) and kind.get_field_index(name) >= 0:
            kind = kind.field(name).type
        else:
            return None
    return kind


def _conversion(name: str, kind: pa.DataType) -> _Conversion | None:
    """Return the conversion for a logical type decoded as `kind`; None if its values are kept."""
    if pa.types.is_int32(kind) or pa.types.is_int64(kind):
        return _OF_NUMBERS.get(name)
    if pa.types.is_string(kind):
        if decimal := _DECIMAL.match(name):
            return _decimal(int(decimal[1]), int(decimal[2]))
        return _OF_TEXT.get(name)
    if name == "io.debezium.data.VariableScaleDecimal" and pa.types.is_struct(kind):
        names = {field.name for field in kind}
        return _VARIABLE if names == {"scale", "value"} else None
    return None


def _logical(kind: pa.DataType, path: _Path, conversions: _Conversions) -> pa.DataType:
    if path in conversions:
        return conversions[path].type
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_logical(field.type, (*path, field.name), conversions)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_logical(kind.value_type, (*path, ITEM), conversions)))
    return kind


def _convert(array: pa.Array, path: _Path, conversions: _Conversions) -> tuple[pa.Array, list[_Failure]]:
    """Return an array with all values at and below `path` converted, and the items that failed."""
    if path in conversions:
        result = conversions[path].convert(array)
        bad = pc.and_(pc.is_valid(array), pc.is_null(result)).to_numpy(zero_copy_only=False)
        where = ".".join(path).replace(f".{ITEM}", ITEM)
        return result, [_Failure(f'field "{where}": {conversions[path].problem}', bad)] if bad.any() else []
    if not any(place[: len(path)] == path for place in conversions):
        return array, []
    if pa.types.is_list(array.type):
        return _convert_items(array, path, conversions)
    failures: list[_Failure] = []
    children = []
    for field, child in zip(array.type, array.flatten(), strict=True):
        result, failed = _convert(child, (*path, field.name), conversions)
        children.append(result)
        failures += failed
    fields = list(_logical(array.type, path, conversions))
    return pa.StructArray.from_arrays(children, fields=fields, mask=pc.is_null(array)), failures


def _convert_items(array: pa.ListArray, path: _Path, conversions: _Conversions) -> tuple[pa.Array, list[_Failure]]:
    lengths = pc.fill_null(pc.list_value_length(array), 0).to_numpy(zero_copy_only=False)
    parents = np.repeat(np.arange(len(array)), lengths)
    items, failures = _convert(array.flatten(), (*path, ITEM), conversions)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    kind = _logical(array.type, path, conversions)
    result = pa.ListArray.from_arrays(pa.array(offsets), items, type=kind, mask=pc.is_null(array))
    return result, [_Failure(one.text, np.isin(np.arange(len(array)), parents[one.rows])) for one in failures]


# -- dates and times -----------------------------------------------------------------------------------------------


def _where(valid: pa.Array, array: pa.Array) -> pa.Array:
    return pc.if_else(valid, array, pa.scalar(None, array.type))


def _between(array: pa.Array, first: int, last: int) -> pa.Array:
    return pc.and_(pc.greater_equal(array, first), pc.less_equal(array, last))


def _date(days: pa.Array) -> pa.Array:
    return _where(_between(days, _FIRST_DAY, _LAST_DAY), days).cast(pa.int32()).cast(pa.date32())


def _timestamp(kind: pa.TimestampType, microseconds: int) -> Callable[[pa.Array], pa.Array]:
    """Return the conversion of numbers that count units of `microseconds`."""

    def convert(numbers: pa.Array) -> pa.Array:
        valid = _between(numbers, -(-_FIRST // microseconds), _LAST // microseconds)
        return pc.multiply(_where(valid, numbers).cast(pa.int64()), microseconds).cast(kind)

    return convert


_ZONED = r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,6}0*)?(Z|[+-]\d\d:\d\d)$"
_MONTH_DAYS = np.array([0, 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31])


def _zoned(texts: pa.Array) -> pa.Array:
    """Convert ISO 8601 texts with a time zone. Invalid dates are masked before Arrow's cast, which raises on them."""
    shaped = _where(pc.match_substring_regex(texts, _ZONED), texts)
    shaped = pc.replace_substring_regex(shaped, r"(\.\d{6})0+", r"\1")
    moments = _where(pa.array(_is_date(shaped)), shaped).cast(pa.timestamp("us", "UTC"))
    return _where(_between(moments.cast(pa.int64()), _FIRST, _LAST), moments)


def _is_date(texts: pa.Array) -> _Bools:
    """Return which texts, matching `_ZONED` or null, have a valid date, time and offset."""

    def number(start: int, stop: int) -> npt.NDArray[np.int64]:
        part = pc.utf8_slice_codeunits(texts, start, stop).cast(pa.int64())
        return np.asarray(pc.fill_null(part, 0).to_numpy(zero_copy_only=False))

    year, month, day = number(0, 4), number(5, 7), number(8, 10)
    leap = (year % 4 == 0) & ((year % 100 != 0) | (year % 400 == 0)) & (month == 2)
    last_day = _MONTH_DAYS[np.clip(month, 0, 12)] + leap
    offsets = pc.if_else(pc.ends_with(texts, "Z"), "+00:00", pc.utf8_slice_codeunits(texts, -6, None))
    hours, minutes = (pc.utf8_slice_codeunits(offsets, at, at + 2).cast(pa.int64()) for at in (1, 4))
    zone = pc.fill_null(pc.and_(pc.less_equal(hours, 18), pc.less(minutes, 60)), False).to_numpy(zero_copy_only=False)
    date = (year > 0) & (month >= 1) & (month <= 12) & (day >= 1) & (day <= last_day)
    return np.asarray(date & (number(11, 13) < 24) & (number(14, 16) < 60) & (number(17, 19) < 60) & zone)


def _time_of_day(kind: pa.DataType, per_second: int) -> Callable[[pa.Array], pa.Array]:
    """Return the conversion of a time of day, counted in units of 1/`per_second` s, to ``HH:MM:SS[.ffffff]``."""
    day = 86_400 * per_second

    def convert(numbers: pa.Array) -> pa.Array:
        valid = _where(_between(numbers, 0, day), numbers)
        midnight = pc.equal(valid, day)  # 24:00:00, which Arrow cannot represent
        within = pc.if_else(midnight, pa.scalar(0, valid.type), valid).cast(_integer_of(kind)).cast(kind)
        texts = pc.utf8_rtrim(pc.utf8_rtrim(within.cast(pa.string()), "0"), ".")
        return pc.if_else(midnight, "24:00:00", texts)

    return convert


def _integer_of(kind: pa.DataType) -> pa.DataType:
    return pa.int32() if pa.types.is_time32(kind) else pa.int64()


# -- decimals ------------------------------------------------------------------------------------------------------


def _decimal(digits: int, scale: int) -> _Conversion:
    kind = pa.decimal128(digits, scale)

    def convert(texts: pa.Array) -> pa.Array:
        numbers = _unscaled(decode_base64(texts), digits)
        return pa.Array.from_buffers(kind, len(numbers), numbers.buffers())

    return _Conversion(kind, convert, _BAD_DECIMAL)


def _unscaled(data: pa.BinaryArray, digits: int = _MAX_DIGITS) -> pa.Array:
    """Return numbers encoded by Java's BigInteger (two's complement, big-endian) as DECIMAL(38,0).

    Null where bytes are null or empty, or a number has more than `digits` digits. Arrow decimals are 16 bytes in
    little-endian order, so the bytes of each number are reversed and the sign fills the rest.
    """
    offsets = np.frombuffer(data.buffers()[1], np.int32)[data.offset : data.offset + len(data) + 1]
    held = np.append(np.frombuffer(data.buffers()[2] or b"", np.uint8), np.uint8(0))
    first, length = offsets[:-1], np.diff(offsets)
    fits = data.is_valid().to_numpy(zero_copy_only=False) & (length >= 1) & (length <= 16)
    sign = np.where(fits & (held[first] >= 128), 255, 0).astype(np.uint8)
    reversed_bytes = np.empty((len(data), 16), np.uint8)
    for place in range(16):
        from_end = np.maximum(offsets[1:] - 1 - place, 0)
        reversed_bytes[:, place] = np.where(length > place, held[from_end], sign)
    numbers = pa.Array.from_buffers(
        pa.decimal128(_MAX_DIGITS, 0), len(data), [None, pa.py_buffer(reversed_bytes.tobytes())]
    )
    most = pa.scalar(Decimal(10**digits - 1), numbers.type)
    least = pa.scalar(Decimal(1 - 10**digits), numbers.type)
    small = pc.and_(pc.less_equal(numbers, most), pc.greater_equal(numbers, least))
    return _where(pc.and_(pa.array(fits), small), numbers)


def _variable(values: pa.StructArray) -> pa.Array:
    """Return numbers with individual scales as text with all digits, as Postgres prints a numeric."""
    scales, held = (values.flatten()[values.type.get_field_index(name)] for name in ("scale", "value"))
    numbers = _unscaled(held if pa.types.is_binary(held.type) else decode_base64(held))
    valid = _where(_between(scales, *_SCALES), scales)
    return _plain_text(_where(pc.is_valid(valid), numbers), valid)


def _plain_text(numbers: pa.Array, scales: pa.Array) -> pa.Array:
    signed = numbers.cast(pa.string())
    digits = pc.utf8_ltrim(signed, "-")
    order = pc.sort_indices(scales)
    sorted_scales, sorted_digits = scales.take(order), digits.take(order)
    groups = pc.run_end_encode(sorted_scales)
    begin, pieces = 0, []
    for scale, end in zip(groups.values.to_pylist(), groups.run_ends.to_pylist(), strict=True):
        pieces.append(_with_point(sorted_digits[begin:end], scale or 0))
        begin = end
    pointed = pa.chunked_array(pieces, pa.string()).combine_chunks().take(np.argsort(order))
    sign = pc.if_else(pc.starts_with(signed, "-"), "-", "")
    return pc.binary_join_element_wise(sign, pointed, "")


def _with_point(digits: pa.Array, scale: int) -> pa.Array:
    if scale > 0:
        padded = pc.utf8_lpad(digits, scale + 1, "0")
        whole, rest = pc.utf8_slice_codeunits(padded, 0, -scale), pc.utf8_slice_codeunits(padded, -scale, None)
        return pc.binary_join_element_wise(whole, rest, ".")
    zeros = pc.if_else(pc.equal(digits, "0"), "", "0" * -scale)
    return pc.binary_join_element_wise(digits, zeros, "")


_DATE = _Conversion(pa.date32(), _date, _BAD_TIME)
_NTZ, _MOMENT = pa.timestamp("us"), pa.timestamp("us", "UTC")
_MILLISECONDS = _Conversion(pa.string(), _time_of_day(pa.time32("ms"), 1000), _BAD_TIME_OF_DAY)
_VARIABLE = _Conversion(pa.string(), _variable, _BAD_VARIABLE_DECIMAL)
_OF_NUMBERS = {
    "org.apache.kafka.connect.data.Date": _DATE,
    "io.debezium.time.Date": _DATE,
    "io.debezium.time.Timestamp": _Conversion(_NTZ, _timestamp(_NTZ, 1000), _BAD_TIME),
    "io.debezium.time.MicroTimestamp": _Conversion(_NTZ, _timestamp(_NTZ, 1), _BAD_TIME),
    "org.apache.kafka.connect.data.Timestamp": _Conversion(_MOMENT, _timestamp(_MOMENT, 1000), _BAD_TIME),
    "org.apache.kafka.connect.data.Time": _MILLISECONDS,
    "io.debezium.time.Time": _MILLISECONDS,
    "io.debezium.time.MicroTime": _Conversion(pa.string(), _time_of_day(pa.time64("us"), 1_000_000), _BAD_TIME_OF_DAY),
    "io.debezium.time.NanoTime": _Conversion(
        pa.string(), _time_of_day(pa.time64("ns"), 1_000_000_000), _BAD_TIME_OF_DAY
    ),
}
_OF_TEXT = {
    "io.debezium.time.ZonedTimestamp": _Conversion(_MOMENT, _zoned, _BAD_TIME),
    BASE64: _Conversion(pa.binary(), decode_base64, _BAD_BASE64),
}
