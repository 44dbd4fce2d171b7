"""Columns as Debezium's Postgres connector writes them: the Connect type of each Postgres type, and its values.

The declared type in the field of a column (`penstock.model.type_name`) determines how Debezium represents it, with its
default settings. The result has Connect's physical types as Arrow types; logical names are in the metadata of fields
(``connect.name``, ``connect.version``, ``connect.parameters``, ``connect.doc``).

| Postgres | Connect | logical name |
|---|---|---|
| boolean, smallint, integer, bigint, oid | boolean, int16, int32, int64, int64 | – |
| real, double precision | float, double | – |
| text, varchar, char, name, citext, inet, cidr, macaddr, built-in ranges | string | – |
| numeric(p,s), money | bytes | org.apache.kafka.connect.data.Decimal |
| numeric | struct scale, value | io.debezium.data.VariableScaleDecimal |
| date | int32 | io.debezium.time.Date |
| time(0..3), time | int32, int64 | io.debezium.time.Time, MicroTime |
| timetz | string in UTC | io.debezium.time.ZonedTime |
| timestamp(0..3), timestamp | int64 | io.debezium.time.Timestamp, MicroTimestamp |
| timestamptz | string in UTC | io.debezium.time.ZonedTimestamp |
| interval | int64 | io.debezium.time.MicroDuration |
| bytea | bytes | – |
| bit, bit(n), bit varying(n) | boolean, bytes | –, io.debezium.data.Bits |
| uuid, json, jsonb, hstore, xml, tsvector, ltree | string | io.debezium.data.Uuid, Json, Xml, Tsvector, Ltree |
| an enum | string | io.debezium.data.Enum |
| point | struct x, y, wkb, srid | io.debezium.data.geometry.Point |
| an array of these | array | – |

**Differences.** The types box, circle, line, lseg, path and polygon are their text. Types that Debezium omits with its
default settings (composite types, multiranges, pg_lsn, xid, tsquery and other types that are not listed, and arrays of
money, interval, bit varying, xml and point) are present: in the type that the log has. NaN and infinities in a numeric
column end Debezium; here they raise `DefiniteError`. Keys of an hstore are in the order of Postgres.

A type without a declaration (a source other than Postgres, or a log of an earlier version) follows from the Arrow type.
No conversion creates an object for each value.
"""

from __future__ import annotations

import hashlib
import json
import re
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.changelog.json_rows import json_rows
from penstock.errors import DefiniteError
from penstock.formats.decimal_bytes import decimal_bytes
from penstock.formats.jit import compiled
from penstock.model import base_type_name, enum_labels

__all__ = ["UNAVAILABLE", "DebeziumType", "connect_field", "debezium_type"]

UNAVAILABLE = "__debezium_unavailable_value"
"""Debezium's placeholder of a TOAST value that did not change, and that the server therefore did not send."""

_Convert = Callable[[pa.Array], pa.Array]
_Bytes = npt.NDArray[np.uint8]


def _unchanged(values: pa.Array) -> pa.Array:
    return values


@dataclass(frozen=True)
class DebeziumType:
    """The representation of a column."""

    arrow: pa.DataType
    convert: _Convert = _unchanged
    """From values in the Arrow type of the log."""
    name: str | None = None
    """The name of the Connect schema."""
    parameters: Mapping[str, str] = field(default_factory=dict)
    doc: str | None = None
    fallback: Any = None
    """The value that a required column has where its value is unknown: in the old row of a DELETE, besides its key."""
    unavailable: Any = None
    """The placeholder of a TOAST value that was not sent; None if Debezium has none for this type."""

    def field(self, name: str, nullable: bool = True) -> pa.Field:
        """Return the field of a column of this type."""
        version = None if self.name is None else 1
        made = pa.field(name, self.arrow, nullable)
        return connect_field(made, self.name, version, parameters=self.parameters, doc=self.doc)


