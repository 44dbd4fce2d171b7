"""Column definitions in SQL: ``id BIGINT, tags ARRAY<STRING>``, or one type for messages that are a single value."""

from __future__ import annotations

import pyarrow as pa
import sqlglot
from sqlglot import exp

from penstock.errors import UsageError

__all__ = ["ddl_columns"]

_Type = exp.DataType.Type
_TYPES = {
    _Type.BOOLEAN: pa.bool_(),
    _Type.TINYINT: pa.int8(),
    _Type.SMALLINT: pa.int16(),
    _Type.INT: pa.int32(),
    _Type.BIGINT: pa.int64(),
    _Type.FLOAT: pa.float32(),
    _Type.DOUBLE: pa.float64(),
    _Type.TEXT: pa.string(),
    _Type.VARCHAR: pa.string(),
    _Type.BINARY: pa.binary(),
    _Type.DATE: pa.date32(),
    _Type.TIMESTAMP: pa.timestamp("us", "UTC"),
    _Type.TIMESTAMPTZ: pa.timestamp("us", "UTC"),
    _Type.TIMESTAMPLTZ: pa.timestamp("us", "UTC"),
    _Type.TIMESTAMPNTZ: pa.timestamp("us"),
}
_HINT = "Define columns as in Spark SQL: id BIGINT, price DECIMAL(10,2), tags ARRAY<STRING>, extra MAP<STRING, STRING>."


def ddl_columns(text: str) -> pa.DataType:
    """Return the type that `text` describes: a struct for a list of columns, or a single type."""
    try:
        return _type(sqlglot.parse_one(text, into=exp.DataType, dialect="spark"))
    except sqlglot.errors.ParseError:
        pass
    try:
        return _type(sqlglot.parse_one(f"STRUCT<{text}>", into=exp.DataType, dialect="spark"))
    except sqlglot.errors.ParseError as error:
        message = f"invalid column definitions: {text}"
        raise UsageError(message, _HINT) from error


def _type(found: exp.Expression | None) -> pa.DataType:
    if not isinstance(found, exp.DataType):
        msg = "missing type in a column definition"
        raise UsageError(msg, _HINT)
    inner = found.expressions
    match found.this:
        case _Type.STRUCT if inner:
            return pa.struct([_column(one) for one in inner])
        case _Type.ARRAY | _Type.LIST if len(inner) == 1:
            return pa.list_(pa.field("element", _type(inner[0])))
        case _Type.MAP if len(inner) == 2 and _type(inner[0]) == pa.string():
            return pa.map_(pa.field("key", pa.string(), nullable=False), pa.field("value", _type(inner[1])))
        case _Type.DECIMAL:
            digits = [int(one.this.this) for one in inner] or [10, 0]
            return _decimal(digits[0], digits[1] if len(digits) > 1 else 0)
    if found.this in _TYPES:
        return _TYPES[found.this]
    message = f"unsupported column type: {found.sql('spark')}"
    raise UsageError(message, _HINT)


def _decimal(precision: int, scale: int) -> pa.DataType:
    if not 1 <= precision <= 38 or not 0 <= scale <= precision:
        message = f"invalid type DECIMAL({precision},{scale}): precision must be 1 to 38, scale 0 to the precision"
        raise UsageError(message, _HINT)
    return pa.decimal128(precision, scale)


def _column(found: exp.Expression) -> pa.Field:
    if not isinstance(found, exp.ColumnDef) or found.args.get("constraints"):
        message = f"column definition must be a name and a type, without constraints: {found.sql('spark')}"
        raise UsageError(message, "Remove constraints such as NOT NULL: every column of a message is nullable.")
    return pa.field(found.name, _type(found.args.get("kind")))
