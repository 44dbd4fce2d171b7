"""Encode rows as JSON, a column at a time: the counterpart of `decoder`.

::

    {"before":null,"after":{"id":│7│,"note":│"a"│},"op":│"c"│,"ts_ms":1794982947948}
                            text    text           text  text

A message is a sequence of columns, with texts between them that all messages share: names of fields, and columns with
the same value in all rows. Each column writes the text before it and its values into the buffer of all messages
(`penstock.formats.json.column_parts`). A value of a dictionary is encoded once, and copied for the rows that have it.

| column | JSON |
|---|---|
| BOOLEAN, integers, DECIMAL | true or false; a number with all digits |
| FLOAT, DOUBLE | the shortest number that reads back as the same value; ``"NaN"``, ``"Infinity"``, ``"-Infinity"`` |
| STRING | a string |
| BINARY | base64, as a string |
| DATE | ``"2026-11-17"`` |
| TIMESTAMP, TIMESTAMP_NTZ | ``"2026-11-17T09:30:00.123456Z"``; without the Z |
| STRUCT, MAP | an object; the keys of a map are strings |
| ARRAY | an array |
| null | null |
"""

from __future__ import annotations

import json
from collections.abc import Iterable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.formats.binary_encoder import (
    Indexed,
    Part,
    Present,
    Sequences,
    dictionary_parts,
    encode_messages,
    list_items,
    list_offsets,
)
from penstock.formats.json.column_parts import Base64, Integers, Strings, Texts

__all__ = ["encode_json", "encode_json_messages"]

_TEXT = pa.large_string()


def encode_json(values: pa.Array) -> pa.LargeStringArray:
    """Return each value as JSON; null is the text ``null``."""
    return _as_text(encode_json_messages(values))


def encode_json_messages(values: pa.Array, before: bytes = b"", after: bytes = b"") -> pa.LargeBinaryArray:
    """Return each value as JSON between the same bytes; null is the text ``null``."""
    return encode_messages(values, lambda block: _part(block, before, after))


def _part(values: pa.Array, before: bytes, after: bytes) -> Part:
    parts: list[Part] = []
    rest = _append(parts, before, values) + after
    if rest:
        parts.append(_same(rest, len(values)))
    return Sequences(parts, len(values))


def _append(parts: list[Part], before: bytes, values: pa.Array) -> bytes:
    """Append parts that write values after a text; return the text that remains to be written after them."""
    kind = values.type
    if values.null_count == len(values):
        return before + b"null"
    if pa.types.is_dictionary(kind):
        return _append_dictionary(parts, before, values)
    if pa.types.is_struct(kind):
        if values.null_count:
            parts.append(_structs_and_nulls(before, values))
            return b""
        return _append_fields(parts, before, values)
    parts.append(_column(before, values))
    return b""


def _append_fields(parts: list[Part], before: bytes, structs: pa.StructArray) -> bytes:
    """Append the fields of structs, none of which is null."""
    before += b"{"
    for place, field in enumerate(structs.type):
        name = json.dumps(field.name, ensure_ascii=False).encode()
        before = _append(parts, before + (b"," if place else b"") + name + b":", structs.field(place))
    return before + b"}"


def _append_dictionary(parts: list[Part], before: bytes, values: pa.DictionaryArray) -> bytes:
    distinct, indexes = dictionary_parts(values)
    texts = encode_json_messages(distinct, before)
    if len(texts) == 1:
        text: bytes = texts[0].as_py()
        return text
    parts.append(Indexed(texts, indexes))
    return b""


def _structs_and_nulls(before: bytes, values: pa.StructArray) -> Part:
    is_valid = values.is_valid().to_numpy(zero_copy_only=False)
    rows, nulls = np.flatnonzero(is_valid), np.flatnonzero(~is_valid)
    parts: list[Part] = []
    rest = _append_fields(parts, before, values.take(pa.array(rows)))
    present = Sequences([*parts, _same(rest, len(rows))], len(rows))
    absent = _same(before + b"null", len(nulls))
    return Sequences([Present(present, rows, len(values)), Present(absent, nulls, len(values))], len(values))


