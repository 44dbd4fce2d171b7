"""What there is to say of values that cannot be kept: which columns, why, and how to find and mend the rows.

A message never holds a value, and a key is one. So a condition finds the rows upstream, by what the types here lack:
infinity, years of more than four digits, NaN, arrays of another shape. It is made of the column's type alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from penstock.model import TableName
from penstock.sources.postgres.captured import CapturedColumn
from penstock.sources.postgres.names import quoted, quoted_table
from penstock.sources.postgres.types import KEEP_TEXT, PostgresType, TypeKind

__all__ = ["BadColumn", "mending", "rows_with_bad_values", "told"]

BadColumn = tuple[CapturedColumn, str]
"""A column, and why a value of it cannot be kept."""

_DATES = "NOT isfinite({0}) OR {0} < '0001-01-01' OR {0} >= '10000-01-01'"
_CONDITIONS = {
    "date": _DATES,
    "timestamp": _DATES,
    "timestamptz": _DATES,
    "interval": "NOT isfinite({0})",
    "numeric": "{0} IN ('NaN', 'Infinity', '-Infinity')",
}
_SHAPE = "array_ndims({0}) > 1 OR array_lower({0}, 1) <> 1"


def told(bad: Sequence[BadColumn]) -> str:
    """Name the columns, each with the reason."""
    return "; ".join(
        f"column {column.name} holds a value that cannot be kept: {reason.removesuffix(KEEP_TEXT)}"
        for column, reason in bad
    )


def mending(table: TableName, bad: Sequence[BadColumn]) -> str:
    """Say how to find the rows, and what to do then."""
    where = rows_with_bad_values([column for column, _ in bad])
    found = f" They are among: SELECT * FROM {quoted_table(table)} WHERE {where};" if where else ""
    retry = f"Change such values upstream, then capture the table anew: ALTER SOURCES … RETRY TABLE {table};"
    texts = [column.name for column, reason in bad if reason.endswith(KEEP_TEXT)]
    if not texts:
        return retry + found
    names = ", ".join(f"{table}.{name}" for name in texts)
    other = (
        f" Where they shall stay, make a source with `text columns` = {names}, or leave them out (`exclude columns`)."
    )
    return retry + found + other


def rows_with_bad_values(columns: Sequence[CapturedColumn]) -> str:
    """Return a condition for the rows that hold what cannot be kept in these columns; '' where none can be named."""
    return " OR ".join(condition for column in columns for condition in _conditions(column.type, quoted(column.name)))


def _conditions(kind: PostgresType, value: str, depth: int = 1) -> Iterator[str]:
    if kind.kind is TypeKind.BASE and kind.name in _CONDITIONS:
        yield _CONDITIONS[kind.name].format(value)
    elif kind.kind is TypeKind.DOMAIN and kind.of is not None:
        yield from _conditions(kind.of, value, depth)
    elif kind.kind is TypeKind.RANGE and kind.of is not None:
        for bound in ("lower", "upper"):
            yield from _conditions(kind.of, f"{bound}({value})", depth)
    elif kind.kind is TypeKind.COMPOSITE:
        for name, field in kind.fields:
            yield from _conditions(field, f"({value}).{quoted(name)}", depth)
    elif kind.kind is TypeKind.ARRAY and kind.of is not None:
        yield _SHAPE.format(value)
        inner = " OR ".join(_conditions(kind.of, f"v{depth}", depth + 1))
        if inner:
            yield f"EXISTS (SELECT FROM unnest({value}) AS v{depth} WHERE {inner})"
