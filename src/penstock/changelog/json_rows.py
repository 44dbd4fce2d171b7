"""Rows as JSON, for streams of several tables, whose columns differ.

::

    struct array ──▶ each column as JSON text ──▶ {"a":… ,"b":…} ──▶ one string array

Arrow kernels convert whole columns to text; a nested column is the joined text of its items. No value is rounded or
omitted:

- Integers and decimals are numbers with all their digits, never with an exponent. A float is the shortest number that
  reads back as the same float, with a decimal point or an exponent (``-0.0`` is preserved). JSON has no numbers for
  non-finite values: they are the strings ``"NaN"``, ``"Infinity"``, ``"-Infinity"``.
- A timestamp is ISO 8601, ``"2026-01-01T12:00:00.000001Z"``: with ``Z`` if it has a time zone, and with six digits or
  none after the seconds. A date is ``"2026-01-01"``. Binary values are base64 (RFC 4648, padded).
- A struct is an object with its keys in column order; a null field is present as ``null``. A map is an object, or, if
  its keys are not strings, a list of ``[key, value]``.

Base64 encoding works on a whole column: three bytes become four characters. Each value begins with a new group of three
bytes, so the groups of a column are consecutive and only the last group of a value may be incomplete. All groups of all
values are encoded in one table lookup.
"""

from __future__ import annotations

import json

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.changelog.user_rows import changes, changes_schema
from penstock.model import TableName

__all__ = ["base64_text", "json_lists", "json_rows", "multi_changes", "multi_changes_schema"]

_QUOTE, _BACKSLASH, _FIRST_PLAIN = ord('"'), ord("\\"), 0x20
_NO_COLUMNS = changes_schema(pa.schema([]))


def multi_changes_schema() -> pa.Schema:
    """Return the schema of `multi_changes`: that of `changes`, with the table's name, and rows as JSON."""
    sides = [pa.field("before", pa.string()), pa.field("after", pa.string())]
    return pa.schema([pa.field("_table", pa.string(), nullable=False), *list(_NO_COLUMNS)[:-2], *sides])


def multi_changes(images: pa.RecordBatch, table: TableName) -> pa.RecordBatch:
    """Combine the images of each change into one row, in a schema that all tables share."""
    paired = changes(images)
    *common, before, after = paired.columns
    named = pa.repeat(pa.scalar(str(table), pa.string()), len(paired))
    arrays = [named, *common, json_rows(before), json_rows(after)]
    return pa.RecordBatch.from_arrays(arrays, schema=multi_changes_schema())


def json_rows(rows: pa.StructArray) -> pa.StringArray:
    """Return each row as a JSON object; null for a null row."""
    if not rows.type.num_fields:
        return _where_valid(rows, pa.repeat(pa.scalar("{}"), len(rows)))
    parts: list[pa.Array | pa.Scalar] = []
    for field, values in zip(rows.type, rows.flatten(), strict=True):
        name = json.dumps(field.name, ensure_ascii=False)
        parts += [pa.scalar(f"{',' if parts else '{'}{name}:"), _filled(values)]
    return _where_valid(rows, pc.binary_join_element_wise(*parts, "}", ""))


def json_lists(rows: pa.RecordBatch) -> pa.StringArray:
    """Return each row as a JSON list of its values: column names may occur twice."""
    if not rows.num_columns:
        return pa.repeat(pa.scalar("[]"), len(rows))
    parts: list[pa.Array | str] = [part for values in rows.columns for part in (",", _filled(values))]
    return pc.binary_join_element_wise("[", *parts[1:], "]", "")


def _filled(values: pa.Array) -> pa.StringArray:
    """Return JSON texts, with ``null`` for null values."""
    return pc.fill_null(_json(values), "null") if values.null_count else _json(values)