def _same(text: bytes, count: int) -> Part:
    return Indexed(pa.array([text], pa.large_binary()), np.zeros(count, np.int64))


def _column(before: bytes, values: pa.Array) -> Part:
    """Return the part of a column that is no struct, and no dictionary."""
    kind = values.type
    if pa.types.is_boolean(kind):
        texts = pa.array([before + text for text in (b"false", b"true", b"null")], pa.large_binary())
        numbers = pc.fill_null(values.cast(pa.int8()), 2) if values.null_count else values.cast(pa.int8())
        return Indexed(texts, numbers.to_numpy(zero_copy_only=False))
    if pa.types.is_signed_integer(kind):
        return Integers(before, values)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return Strings(before, values)
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind):
        return Base64(before, values)
    if pa.types.is_map(kind):
        return Texts(before, _maps(values))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        items = encode_json(list_items(values, values.values))
        return Texts(before, _only_valid(values, _joined(["[", _separated(values, items), "]"])))
    if pa.types.is_floating(kind):
        return Texts(before, _floats(values))
    texts = _timestamps(values) if pa.types.is_timestamp(kind) else values.cast(_TEXT)
    return Texts(before, texts, quoted=not _is_bare(kind))


def _is_bare(kind: pa.DataType) -> bool:
    """Return whether the text of a value is JSON without quotes."""
    return bool(pa.types.is_integer(kind) or pa.types.is_boolean(kind) or pa.types.is_decimal(kind))


def _timestamps(values: pa.TimestampArray) -> pa.LargeStringArray:
    """Return timestamps in ISO 8601. Arrow prints them ten times as fast without a time zone."""
    is_utc = values.type.tz == "UTC"
    texts = (values.view(pa.timestamp(values.type.unit)) if is_utc else values).cast(_TEXT)
    texts = pc.replace_substring(texts, " ", "T", max_replacements=1)
    return _joined([texts, "Z"]) if is_utc else texts


def _floats(values: pa.Array) -> pa.LargeStringArray:
    texts = values.cast(_TEXT)
    if pc.all(pc.is_finite(values), skip_nulls=True).as_py() is not False:
        return texts
    words = pc.if_else(pc.is_nan(values), '"NaN"', pc.if_else(pc.less(values, 0), '"-Infinity"', '"Infinity"'))
    return pc.if_else(pc.is_finite(values), texts, words.cast(_TEXT))


def _maps(maps: pa.MapArray) -> pa.LargeStringArray:
    keys, items = list_items(maps, maps.keys), encode_json(list_items(maps, maps.items))
    names = encode_json(keys)
    named = _joined(['"', names, '":', items] if _is_bare(keys.type) else [names, ":", items])
    return _only_valid(maps, _joined(["{", _separated(maps, named), "}"]))


def _separated(lists: pa.Array, items: pa.LargeStringArray) -> pa.LargeStringArray:
    """Join the texts of the items of each list, separated by commas."""
    return pc.binary_join(pa.LargeListArray.from_arrays(pa.array(list_offsets(lists)), items), pa.scalar(",", _TEXT))


def _joined(parts: Iterable[str | pa.Array]) -> pa.LargeStringArray:
    """Concatenate texts for each row; null if one of them is null."""
    return pc.binary_join_element_wise(
        *[pa.scalar(one, _TEXT) if isinstance(one, str) else one for one in parts], pa.scalar("", _TEXT)
    )


def _only_valid(values: pa.Array, texts: pa.LargeStringArray) -> pa.LargeStringArray:
    return pc.if_else(values.is_valid(), texts, pa.scalar(None, _TEXT)) if values.null_count else texts


def _as_text(messages: pa.LargeBinaryArray) -> pa.LargeStringArray:
    return pa.Array.from_buffers(_TEXT, len(messages), messages.buffers(), offset=messages.offset)
