"""What numbers and bytes mean: columns of the types that Kafka Connect and Debezium had before they wrote them.

::

    key, value (as decoded) + meanings of the format ──▶ meant_type   the types with them
                                                     ──▶ with_meant   the messages with them, or a problem

A column gets the type that loses nothing, and the one that the same column of a Postgres source has:

| Connect, Debezium | column |
|---|---|
| Date | DATE |
| Debezium's Timestamp, MicroTimestamp: no time zone | TIMESTAMP_NTZ |
| Connect's Timestamp; ZonedTimestamp: a moment | TIMESTAMP |
| Time, MicroTime, NanoTime | STRING: ``HH:MM:SS[.ffffff]`` |
| Decimal of up to 38 digits | DECIMAL |
| VariableScaleDecimal | STRING: all its digits |
| bytes in JSON | BINARY |
| NanoTimestamp | BIGINT as it is: TIMESTAMP has microseconds |

All else stays as decoding gave it: Json, Uuid, Enum are text, Bits and larger decimals bytes, geometry a struct.
A value that its column cannot hold (infinity, years outside 0001 to 9999, 39 digits) is a problem of its message.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DateType,
    DecimalType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from penstock.envelopes.digits import decimal_of, plain_text, unscaled
from penstock.envelopes.messages import message_type

__all__ = ["Meaning", "meant_type", "with_meant"]

Meaning = tuple[tuple[str, ...], str]
"""Where a field is, by names from the top (``[]``: the items of an array), and what Connect calls it."""

_ITEM = "[]"
_FIRST_DAY, _LAST_DAY = -719_162, 2_932_896
_DAY = 86_400_000_000
_FIRST, _LAST = _FIRST_DAY * _DAY, (_LAST_DAY + 1) * _DAY - 1
_ZONED = r"^(?!0000)\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,6}0*)?(Z|[+-]\d\d:\d\d)$"
_DECIMAL = re.compile(r"^org\.apache\.kafka\.connect\.data\.Decimal\((\d+),(\d+)\)$")
_NUMBERS = (IntegerType, LongType)
_NO_TIME = "infinity, or outside the years 0001 to 9999: leave the column out (column.exclude.list)"
_NO_CLOCK = "not a time of day: leave the column out (column.exclude.list)"
_NO_DECIMAL = "more digits than its DECIMAL has, or no number: let Debezium write text (decimal.handling.mode = string)"
_NO_DIGITS = "more than 38 digits, or no number: let Debezium write text (decimal.handling.mode = string)"
_NO_BASE64 = "not base64, as which Connect writes bytes: let Connect's JsonConverter write the topic"


@dataclass(frozen=True)
class _Conversion:
    """How a value becomes the one that is meant: null where it cannot, and what to say then."""

    kind: DataType
    value: Callable[[Column], Column]
    refusal: str


_Conversions = Mapping[tuple[str, ...], _Conversion]


def meant_type(kind: StructType, meanings: Sequence[Meaning]) -> StructType:
    """Return the type of keys or values, which decoding gives as `kind`, with columns as they are meant."""
    found = _typed(kind, (), _conversions(kind, meanings))
    assert isinstance(found, StructType)
    return found


def with_meant(messages: DataFrame, part: str, meanings: Sequence[Meaning]) -> DataFrame:
    """Return messages whose ``key`` or ``value`` (`part`) is as it is meant; what cannot be is a ``problem``."""
    kind = message_type(messages, part)
    conversions = _conversions(kind, meanings)
    if not conversions:
        return messages
    problem = F.coalesce(F.col("problem"), *_problems(F.col(part), kind, (), conversions))
    meant = _meant(F.col(part), kind, (), conversions)
    return messages.withColumns({"problem": problem, part: meant})


def _conversions(kind: StructType, meanings: Sequence[Meaning]) -> dict[tuple[str, ...], _Conversion]:
    known = {}
    for path, name in meanings:
        found = _at(kind, path)
        conversion = None if found is None else _conversion(name, found)
        if conversion is not None:
            known[tuple(path)] = conversion
    return known


def _at(kind: DataType, path: Sequence[str]) -> DataType | None:
    """Return the type at a place; None where there is none, as inside of maps."""
    for name in path:
        if isinstance(kind, ArrayType) and name == _ITEM:
            kind = kind.elementType
        elif isinstance(kind, StructType) and name in kind.names:
            kind = kind[name].dataType
        else:
            return None
    return kind


def _conversion(name: str, kind: DataType) -> _Conversion | None:
    """Return what to do with a value of this meaning, which decoding gives as `kind`; None: nothing."""
    if isinstance(kind, _NUMBERS):
        return _OF_NUMBERS.get(name)
    if isinstance(kind, StringType):
        if decimal := _DECIMAL.match(name):
            return _decimal(int(decimal[1]), int(decimal[2]))
        return _OF_TEXT.get(name)
    if name == "io.debezium.data.VariableScaleDecimal" and isinstance(kind, StructType):
        return _variable(kind)
    return None


def _decimal(digits: int, scale: int) -> _Conversion:
    return _Conversion(
        DecimalType(digits, scale), lambda text: decimal_of(unscaled(_bytes(text)), digits, scale), _NO_DECIMAL
    )


def _variable(kind: StructType) -> _Conversion | None:
    if set(kind.names) != {"scale", "value"}:
        return None
    binary = isinstance(kind["value"].dataType, BinaryType)

    def text(value: Column) -> Column:
        held = value.getField("value")
        return plain_text(unscaled(held if binary else _bytes(held)), value.getField("scale"))

    return _Conversion(StringType(), text, _NO_DIGITS)


def _typed(kind: DataType, path: tuple[str, ...], conversions: _Conversions) -> DataType:
    if path in conversions:
        return conversions[path].kind
    if isinstance(kind, StructType):
        return StructType(
            [StructField(f.name, _typed(f.dataType, (*path, f.name), conversions), f.nullable) for f in kind]
        )
    if isinstance(kind, ArrayType):
        return ArrayType(_typed(kind.elementType, (*path, _ITEM), conversions), kind.containsNull)
    return kind


def _meant(value: Column, kind: DataType, path: tuple[str, ...], conversions: _Conversions) -> Column:
    if path in conversions:
        return conversions[path].value(value)
    if not _below(path, conversions):
        return value
    if isinstance(kind, ArrayType):
        inner = kind.elementType
        return F.transform(value, lambda item: _meant(item, inner, (*path, _ITEM), conversions))
    assert isinstance(kind, StructType)
    fields = (_meant(value.getField(f.name), f.dataType, (*path, f.name), conversions).alias(f.name) for f in kind)
    return F.when(value.isNotNull(), F.struct(*fields))


def _problems(value: Column, kind: DataType, path: tuple[str, ...], conversions: _Conversions) -> Iterator[Column]:
    """Yield, for each place with a meaning, a text where its value cannot be what it means."""
    if path in conversions or isinstance(kind, ArrayType):
        if _below(path, conversions):
            what = f'field "{".".join(path)}": {_leaf(path, conversions).refusal}'
            yield F.when(_bad(value, kind, path, conversions), F.lit(what))
    elif isinstance(kind, StructType):
        for field in kind:
            if _below((*path, field.name), conversions):
                yield from _problems(value.getField(field.name), field.dataType, (*path, field.name), conversions)


def _bad(value: Column, kind: DataType, path: tuple[str, ...], conversions: _Conversions) -> Column:
    if path in conversions:
        return value.isNotNull() & conversions[path].value(value).isNull()
    if isinstance(kind, ArrayType):
        inner = kind.elementType
        found = F.exists(value, lambda item: _bad(item, inner, (*path, _ITEM), conversions))
        return F.coalesce(found, F.lit(False))
    bad = F.lit(False)
    if isinstance(kind, StructType):
        for field in kind:
            if _below((*path, field.name), conversions):
                bad |= _bad(value.getField(field.name), field.dataType, (*path, field.name), conversions)
    return bad


def _below(path: tuple[str, ...], conversions: _Conversions) -> bool:
    return any(place[: len(path)] == path for place in conversions)


def _leaf(path: tuple[str, ...], conversions: _Conversions) -> _Conversion:
    return next(conversion for place, conversion in conversions.items() if place[: len(path)] == path)


# -- values ---------------------------------------------------------------------------------------------------------


def _date(days: Column) -> Column:
    return F.when(days.between(_FIRST_DAY, _LAST_DAY), F.date_from_unix_date(days.cast("int")))


def _local(per_unit: int) -> Callable[[Column], Column]:
    """Return what makes a time without a zone of a number of so many microseconds."""

    def converted(number: Column) -> Column:
        # Added to a beginning without a zone: a cast would go through the session's zone.
        seconds = (number.cast("decimal(20,0)") * per_unit / 1_000_000).cast("decimal(18,6)")
        beginning = F.lit("1970-01-01").cast("timestamp_ntz")
        return F.when(_within(number, per_unit), beginning + F.make_dt_interval(secs=seconds))

    return converted


def _moment(number: Column) -> Column:
    return F.when(_within(number, 1000), F.timestamp_millis(number))


def _within(number: Column, per_unit: int) -> Column:
    return number.between(-(-_FIRST // per_unit), _LAST // per_unit)


def _zoned(text: Column) -> Column:
    return F.when(text.rlike(_ZONED), text.try_cast("timestamp"))


def _time(per_second: int) -> Callable[[Column], Column]:
    """Return what makes ``HH:MM:SS[.ffffff]`` of a time of day in so many parts of a second."""
    width = len(str(per_second)) - 1

    def converted(number: Column) -> Column:
        number = number.cast("bigint")
        second = _quotient(number, per_second)
        parts = (_quotient(second, 3600), _quotient(second, 60) % 60, second % 60)
        clock = F.concat_ws(":", *(F.lpad(part.cast("string"), 2, "0") for part in parts))
        fraction = F.rtrim(F.lpad((number % per_second).cast("string"), width, "0"), F.lit("0"))
        text = F.concat(clock, F.when(fraction != "", F.concat(F.lit("."), fraction)).otherwise(F.lit("")))
        return F.when(number.between(0, 86_400 * per_second), text)

    return converted


def _quotient(number: Column, by: int) -> Column:
    return ((number - number % by) / by).cast("bigint")


def _bytes(text: Column) -> Column:
    return F.try_to_binary(text, F.lit("base64"))


_DATE = _Conversion(DateType(), _date, _NO_TIME)
_MILLISECONDS = _Conversion(StringType(), _time(1000), _NO_CLOCK)
_OF_NUMBERS = {
    "org.apache.kafka.connect.data.Date": _DATE,
    "io.debezium.time.Date": _DATE,
    "io.debezium.time.Timestamp": _Conversion(TimestampNTZType(), _local(1000), _NO_TIME),
    "io.debezium.time.MicroTimestamp": _Conversion(TimestampNTZType(), _local(1), _NO_TIME),
    "org.apache.kafka.connect.data.Timestamp": _Conversion(TimestampType(), _moment, _NO_TIME),
    "org.apache.kafka.connect.data.Time": _MILLISECONDS,
    "io.debezium.time.Time": _MILLISECONDS,
    "io.debezium.time.MicroTime": _Conversion(StringType(), _time(1_000_000), _NO_CLOCK),
    "io.debezium.time.NanoTime": _Conversion(StringType(), _time(1_000_000_000), _NO_CLOCK),
}
_OF_TEXT = {
    "io.debezium.time.ZonedTimestamp": _Conversion(TimestampType(), _zoned, _NO_TIME),
    "base64": _Conversion(BinaryType(), _bytes, _NO_BASE64),
}
