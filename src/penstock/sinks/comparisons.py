"""Comparisons of columns with literals and with each other, as Postgres compares them, on whole columns.

| columns | literal | compared by |
|---|---|---|
| smallint, integer, bigint, numeric(p,s) | a number | value, exactly |
| numeric without precision, which the log has as text | a number | value, exactly |
| real, double precision | a number | value as double precision; NaN equals NaN, and is greater than all others |
| text, varchar, char, enums | a string | equality; trailing spaces of char do not count |
| uuid | a string | value |
| boolean | TRUE, FALSE | value |
| date, timestamp, timestamptz | a string | value; that of timestamptz requires a time zone |

Other columns can be tested for NULL only. The order of texts depends on the collation, and that of enums on their
declaration: neither is known here, so these columns are compared for equality.

The result of a comparison is a column of booleans, null where an operand is null. Literals are converted when the
comparison is made, so that an invalid one is an error before there are any rows.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import UsageError
from penstock.model import base_type_name, enum_labels

__all__ = ["Literal", "Operand", "Operator", "compare", "is_text", "like_regex", "literal_operand", "operand"]

Literal = str | Decimal | bool
"""A string, a number, or TRUE or FALSE."""


class Operator(enum.StrEnum):
    """A comparison."""

    EQUAL = "="
    NOT_EQUAL = "<>"
    LESS = "<"
    LESS_EQUAL = "<="
    GREATER = ">"
    GREATER_EQUAL = ">="

    @property
    def is_order(self) -> bool:
        """Whether it depends on an order of values."""
        return self not in (Operator.EQUAL, Operator.NOT_EQUAL)

    def apply(self, left: Any, right: Any) -> pa.Array:
        """Compare arrays and scalars of one type."""
        return _FUNCTIONS[self](left, right)


_FUNCTIONS: dict[Operator, Callable[[Any, Any], pa.Array]] = {
    Operator.EQUAL: pc.equal,
    Operator.NOT_EQUAL: pc.not_equal,
    Operator.LESS: pc.less,
    Operator.LESS_EQUAL: pc.less_equal,
    Operator.GREATER: pc.greater,
    Operator.GREATER_EQUAL: pc.greater_equal,
}


class _Kind(enum.Enum):
    """Columns that are compared in the same way, and with the same literals."""

    NUMBER = enum.auto()
    NUMERIC_TEXT = enum.auto()
    """A numeric without precision, as text."""
    DOUBLE = enum.auto()
    TEXT = enum.auto()
    PADDED_TEXT = enum.auto()
    ENUM = enum.auto()
    UUID = enum.auto()
    BOOLEAN = enum.auto()
    DATE = enum.auto()
    TIMESTAMP = enum.auto()
    TIMESTAMPTZ = enum.auto()
    OTHER = enum.auto()
    """Columns that are not compared."""


_WITHOUT_ORDER = (_Kind.TEXT, _Kind.PADDED_TEXT, _Kind.ENUM)
_TEXT_TYPES = {
    **dict.fromkeys((None, "text", "character varying", "name", '"char"'), _Kind.TEXT),
    "character": _Kind.PADDED_TEXT,
    "uuid": _Kind.UUID,
    "numeric": _Kind.NUMERIC_TEXT,
}
"""Types of columns that the log has as text; sources other than Postgres do not name the type."""


@dataclass(frozen=True)
class Operand:
    """A column or a literal: its values in rows, and how they are compared."""

    text: str
    """As the user wrote it, for messages."""
    kind: _Kind
    type: pa.DataType
    index: int | None = None
    """The index of the column; None for a literal."""
    literal: Any = None

    def values(self, rows: pa.StructArray) -> Any:
        """Return the values of the column in rows, or the literal."""
        return pa.scalar(self.literal, self.type) if self.index is None else rows.field(self.index)


def operand(index: int, field: pa.Field) -> Operand:
    """Return the column with this index."""
    return Operand(f'"{field.name}"', _kind(field), field.type, index)


def is_text(column: Operand) -> bool:
    """Return whether a column can be matched with a pattern."""
    return column.kind in (_Kind.TEXT, _Kind.PADDED_TEXT)


def literal_operand(given: Literal, written: str, column: Operand) -> Operand:
    """Return a literal as a value of the kind of a column; raise `UsageError` if it is none."""
    if column.kind is _Kind.OTHER:
        raise _not_comparable(column)
    convert, form = _LITERALS[column.kind]
    try:
        value, kind = convert(given)
    except (ValueError, TypeError):
        message = f'option "where": {written} is not a valid value for column {column.text}'
        raise UsageError(message, f"Use {form}.") from None
    return Operand(written, column.kind, kind, literal=value)


def _kind(field: pa.Field) -> _Kind:
    kind = field.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        name = base_type_name(field)
        if name is not None and name.endswith("[]"):  # an array, which the source captures as text
            return _Kind.OTHER
        if enum_labels(field) is not None:
            return _Kind.ENUM
        return _TEXT_TYPES.get(name if name is None else name.partition("(")[0], _Kind.OTHER)
    if pa.types.is_timestamp(kind):
        return _Kind.TIMESTAMP if kind.tz is None else _Kind.TIMESTAMPTZ
    return next((found for test, found in _ARROW_TYPES if test(kind)), _Kind.OTHER)


_ARROW_TYPES: tuple[tuple[Callable[[pa.DataType], bool], _Kind], ...] = (
    (pa.types.is_boolean, _Kind.BOOLEAN),
    (pa.types.is_integer, _Kind.NUMBER),
    (pa.types.is_decimal, _Kind.NUMBER),
    (pa.types.is_floating, _Kind.DOUBLE),
    (pa.types.is_date32, _Kind.DATE),
)


def _not_comparable(column: Operand) -> UsageError:
    message = f'option "where": column {column.text} has a type whose values cannot be compared here'
    return UsageError(message, "Use IS NULL or IS NOT NULL, or another column.")


# -- literals ----------------------------------------------------------------------------------------------------------

_ISO_DATE = re.compile(r"\d{4}-\d\d-\d\d")
_ISO_TIMESTAMP = re.compile(
    r"(\d{4}-\d\d-\d\d)(?:[ T](\d\d:\d\d(?::\d\d(?:\.\d{1,6})?)?))?(?: ?(Z|[+-]\d\d(?::?\d\d)?))?"
)
_DIGITS = 76
"""Decimals have at most so many digits."""


def _number(given: Literal) -> tuple[Any, pa.DataType]:
    if not isinstance(given, Decimal) or not given.is_finite() or abs(given.adjusted()) > _DIGITS:
        raise ValueError
    plain = Decimal(format(given, "f"))  # without an exponent: 1e3 has the scale 0
    if plain == plain.to_integral_value() and -(2**63) <= plain < 2**63:
        return int(plain), pa.int64()
    scale = -int(plain.as_tuple().exponent)
    digits = max(len(plain.as_tuple().digits), scale)
    return plain, pa.decimal256(digits, scale)  # a ValueError for too many digits


def _numeric_text(given: Literal) -> tuple[Any, pa.DataType]:
    if not isinstance(given, Decimal):
        raise TypeError
    return str(given), pa.string()


def _double(given: Literal) -> tuple[Any, pa.DataType]:
    if not isinstance(given, Decimal):
        raise TypeError
    return float(given), pa.float64()


def _text(given: Literal) -> tuple[Any, pa.DataType]:
    if not isinstance(given, str):
        raise TypeError
    return given, pa.string()


def _uuid(given: Literal) -> tuple[Any, pa.DataType]:
    return str(UUID(_text(given)[0])), pa.string()


def _boolean(given: Literal) -> tuple[Any, pa.DataType]:
    if not isinstance(given, bool):
        raise TypeError
    return given, pa.bool_()


def _date(given: Literal) -> tuple[Any, pa.DataType]:
    if not isinstance(given, str) or not _ISO_DATE.fullmatch(given):
        raise ValueError
    return date.fromisoformat(given), pa.date32()


def _timestamp(given: Literal) -> tuple[Any, pa.DataType]:
    return _parsed_timestamp(given, with_zone=False), pa.timestamp("us")


def _timestamptz(given: Literal) -> tuple[Any, pa.DataType]:
    return _parsed_timestamp(given, with_zone=True), pa.timestamp("us", "UTC")


def _parsed_timestamp(given: Literal, *, with_zone: bool) -> datetime:
    found = _ISO_TIMESTAMP.fullmatch(given) if isinstance(given, str) else None
    if found is None or (found[3] is not None) != with_zone:
        raise ValueError
    return datetime.fromisoformat(f"{found[1]}T{found[2] or '00:00'}{found[3] or ''}")


_LITERALS: dict[_Kind, tuple[Callable[[Literal], tuple[Any, pa.DataType]], str]] = {
    _Kind.NUMBER: (_number, "a number, such as 12.50"),
    _Kind.NUMERIC_TEXT: (_numeric_text, "a number, such as 12.50"),
    _Kind.DOUBLE: (_double, "a number, such as 1.5"),
    _Kind.TEXT: (_text, "a string, such as 'paid'"),
    _Kind.PADDED_TEXT: (_text, "a string, such as 'EUR'"),
    _Kind.ENUM: (_text, "a string, such as 'open'"),
    _Kind.UUID: (_uuid, "a uuid, such as '6f1f9a54-7d3c-4b5e-9a63-0c8d2f6c1a2b'"),
    _Kind.BOOLEAN: (_boolean, "TRUE or FALSE"),
    _Kind.DATE: (_date, "a date, such as '2026-11-18'"),
    _Kind.TIMESTAMP: (_timestamp, "a timestamp without time zone, such as '2026-11-18 03:00:00'"),
    _Kind.TIMESTAMPTZ: (_timestamptz, "a timestamp with time zone, such as '2026-11-18 03:00:00Z'"),
}
"""How a literal becomes a value and its type, and what it looks like."""


# -- comparisons -------------------------------------------------------------------------------------------------------


def compare(operator: Operator, left: Operand, right: Operand) -> Callable[[pa.StructArray], pa.Array]:
    """Return the comparison of two operands, of which `left` is a column; raise `UsageError` if there is none."""
    if left.kind is not right.kind:
        message = f'option "where": columns {left.text} and {right.text} have types that cannot be compared'
        raise UsageError(message, "Compare columns of the same type, or a column with a literal.")
    if left.kind is _Kind.OTHER:
        raise _not_comparable(left)
    if operator.is_order and left.kind in _WITHOUT_ORDER:
        message = f'option "where": the order of values of column {left.text} depends on the database'
        raise UsageError(message, f'Use =, <>, IN or LIKE, not "{operator}".')
    match left.kind:
        case _Kind.NUMBER:
            return _numbers(operator, left, right)
        case _Kind.NUMERIC_TEXT:
            return _numeric_texts(operator, left, right)
        case _Kind.DOUBLE:
            return lambda rows: _doubles(operator, left.values(rows), right.values(rows))
        case _Kind.PADDED_TEXT:
            return lambda rows: operator.apply(_unpadded(left.values(rows)), _unpadded(right.values(rows)))
    return lambda rows: operator.apply(left.values(rows), right.values(rows))


def _unpadded(texts: Any) -> Any:
    return pc.utf8_rtrim(texts, " ")


def _numbers(operator: Operator, left: Operand, right: Operand) -> Callable[[pa.StructArray], pa.Array]:
    common = _common_type(left, right)
    return lambda rows: operator.apply(left.values(rows).cast(common), right.values(rows).cast(common))


def _common_type(left: Operand, right: Operand) -> pa.DataType:
    """Return a type that has all values of two types of numbers exactly."""
    if pa.types.is_integer(left.type) and pa.types.is_integer(right.type):
        return pa.int64()
    sizes = [_size(one.type) for one in (left, right)]
    scale = max(size[1] for size in sizes)
    digits = max(size[0] for size in sizes) + scale
    if digits > _DIGITS:
        message = f'option "where": {left.text} and {right.text} have too many digits together'
        raise UsageError(message, f"Use numbers of up to {_DIGITS} digits.")
    return pa.decimal128(digits, scale) if digits <= 38 else pa.decimal256(digits, scale)


def _size(kind: pa.DataType) -> tuple[int, int]:
    """Return the number of digits before and after the decimal point."""
    return (kind.precision - kind.scale, kind.scale) if pa.types.is_decimal(kind) else (19, 0)


def _doubles(operator: Operator, left: Any, right: Any) -> pa.Array:
    left, right = left.cast(pa.float64()), right.cast(pa.float64())
    if operator in (Operator.GREATER, Operator.GREATER_EQUAL):
        left, right = right, left
    equal = pc.or_(pc.equal(left, right), pc.and_(pc.is_nan(left), pc.is_nan(right)))
    less = pc.or_(pc.less(left, right), pc.and_(pc.invert(pc.is_nan(left)), pc.is_nan(right)))
    match operator:
        case Operator.EQUAL:
            return equal
        case Operator.NOT_EQUAL:
            return pc.invert(equal)
        case Operator.LESS | Operator.GREATER:
            return less
    return pc.or_(less, equal)


def _numeric_texts(operator: Operator, left: Operand, right: Operand) -> Callable[[pa.StructArray], pa.Array]:
    if right.index is not None:
        message = f'option "where": columns {left.text} and {right.text} are numeric without precision'
        raise UsageError(message, "Compare a column of this type with a number, not with another column.")
    number, zero = Decimal(right.literal), pa.scalar(0, pa.int8())
    return lambda rows: operator.apply(_signs(left.values(rows), number), zero)


def _signs(texts: pa.Array, number: Decimal) -> pa.Array:
    """Return -1, 0 or 1 for numbers that are less than, equal to or greater than `number`; NaN is greater.

    Rounding to a double keeps the order. So only those that become the same double are compared exactly, each distinct
    text once, and there are few of them.
    """
    missing = texts.is_null().to_numpy(zero_copy_only=False)
    doubles = pc.fill_null(texts.cast(pa.float64()), 0.0).to_numpy()
    nearest = float(number)
    signs = np.where(doubles < nearest, -1, 1).astype(np.int8)
    close = np.flatnonzero((doubles == nearest) & ~missing)
    if len(close):
        encoded = texts.take(pa.array(close)).dictionary_encode()
        found = [_sign(Decimal(text), number) for text in encoded.dictionary.to_pylist()]
        signs[close] = np.array(found, np.int8)[encoded.indices.to_numpy()]
    return pa.array(signs, mask=missing)


def _sign(value: Decimal, number: Decimal) -> int:
    return (value > number) - (value < number)


def like_regex(pattern: str) -> str:
    """Return the regular expression (RE2) of a pattern of LIKE; raise `ValueError` if it ends with an escape."""
    found, characters = [], iter(pattern)
    for one in characters:
        if one == "\\":
            escaped = next(characters, None)
            if escaped is None:
                raise ValueError
            found.append(re.escape(escaped))
        else:
            found.append({"%": ".*", "_": "."}.get(one) or re.escape(one))
    return rf"\A(?s:{''.join(found)})\z"