def connect_field(
    made: pa.Field,
    name: str | None,
    version: int | None = None,
    *,
    parameters: Mapping[str, str] | None = None,
    default: Any = None,
    doc: str | None = None,
) -> pa.Field:
    """Return a field with the name, the version, and the other properties of its Connect schema as metadata."""
    properties = {
        "connect.name": name,
        "connect.version": None if version is None else str(version),
        "connect.parameters": json.dumps(dict(parameters)) if parameters else None,
        "connect.default": None if default is None else json.dumps(default),
        "connect.doc": doc,
    }
    metadata = {key: value for key, value in properties.items() if value is not None}
    return made.with_metadata(metadata) if metadata else made


def debezium_type(column: pa.Field) -> DebeziumType:
    """Return the representation of a column of a table."""
    name = base_type_name(column)
    labels = enum_labels(column)
    found = None if name is None else _declared(name, column.type, labels)
    return found or _inferred(column.type)


# -- lookup ------------------------------------------------------------------------------------------------------------

_NAME = re.compile(r"(?P<name>.+?)(?:\((?P<modifiers>-?\d+(?:,-?\d+)?)\))?(?P<zone> with(?:out)? time zone)?")
_ARRAYS_THAT_DEBEZIUM_OMITS = {"money", "interval", "bit", "bit varying", "xml", "point", "name"}


def _declared(name: str, arrow: pa.DataType, labels: list[str] | None) -> DebeziumType | None:
    """Return the representation of a declared type; None if it has none, or if the log holds it as another type."""
    if name.endswith("[]"):
        return _declared_array(name.removesuffix("[]"), arrow, labels)
    if labels is not None:
        return _enum(labels) if pa.types.is_string(arrow) else None
    parts = _NAME.fullmatch(name)
    if parts is None:
        return None
    plain = parts["name"].rpartition(".")[2] + (parts["zone"] or "")
    modifiers = [int(each) for each in parts["modifiers"].split(",")] if parts["modifiers"] else []
    if plain.startswith("interval"):
        plain, modifiers = "interval", []
    make = _BY_NAME.get(plain)
    return None if make is None else make(arrow, modifiers)


def _declared_array(name: str, arrow: pa.DataType, labels: list[str] | None) -> DebeziumType | None:
    parts = _NAME.fullmatch(name)
    if not pa.types.is_list(arrow) or parts is None or parts["name"] in _ARRAYS_THAT_DEBEZIUM_OMITS:
        return None
    element = _declared(name, arrow.value_type, labels)
    return None if element is None else _array(element)


def _inferred(arrow: pa.DataType) -> DebeziumType:
    kinds = pa.types
    if kinds.is_decimal(arrow):
        return _decimal(arrow.scale, arrow.precision, decimal_bytes)
    if kinds.is_date32(arrow):
        return _DATE
    if kinds.is_timestamp(arrow) and arrow.unit == "us":
        return _ZONED_TIMESTAMP if arrow.tz else _MICRO_TIMESTAMP
    if kinds.is_list(arrow):
        return _array(_inferred(arrow.value_type))
    if kinds.is_string(arrow):
        return _STRING
    if kinds.is_binary(arrow):
        return _BYTEA
    fallback = 0 if kinds.is_integer(arrow) or kinds.is_floating(arrow) else False if kinds.is_boolean(arrow) else None
    return DebeziumType(arrow, fallback=fallback)


_Make = Callable[[pa.DataType, list[int]], DebeziumType | None]


def _only(arrow: pa.DataType, made: DebeziumType) -> _Make:
    """Return the representation of a type that the log holds as `arrow`."""
    return lambda found, _: made if found == arrow else None


def _text(name: str | None = None, convert: _Convert = _unchanged, fallback: str = "") -> DebeziumType:
    return DebeziumType(pa.string(), convert, name, fallback=fallback, unavailable=UNAVAILABLE)


def _enum(labels: list[str]) -> DebeziumType:
    return replace(_text("io.debezium.data.Enum"), parameters={"allowed": ",".join(labels)})


# -- arrays ------------------------------------------------------------------------------------------------------------

_CODES = list(UNAVAILABLE.encode())
_UNAVAILABLE_UUID = str(uuid.UUID(bytes=hashlib.md5(UNAVAILABLE.encode(), usedforsecurity=False).digest(), version=3))