def _json(values: pa.Array) -> pa.StringArray:
    """Return JSON texts; null for null."""
    kind, is_type = values.type, pa.types
    if is_type.is_struct(kind):
        return json_rows(values)
    if is_type.is_map(kind):
        return _objects(values) if _is_text(kind.key_type) else _pairs(values)
    if is_type.is_list(kind):
        return _joined(values, _filled(_items(values, values.values)), "[", "]")
    if is_type.is_floating(kind):
        return _floats(values)
    if is_type.is_decimal(kind):
        return _decimals(values)
    if is_type.is_integer(kind) or is_type.is_boolean(kind) or is_type.is_null(kind):
        return values.cast(pa.string())
    return _quoted(_text(values))


def _text(values: pa.Array) -> pa.StringArray:
    """Return the text between the quotes."""
    kind = values.type
    if pa.types.is_timestamp(kind):
        return _timestamps(values)
    if pa.types.is_binary(kind):
        return base64_text(values)
    if pa.types.is_date(kind) or pa.types.is_time(kind):
        return values.cast(pa.string())
    if _is_text(kind):
        return _escaped(values.cast(pa.string()))
    message = f"values of type {kind} cannot be converted to JSON"
    raise TypeError(message)


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


# -- numbers --------------------------------------------------------------------------------------------------------


def _floats(values: pa.Array) -> pa.StringArray:
    """Return floats as text: the shortest form that reads back, with ``.0`` added to integral values."""
    text = values.cast(pa.string())
    whole = pc.match_substring_regex(text, "^-?[0-9]+$")
    text = pc.if_else(whole, pc.binary_join_element_wise(text, ".0", ""), text)
    if pc.all(pc.is_finite(values)).as_py() is not False:
        return text
    sign = pc.if_else(pc.less(values, 0), '"-Infinity"', '"Infinity"')
    return pc.if_else(pc.is_finite(values), text, pc.if_else(pc.is_nan(values), '"NaN"', sign))


_EXPONENT_FROM_SCALE = 7


def _decimals(values: pa.Array) -> pa.StringArray:
    """Return decimals as text; Arrow prints small ones with an exponent, so those are written from their digits."""
    text = values.cast(pa.string())
    scale = values.type.scale
    if scale < _EXPONENT_FROM_SCALE:
        return text
    digits = values.view(pa.decimal128(values.type.precision, 0)).cast(pa.string())
    sign = pc.if_else(pc.starts_with(digits, "-"), "-0.", "0.")
    plain = pc.binary_join_element_wise(sign, pc.utf8_lpad(pc.utf8_ltrim(digits, "-"), scale, "0"), "")
    return pc.if_else(pc.match_substring(text, "E"), plain, text)


# -- texts ----------------------------------------------------------------------------------------------------------


def _quoted(text: pa.StringArray) -> pa.StringArray:
    return pc.binary_join_element_wise('"', text, '"', "")


def _escaped(text: pa.StringArray) -> pa.StringArray:
    """Escape the characters that RFC 8259 requires; a pass over the bytes shows that most columns contain none."""
    data = _bytes(text)
    control = data[data < _FIRST_PLAIN]
    if (data == _BACKSLASH).any():
        text = pc.replace_substring(text, "\\", "\\\\")
    if (data == _QUOTE).any():
        text = pc.replace_substring(text, '"', '\\"')
    for byte in np.unique(control):
        text = pc.replace_substring(text, chr(byte), json.dumps(chr(byte))[1:-1])
    return text


def _bytes(text: pa.StringArray) -> npt.NDArray[np.uint8]:
    _, offset_buffer, data_buffer = text.buffers()
    if data_buffer is None:
        return np.empty(0, np.uint8)
    offsets = np.frombuffer(offset_buffer, np.int32)[text.offset : text.offset + len(text) + 1]
    return np.frombuffer(data_buffer, np.uint8)[offsets[0] : offsets[-1]]


def _timestamps(values: pa.Array) -> pa.StringArray:
    """Return timestamps in UTC as ISO 8601; Arrow's text has a space instead of the ``T``."""
    zone = "Z" if values.type.tz else ""
    text = values.cast(pa.timestamp("us", values.type.tz)).view(pa.timestamp("us")).cast(pa.string())
    second = pc.if_else(pc.ends_with(text, ".000000"), pc.utf8_slice_codeunits(text, 0, 19), text)
    return pc.binary_join_element_wise(pc.utf8_replace_slice(second, 10, 11, "T"), zone, "")


