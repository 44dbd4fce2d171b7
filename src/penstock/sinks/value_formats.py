"""How a sink writes timestamps, dates, numerics and bytes: as text or as numbers, whichever the consumers expect.

| option | value | type of the column |
|---|---|---|
| ``format timestamp`` | ``iso8601``: ``2026-11-17T09:30:00.123456Z``, without the Z if there is no time zone | text |
| | ``epoch seconds``, ``epoch millis``, ``epoch micros``: since 1970-01-01, rounded down | bigint |
| ``format date`` | ``iso8601``: ``2026-11-17`` | text |
| | ``epoch days``: since 1970-01-01 | integer |
| ``format numeric`` | ``number``: the decimal itself | unchanged |
| | ``string``: all digits, as Postgres prints them | text |
| | ``double``: the nearest double | double |
| ``format bytes`` | ``base64``, ``hex`` (lower case, without prefix) | text |

A format applies to every column of its Arrow type, also inside lists, structs and values of maps; keys of maps keep
theirs. A numeric without precision is text in the log, and stays text.

The log has no infinities: capture rejects them, and all dates outside the years 0001 to 9999. A value of another
source that is outside these years raises `DefiniteError` in every format, because the number that stands for it might
be a sentinel.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import DefiniteError, UsageError
from penstock.formats.binary_encoder import list_items, list_offsets
from penstock.formats.json.encoder import encode_json
from penstock.name_suggestions import nearest

__all__ = ["ValueFormats", "value_texts"]

_TEXT, _LARGE_TEXT = pa.string(), pa.large_string()
_EPOCHS = {"epoch seconds": 1, "epoch millis": 10**3, "epoch micros": 10**6}
_KNOWN = {
    "timestamp": ("iso8601", *_EPOCHS),
    "date": ("iso8601", "epoch days"),
    "numeric": ("number", "string", "double"),
    "bytes": ("base64", "hex"),
}
_UNITS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
"""Ticks per second of a timestamp."""
_FIRST_DAY, _LAST_DAY = -719_162, 2_932_896
_DAY_SECONDS = 86_400
_EXACT_DIGITS = 15
"""Decimals with at most so many digits are different doubles if they are different."""
_HEX = np.frombuffer(b"0123456789abcdef", np.uint8)


@dataclass(frozen=True)
class ValueFormats:
    """The format of each kind of value; None leaves values as they are."""

    timestamp: str | None = None
    date: str | None = None
    numeric: str | None = None
    bytes: str | None = None

    def check(self) -> None:
        """Raise `UsageError` for a format that does not exist."""
        for kind, known in _KNOWN.items():
            given = getattr(self, kind)
            if given is not None and given not in known:
                message = f'unknown format "{given}" in option "format {kind}"'
                raise UsageError(message, nearest(given, known) or f"The formats are: {', '.join(known)}.")

    def type_of(self, kind: pa.DataType) -> pa.DataType:
        """Return the type of formatted values of this type."""
        if pa.types.is_struct(kind):
            return pa.struct([self._item(field) for field in kind])
        if pa.types.is_map(kind):
            return pa.map_(kind.key_field, self._item(kind.item_field), kind.keys_sorted)
        if pa.types.is_list(kind):
            return pa.list_(self._item(kind.value_field))
        if pa.types.is_large_list(kind):
            return pa.large_list(self._item(kind.value_field))
        return self._scalar_type(kind)

    def keeps_distinct(self, kind: pa.DataType) -> bool:
        """Return whether different values of this type are different after formatting, as those of a key must be."""
        if pa.types.is_timestamp(kind) and self.timestamp in _EPOCHS:
            return _UNITS[kind.unit] <= _EPOCHS[self.timestamp]
        if pa.types.is_decimal(kind) and self.numeric == "double":
            return bool(kind.precision <= _EXACT_DIGITS)
        children = (kind.field(place).type for place in range(kind.num_fields))
        return all(self.keeps_distinct(child) for child in children)

    def format(self, values: pa.Array, column: str) -> pa.Array:
        """Return formatted values; `column` is the name for messages."""
        kind = values.type
        wanted = self.type_of(kind)
        if wanted == kind:
            return values
        if pa.types.is_struct(kind):
            fields = [self.format(values.field(place), column) for place in range(kind.num_fields)]
            return pa.StructArray.from_arrays(fields, fields=list(wanted), mask=values.is_null())
        if pa.types.is_map(kind):
            keys, items = (list_items(values, part) for part in (values.keys, values.items))
            offsets = pa.array(list_offsets(values).astype(np.int32))
            formatted = self.format(items, column)
            return pa.MapArray.from_arrays(offsets, keys, formatted, type=wanted, mask=values.is_null())
        if pa.types.is_list(kind) or pa.types.is_large_list(kind):
            offsets = pa.array(list_offsets(values).astype(np.int32 if pa.types.is_list(kind) else np.int64))
            items = self.format(list_items(values, values.values), column)
            array = pa.ListArray if pa.types.is_list(kind) else pa.LargeListArray
            return array.from_arrays(offsets, items, type=wanted, mask=values.is_null())
        return self._scalars(values, column)

    def _item(self, field: pa.Field) -> pa.Field:
        wanted = self.type_of(field.type)
        return field if wanted == field.type else field.with_type(wanted).remove_metadata()

    def _scalar_type(self, kind: pa.DataType) -> pa.DataType:
        if pa.types.is_timestamp(kind) and self.timestamp is not None:
            return _TEXT if self.timestamp == "iso8601" else pa.int64()
        if pa.types.is_date(kind) and self.date is not None:
            return _TEXT if self.date == "iso8601" else pa.int32()
        if pa.types.is_decimal(kind) and self.numeric is not None:
            return {"string": _TEXT, "double": pa.float64()}.get(self.numeric, kind)
        return _TEXT if _is_bytes(kind) and self.bytes is not None else kind

    def _scalars(self, values: pa.Array, column: str) -> pa.Array:
        kind = values.type
        if pa.types.is_timestamp(kind) and self.timestamp in _EPOCHS:
            return _epoch_ticks(values, _EPOCHS[self.timestamp], column)
        if pa.types.is_date(kind) and self.date == "epoch days":
            _check_calendar(values, column)
            return values.cast(pa.date32()).cast(pa.int32())
        if pa.types.is_decimal(kind) and self.numeric == "double":
            return values.cast(_TEXT).cast(pa.float64())  # Arrow's own cast does not return the nearest double
        if _is_bytes(kind) and self.bytes == "hex":
            return _hex(values.cast(pa.large_binary())).cast(_TEXT)
        return value_texts(values, column).cast(_TEXT)


def value_texts(values: pa.Array, column: str) -> pa.LargeStringArray:
    """Return values as text: what `encode_json` writes, but strings without quotes and escapes; null stays null.

    Decimals have all digits and no exponent, as in Postgres. `column` is the name for messages.
    """
    kind = values.type
    if pa.types.is_dictionary(kind):
        return value_texts(values.dictionary_decode(), column)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_null(kind):
        return values.cast(_LARGE_TEXT)
    if pa.types.is_decimal(kind):
        return _decimal_texts(values)
    _check_calendar(values, column)
    texts = encode_json(values) if kind.num_fields else pc.utf8_trim(encode_json(values), '"')
    return pc.if_else(values.is_valid(), texts, pa.scalar(None, _LARGE_TEXT))


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind))


def _check_calendar(values: pa.Array, column: str) -> None:
    """Raise an error for a date or timestamp outside the years 0001 to 9999, without its value."""
    kind = values.type
    if pa.types.is_date(kind):
        what, ticks, per_day = "date", values.cast(pa.date32()).cast(pa.int32()), 1
    elif pa.types.is_timestamp(kind):
        what, ticks, per_day = "timestamp", values.cast(pa.int64()), _DAY_SECONDS * _UNITS[kind.unit]
    else:
        return
    found = pc.min_max(ticks).as_py()
    is_empty = found["min"] is None
    if not is_empty and not (_FIRST_DAY * per_day <= found["min"] and found["max"] < (_LAST_DAY + 1) * per_day):
        message = f"column {column} has a {what} outside the years 0001 to 9999"
        raise DefiniteError(message, "Change the value upstream, or exclude the column from the sink.")


def _epoch_ticks(values: pa.Array, per_second: int, column: str) -> pa.Int64Array:
    _check_calendar(values, column)
    given = _UNITS[values.type.unit]
    ticks = values.cast(pa.int64())
    if given <= per_second:
        return pc.multiply(ticks, pa.scalar(per_second // given, pa.int64()))
    rounded = ticks.fill_null(0).to_numpy() // (given // per_second)
    return pa.array(rounded, pa.int64(), mask=ticks.is_null().to_numpy(zero_copy_only=False))


def _decimal_texts(values: pa.Array) -> pa.LargeStringArray:
    """Return decimals with all digits. Arrow writes small ones with an exponent, ``1E-10``."""
    texts = values.cast(_LARGE_TEXT)
    if not pc.any(pc.match_substring(texts, "E")).as_py():
        return texts
    scale = values.type.scale
    digits = pc.utf8_lpad(pc.utf8_ltrim(_unscaled_texts(values), "-"), scale + 1, "0")
    whole, fraction = pc.utf8_slice_codeunits(digits, 0, -scale), pc.utf8_slice_codeunits(digits, -scale)
    sign = pc.if_else(pc.starts_with(texts, "-"), pa.scalar("-", _LARGE_TEXT), pa.scalar("", _LARGE_TEXT))
    return pc.binary_join_element_wise(
        pc.binary_join_element_wise(sign, whole, pa.scalar("", _LARGE_TEXT)), fraction, pa.scalar(".", _LARGE_TEXT)
    )


def _unscaled_texts(values: pa.Array) -> pa.LargeStringArray:
    """Return decimals as texts without the decimal point: 1.50 as 150."""
    whole = pa.decimal256(76, 0) if values.type.bit_width == 256 else pa.decimal128(38, 0)
    wide = values if whole.bit_width == 256 else values.cast(pa.decimal128(38, values.type.scale))
    return pa.Array.from_buffers(whole, len(wide), wide.buffers(), offset=wide.offset).cast(_LARGE_TEXT)


def _hex(values: pa.LargeBinaryArray) -> pa.LargeStringArray:
    sizes = pc.fill_null(pc.binary_length(values), 0).to_numpy(zero_copy_only=False).astype(np.int64)
    present = values.drop_null()
    first, end = (present.offset, present.offset + len(present))
    offsets = np.frombuffer(present.buffers()[1], np.int64) if len(present) else np.zeros(1, np.int64)
    held = np.frombuffer(present.buffers()[2] or b"", np.uint8)[offsets[first] : offsets[end]]
    digits = np.stack([_HEX[held >> 4], _HEX[held & 15]], axis=1)
    ends = np.concatenate([[0], np.cumsum(2 * sizes)]).astype(np.int64)
    bitmap = np.packbits(values.is_valid().to_numpy(zero_copy_only=False), bitorder="little")
    parts = [pa.py_buffer(bitmap), pa.py_buffer(ends), pa.py_buffer(digits)]
    return pa.Array.from_buffers(_LARGE_TEXT, len(values), parts)