def _array(element: DebeziumType) -> DebeziumType:
    kind = pa.list_(element.field("item"))

    def convert(lists: pa.ListArray) -> pa.ListArray:
        children = [element.convert(lists.values)]
        return pa.Array.from_buffers(kind, len(lists), lists.buffers()[:2], offset=lists.offset, children=children)

    return DebeziumType(kind, convert, fallback=[], unavailable=_unavailable_items(element))


def _unavailable_items(element: DebeziumType) -> Any:
    if element.name == "io.debezium.data.Uuid":
        return [_UNAVAILABLE_UUID]
    if element.arrow in (pa.int32(), pa.int64()) and element.name in (None, "io.debezium.time.Date"):
        return _CODES
    return None if element.unavailable is None else [element.unavailable]


# -- numbers -----------------------------------------------------------------------------------------------------------

_DECIMAL = "org.apache.kafka.connect.data.Decimal"
_SCALED = pa.struct([pa.field("scale", pa.int32(), nullable=False), pa.field("value", pa.binary(), nullable=False)])
_ZERO = b"\0"


def _decimal(scale: int, precision: int | None, convert: _Convert) -> DebeziumType:
    parameters = {"scale": str(scale)} | ({"connect.decimal.precision": str(precision)} if precision else {})
    return DebeziumType(pa.binary(), _valid(convert), _DECIMAL, parameters, fallback=_ZERO)


def _valid(convert: _Convert) -> _Convert:
    """Return a conversion to bytes whose result is null where the values are."""

    def converted(values: pa.Array) -> pa.Array:
        made = convert(values).cast(pa.binary())
        return pc.if_else(values.is_valid(), made, pa.scalar(None, pa.binary())) if values.null_count else made

    return converted


def _numeric(arrow: pa.DataType, modifiers: list[int]) -> DebeziumType | None:
    if not modifiers:
        scaled = DebeziumType(_SCALED, _variable_scale, "io.debezium.data.VariableScaleDecimal")
        scaled = replace(scaled, doc="Variable scaled decimal", fallback={"scale": 0, "value": _ZERO})
        return scaled if pa.types.is_string(arrow) else None
    precision, scale = modifiers
    if pa.types.is_decimal(arrow):
        return _decimal(scale, precision, decimal_bytes)
    return _decimal(scale, precision, _unscaled_bytes) if pa.types.is_string(arrow) and scale >= 0 else None


def _unscaled_bytes(texts: pa.StringArray) -> pa.BinaryArray:
    return _unscaled(texts, False)[1]


def _variable_scale(texts: pa.StringArray) -> pa.StructArray:
    scales, values = _unscaled(texts, True)
    mask = texts.is_null() if texts.null_count else None
    return pa.StructArray.from_arrays([pa.array(scales), values], fields=list(_SCALED), mask=mask)


def _unscaled(texts: pa.StringArray, stripped: bool) -> tuple[npt.NDArray[np.int32], pa.BinaryArray]:
    """Return scale and unscaled number of each numeric; with `stripped`, without the zeros at the end of a fraction."""
    data, begins, ends = _texts(texts)
    valid = texts.is_valid().to_numpy(zero_copy_only=False)
    scales = np.zeros(len(texts), np.int32)
    offsets = np.zeros(len(texts) + 1, np.int32)
    # Three digits need less than ten bits; a sign and the first limb need at most five bytes more.
    sizes = np.where(valid, (ends - begins) * 5 // 12 + 8, 1)
    numbers = np.empty(int(sizes.sum()), np.uint8)
    bad = _parse_numerics(data, begins, ends, valid, stripped, scales, offsets, numbers)
    if bad >= 0:
        message = "a numeric value is NaN or infinite, which the Decimal type of Kafka Connect cannot hold"
        raise DefiniteError(message, "Exclude the column from the sink, or write numeric columns as text.")
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(numbers[: offsets[-1]])]
    return scales, pa.Array.from_buffers(pa.binary(), len(texts), buffers)