# -- lists and maps -------------------------------------------------------------------------------------------------


def _objects(maps: pa.MapArray) -> pa.StringArray:
    keys, values = _json(_items(maps, maps.keys)), _filled(_items(maps, maps.items))
    return _joined(maps, pc.binary_join_element_wise(keys, ":", values, ""), "{", "}")


def _pairs(maps: pa.MapArray) -> pa.StringArray:
    keys, values = _json(_items(maps, maps.keys)), _filled(_items(maps, maps.items))
    return _joined(maps, pc.binary_join_element_wise("[", keys, ",", values, "]", ""), "[", "]")


def _items(lists: pa.ListArray | pa.MapArray, child: pa.Array) -> pa.Array:
    """Return the part of a child array that these lists, which may be a slice, refer to."""
    first, last = lists.offsets[0].as_py(), lists.offsets[-1].as_py()
    return child.slice(first, last - first)


def _joined(lists: pa.ListArray | pa.MapArray, items: pa.StringArray, begin: str, end: str) -> pa.StringArray:
    offsets = pc.subtract(lists.offsets, lists.offsets[0])
    joined = pc.binary_join(pa.ListArray.from_arrays(offsets, items), ",")
    return _where_valid(lists, pc.binary_join_element_wise(begin, joined, end, ""))


def _where_valid(values: pa.Array, text: pa.StringArray) -> pa.StringArray:
    return pc.if_else(values.is_valid(), text, pa.scalar(None, pa.string())) if values.null_count else text


_ALPHABET = np.frombuffer(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/", np.uint8)
_PADDING = ord("=")


def base64_text(values: pa.BinaryArray) -> pa.StringArray:
    """Return the base64 text of each value; null for null."""
    lengths = pc.fill_null(pc.binary_length(values), 0).to_numpy().astype(np.int64)
    groups = (lengths + 2) // 3
    offsets = np.concatenate([[0], np.cumsum(groups * 4)])
    if offsets[-1] > np.iinfo(np.int32).max:
        message = f"base64 text of {len(values)} values is {offsets[-1]} bytes long, more than one batch can hold"
        raise OverflowError(message)
    text = _encoded(*_grouped(values, lengths, groups))
    found = pa.StringArray.from_buffers(len(values), pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(text))
    return pc.if_else(values.is_valid(), found, pa.scalar(None, pa.string())) if values.null_count else found


def _grouped(
    values: pa.BinaryArray, lengths: npt.NDArray[np.int64], groups: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.int64]]:
    """Return the three bytes of each group as one number, and the number of bytes that the group really has."""
    _, offset_buffer, data_buffer = values.buffers()
    starts = np.frombuffer(offset_buffer, np.int32)[values.offset :][: len(values)].astype(np.int64)
    data = np.frombuffer(data_buffer or b"", np.uint8)
    within = np.arange(groups.sum()) - np.repeat(np.cumsum(groups) - groups, groups)
    present = np.minimum(np.repeat(lengths, groups) - 3 * within, 3)
    at = np.repeat(starts, groups) + 3 * within
    number = data[at].astype(np.uint32) << 16
    for place, shift in ((1, 8), (2, 0)):
        more = present > place
        number[more] |= data[at[more] + place].astype(np.uint32) << shift
    return number, present


def _encoded(number: npt.NDArray[np.uint32], present: npt.NDArray[np.int64]) -> npt.NDArray[np.uint8]:
    text = np.empty((len(number), 4), np.uint8)
    for place in range(4):
        text[:, place] = _ALPHABET[(number >> (18 - 6 * place)) & 63]
    text[present < 2, 2] = _PADDING
    text[present < 3, 3] = _PADDING
    return text.reshape(-1)