def _texts(texts: pa.StringArray) -> tuple[_Bytes, npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the bytes of texts, and where each begins and ends."""
    _, offset_buffer, data_buffer = texts.buffers()
    offsets = np.frombuffer(offset_buffer, np.int32)[texts.offset : texts.offset + len(texts) + 1].astype(np.int64)
    data = np.empty(0, np.uint8) if data_buffer is None else np.frombuffer(data_buffer, np.uint8)
    return data, offsets[:-1], offsets[1:]


@compiled
def _parse_numerics(
    data: Any, begins: Any, ends: Any, valid: Any, stripped: bool, scales: Any, offsets: Any, numbers: Any
) -> int:
    """Fill in scales and two's complements, the highest byte first; return the first row that is no number, or -1."""
    end_of_all = np.int64(0)
    for row in range(begins.size):
        offsets[row] = end_of_all
        if not valid[row]:
            numbers[end_of_all] = 0
            end_of_all += 1
            continue
        begin, end = begins[row], ends[row]
        negative = begin < end and data[begin] == 45
        begin += negative
        point: Any = np.int64(-1)
        for at in range(begin, end):
            if data[at] == 46 and point < 0:
                point = at
            elif np.uint8(data[at] - 48) > 9:
                return row
        if begin == end:
            return row
        if stripped and point >= 0:
            while end > point + 1 and data[end - 1] == 48:
                end -= 1
        scales[row] = end - point - 1 if point >= 0 else 0
        # Limbs of 32 bits, the lowest first; nine digits at a time.
        limbs = np.zeros((end - begin) // 9 + 2, np.uint64)
        used = 0
        at = begin
        while at < end:
            factor, carry = np.uint64(1), np.uint64(0)
            while at < end and factor < np.uint64(1_000_000_000):
                if at != point:
                    carry = carry * np.uint64(10) + np.uint64(data[at] - 48)
                    factor *= np.uint64(10)
                at += 1
            for place in range(used):
                total = limbs[place] * factor + carry
                limbs[place] = total & np.uint64(0xFFFFFFFF)
                carry = total >> np.uint64(32)
            if carry:
                limbs[used] = carry
                used += 1
        if negative:
            borrow = np.uint64(1)
            for place in range(used):
                total = (limbs[place] ^ np.uint64(0xFFFFFFFF)) + borrow
                limbs[place] = total & np.uint64(0xFFFFFFFF)
                borrow = total >> np.uint64(32)
            negative = used > 0
        sign = np.uint8(255) if negative else np.uint8(0)
        count = 4 * used
        while count > 0 and np.uint8(limbs[(count - 1) >> 2] >> np.uint64(8 * ((count - 1) & 3))) == sign:
            count -= 1
        top = np.uint8(limbs[(count - 1) >> 2] >> np.uint64(8 * ((count - 1) & 3))) if count else np.uint8(sign ^ 128)
        if (top >> 7) != (sign >> 7):
            numbers[end_of_all] = sign
            end_of_all += 1
        for place in range(count - 1, -1, -1):
            numbers[end_of_all] = np.uint8(limbs[place >> 2] >> np.uint64(8 * (place & 3)))
            end_of_all += 1
    offsets[begins.size] = end_of_all
    return -1


def _money(texts: pa.StringArray) -> pa.Array:
    """Return the unscaled number of amounts with two decimal places, in any format of lc_monetary."""
    digits = pc.replace_substring_regex(texts, "[^0-9]", "")
    minus = pc.match_substring_regex(texts, r"[-(]")
    return _unscaled_bytes(pc.binary_join_element_wise(pc.if_else(minus, "-", ""), digits, ""))


# -- dates and times ---------------------------------------------------------------------------------------------------

_MILLISECONDS = 3
"""The greatest precision that Debezium represents in milliseconds."""
_SECOND, _DAY = 1_000_000, 86_400_000_000
_DAYS_PER_MONTH = 365.25 / 12.0


def _numbers(kind: pa.DataType, name: str, convert: _Convert = _unchanged) -> DebeziumType:
    return DebeziumType(kind, convert, f"io.debezium.time.{name}", fallback=0)


def _view(values: pa.Array) -> pa.Array:
    return values.view(pa.int32() if values.type.bit_width == 32 else pa.int64())


def _milliseconds(values: pa.Array) -> pa.Array:
    return _floor_divided(_view(values), 1000)


def _floor_divided(values: pa.Array, by: int) -> pa.Array:
    mask = values.is_null().to_numpy(zero_copy_only=False) if values.null_count else None
    return pa.array(pc.fill_null(values, 0).to_numpy() // by, mask=mask)


_DATE = _numbers(pa.int32(), "Date", _view)
_MICRO_TIMESTAMP = _numbers(pa.int64(), "MicroTimestamp", _view)


def _timestamp(arrow: pa.DataType, modifiers: list[int]) -> DebeziumType | None:
    if arrow != pa.timestamp("us"):
        return None
    is_short = modifiers and modifiers[0] <= _MILLISECONDS
    return _numbers(pa.int64(), "Timestamp", _milliseconds) if is_short else _MICRO_TIMESTAMP


def _zoned_timestamps(digits: int) -> _Convert:
    """Return a conversion to text with this number of digits of the second; 0: as many as needed."""

    def convert(values: pa.Array) -> pa.StringArray:
        text = pc.utf8_replace_slice(values.view(pa.timestamp("us")).cast(pa.string()), 10, 11, "T")
        if digits:
            text = pc.utf8_slice_codeunits(text, 0, 20 + digits)
        else:
            text = pc.replace_substring_regex(text, r"\.?0*$", "")
        return pc.binary_join_element_wise(text, "Z", "")

    return convert


def _zoned_timestamp(arrow: pa.DataType, modifiers: list[int]) -> DebeziumType | None:
    digits = modifiers[0] if modifiers else 6
    made = _text("io.debezium.time.ZonedTimestamp", _zoned_timestamps(digits), "1970-01-01T00:00:00Z")
    return replace(made, unavailable=None) if arrow == pa.timestamp("us", "UTC") else None


_ZONED_TIMESTAMP = replace(
    _text("io.debezium.time.ZonedTimestamp", _zoned_timestamps(6), "1970-01-01T00:00:00Z"), unavailable=None
)


def _time(arrow: pa.DataType, modifiers: list[int]) -> DebeziumType | None:
    if not pa.types.is_string(arrow):
        return None
    if modifiers and modifiers[0] <= _MILLISECONDS:
        return _numbers(pa.int32(), "Time", lambda texts: _floor_divided(_clock(texts), 1000).cast(pa.int32()))
    return _numbers(pa.int64(), "MicroTime", _clock)


def _clock(texts: pa.StringArray) -> pa.Int64Array:
    """Return the microseconds of times of day, as ``HH:MM:SS`` and at most six digits more."""
    hours, minutes, seconds = (pc.utf8_slice_codeunits(texts, at, at + 2).cast(pa.int64()) for at in (0, 3, 6))
    fraction = pc.utf8_rpad(pc.utf8_slice_codeunits(texts, 9, 15), 6, "0").cast(pa.int64())
    total = pc.add(pc.multiply(hours, 3600), pc.add(pc.multiply(minutes, 60), seconds))
    return pc.add(pc.multiply(total, _SECOND), fraction)


_ZONE = r"^(?P<clock>[0-9:.]+)(?P<sign>[-+])(?P<h>\d\d):?(?P<m>\d\d)?:?(?P<s>\d\d)?$"


def _zoned_time(texts: pa.StringArray) -> pa.StringArray:
    parts = pc.extract_regex(texts, _ZONE)
    clock, sign, hours, minutes, seconds = parts.flatten()
    zone = _clock(pc.binary_join_element_wise(*(pc.utf8_lpad(each, 2, "0") for each in (hours, minutes, seconds)), ":"))
    offset = pc.if_else(pc.equal(sign, "-"), pc.negate(zone), zone)
    local = pc.subtract(_clock(clock), offset)
    mask = texts.is_null().to_numpy(zero_copy_only=False)
    micros = np.where(mask, 0, pc.fill_null(local, 0).to_numpy()) % _DAY
    text = pa.array(micros, mask=mask).view(pa.time64("us")).cast(pa.string())
    return pc.binary_join_element_wise(pc.replace_substring_regex(text, r"\.?0*$", ""), "Z", "")


def _interval(values: pa.StructArray) -> pa.Array:
    """Return microseconds, with Debezium's arithmetic: a month has 30.4375 days, sums are doubles."""
    months, days, micros = (pc.fill_null(each, 0).to_numpy() for each in values.flatten())
    hours, rest = np.trunc(micros / (3600 * _SECOND)), np.fmod(micros, 3600 * _SECOND)
    minutes, seconds = np.trunc(rest / (60 * _SECOND)), np.fmod(rest, 60 * _SECOND) / _SECOND
    total = (((months * _DAYS_PER_MONTH + days) * 24 + hours) * 60 + minutes) * 60 + seconds
    mask = values.is_null().to_numpy(zero_copy_only=False)
    return pa.array((total * 1e6).astype(np.int64), mask=mask)


_INTERVAL = pa.struct([("months", pa.int32()), ("days", pa.int32()), ("microseconds", pa.int64())])


# -- bits --------------------------------------------------------------------------------------------------------------


def _bits(arrow: pa.DataType, modifiers: list[int]) -> DebeziumType | None:
    length = modifiers[0] if modifiers else 2**31 - 1
    if not pa.types.is_string(arrow):
        return None
    if length == 1:
        return DebeziumType(pa.bool_(), lambda texts: pc.equal(texts, "1"), fallback=False)
    made = DebeziumType(pa.binary(), _valid(_little_endian), "io.debezium.data.Bits", {"length": str(length)})
    return replace(made, fallback=b"")


def _little_endian(texts: pa.StringArray) -> pa.Array:
    """Return the bytes of bit strings, the lowest first, without the zeros at their end."""
    width = -(-max(pc.max(pc.binary_length(texts)).as_py() or 0, 1) // 8) * 8
    padded = pc.utf8_lpad(pc.fill_null(texts, ""), width, "0")
    data, begins, _ = _texts(padded)
    first = int(begins[0]) if len(texts) else 0
    matrix = (data[first : first + width * len(texts)].reshape(-1, width) == ord("1")).astype(np.uint8)
    packed = np.packbits(matrix, axis=1)[:, ::-1]
    needed = np.where(packed.any(axis=1), packed.shape[1] - (packed[:, ::-1] != 0).argmax(axis=1), 0)
    kept = packed[np.arange(packed.shape[1]) < needed[:, None]]
    offsets = np.concatenate([[0], np.cumsum(needed)]).astype(np.int32)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(kept))]
    return pa.Array.from_buffers(pa.binary(), len(texts), buffers)


# -- points, ranges, hstore --------------------------------------------------------------------------------------------

_POINT = pa.struct(
    [
        pa.field("x", pa.float64(), nullable=False),
        pa.field("y", pa.float64(), nullable=False),
        pa.field("wkb", pa.binary()),
        pa.field("srid", pa.int32()),
    ]
)
_WKB = np.dtype([("order", "u1"), ("type", "<u4"), ("x", "<f8"), ("y", "<f8")])


def _points(texts: pa.StringArray) -> pa.StructArray:
    parts = pc.extract_regex(texts, r"^\((?P<x>[^,]+),(?P<y>[^,]+)\)$")
    x, y = (pc.fill_null(each.cast(pa.float64()), 0.0).to_numpy() for each in parts.flatten())
    return _points_of(x, y, texts.is_null())


def _points_of(x: npt.NDArray[np.float64], y: npt.NDArray[np.float64], mask: pa.Array) -> pa.StructArray:
    known = np.empty(len(x), _WKB)
    known["order"], known["type"], known["x"], known["y"] = 1, 1, x, y
    offsets = np.arange(len(x) + 1, dtype=np.int32) * _WKB.itemsize
    wkb = pa.Array.from_buffers(pa.binary(), len(x), [None, pa.py_buffer(offsets), pa.py_buffer(known.view(np.uint8))])
    columns = [pa.array(x), pa.array(y), wkb, pa.nulls(len(x), pa.int32())]
    return pa.StructArray.from_arrays(columns, fields=list(_POINT), mask=mask)


def _point(arrow: pa.DataType, modifiers: list[int]) -> DebeziumType | None:
    zero = _points_of(np.zeros(1), np.zeros(1), pa.array([False]))[0].as_py()
    made = DebeziumType(_POINT, _points, "io.debezium.data.geometry.Point", doc="Geometry (POINT)", fallback=zero)
    return made if pa.types.is_string(arrow) else None


def _range(arrow: pa.DataType, modifiers: list[int]) -> DebeziumType | None:
    is_range = pa.types.is_struct(arrow) and [each.name for each in arrow][:2] == ["lower", "upper"]
    return _text(convert=_range_texts) if is_range else None


def _range_texts(ranges: pa.StructArray) -> pa.StringArray:
    lower, upper, lower_inclusive, upper_inclusive, empty = ranges.flatten()
    begin, end = pc.if_else(lower_inclusive, "[", "("), pc.if_else(upper_inclusive, "]", ")")
    bounds = [pc.fill_null(_bound_texts(each), "") for each in (lower, upper)]
    text = pc.binary_join_element_wise(begin, bounds[0], ",", bounds[1], end, "")
    return pc.if_else(empty, "empty", text)


def _bound_texts(bounds: pa.Array) -> pa.StringArray:
    if not pa.types.is_timestamp(bounds.type):
        return bounds.cast(pa.string())
    text = bounds.view(pa.timestamp("us")).cast(pa.string())
    zone = "+00" if bounds.type.tz else ""
    return pc.binary_join_element_wise('"', pc.replace_substring_regex(text, r"\.?0*$", ""), f'{zone}"', "")


def _hstore(maps: pa.MapArray) -> pa.StringArray:
    """Return JSON objects: those of a row with this one column, without what surrounds them."""
    rows = json_rows(pa.StructArray.from_arrays([maps], names=["_"]))
    text = pc.utf8_slice_codeunits(rows, len('{"_":'), -1)
    return pc.if_else(maps.is_valid(), text, pa.scalar(None, pa.string())) if maps.null_count else text


_HSTORE = replace(
    _text("io.debezium.data.Json", _hstore, "{}"),
    unavailable=json.dumps({UNAVAILABLE: UNAVAILABLE}, separators=(",", ":")),
)

# -- types by name -----------------------------------------------------------------------------------------------------

_STRING = _text()
_BYTEA = DebeziumType(pa.binary(), fallback=b"", unavailable=UNAVAILABLE.encode())
_BY_NAME: dict[str, _Make] = {
    "boolean": _only(pa.bool_(), DebeziumType(pa.bool_(), fallback=False)),
    "smallint": _only(pa.int16(), DebeziumType(pa.int16(), fallback=0)),
    "integer": _only(pa.int32(), DebeziumType(pa.int32(), fallback=0)),
    **{name: _only(pa.int64(), DebeziumType(pa.int64(), fallback=0)) for name in ("bigint", "oid")},
    "real": _only(pa.float32(), DebeziumType(pa.float32(), fallback=0.0)),
    "double precision": _only(pa.float64(), DebeziumType(pa.float64(), fallback=0.0)),
    "numeric": _numeric,
    "money": _only(pa.string(), _decimal(2, None, _money)),
    "date": _only(pa.date32(), _DATE),
    "time without time zone": _time,
    "time with time zone": _only(
        pa.string(), replace(_text("io.debezium.time.ZonedTime", _zoned_time, "00:00:00Z"), unavailable=None)
    ),
    "timestamp without time zone": _timestamp,
    "timestamp with time zone": _zoned_timestamp,
    "interval": _only(_INTERVAL, _numbers(pa.int64(), "MicroDuration", _interval)),
    "bytea": _only(pa.binary(), _BYTEA),
    **dict.fromkeys(("bit", "bit varying"), _bits),
    "uuid": _only(pa.string(), _text("io.debezium.data.Uuid")),
    **{name: _only(pa.string(), _text("io.debezium.data.Json")) for name in ("json", "jsonb")},
    "xml": _only(pa.string(), _text("io.debezium.data.Xml")),
    "tsvector": _only(pa.string(), _text("io.debezium.data.Tsvector")),
    "ltree": _only(pa.string(), _text("io.debezium.data.Ltree")),
    "hstore": _only(pa.map_(pa.string(), pa.string()), _HSTORE),
    "point": _point,
    **dict.fromkeys(("int4range", "int8range", "numrange", "daterange", "tsrange", "tstzrange"), _range),
}
