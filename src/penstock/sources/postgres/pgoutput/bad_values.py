"""Describe values that cannot be stored: which columns, why, and how to find and fix the rows.

Messages never include values, and a key is a value. So a condition finds the rows upstream, by what the target types
lack: infinity, years of more than four digits, NaN, arrays of other dimensions. It depends on the column's type alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from penstock.sources.postgres.captured_table import CapturedColumn, CapturedTable
from penstock.sources.postgres.quoting import quoted, quoted_table
from penstock.sources.postgres.types import KEEP_TEXT, PostgresType, TypeKind

__all__ = ["BadColumn", "bad_values_condition", "bad_values_hint", "describe_bad_values"]

BadColumn = tuple[CapturedColumn, str]
"""A column, and why a value of it cannot be stored."""

_DATES = "NOT isfinite({0}) OR {0} < '0001-01-01' OR {0} >= '10000-01-01'"
_CONDITIONS = {
    "date": _DATES,
    "timestamp": _DATES,
    "timestamptz": _DATES,
    "interval": "NOT isfinite({0})",
    "numeric": "{0} IN ('NaN', 'Infinity', '-Infinity')",
}
_SHAPE = "array_ndims({0}) > 1 OR array_lower({0}, 1) <> 1"


def describe_bad_values(bad: Sequence[BadColumn]) -> str:
    """Name the columns, each with the reason."""
    return "; ".join(
        f"column {column.name} holds a value that cannot be stored: {reason.removesuffix(KEEP_TEXT)}"
        for column, reason in bad
    )


def bad_values_hint(captured: CapturedTable, bad: Sequence[BadColumn]) -> str:
    """Return how to find the rows, and what to do then."""
    table = captured.name
    where = bad_values_condition([column for column, _ in bad])
    found = f" Find them with: SELECT * FROM {quoted_table(table)} WHERE {where};" if where else ""
    retry = f"Change such values upstream, then take a new snapshot: ALTER SOURCES … RETRY TABLE {table};"
    texts = [column for column, reason in bad if reason.endswith(KEEP_TEXT)]
    if not texts:
        return retry + found
    names = ", ".join(f"{table}.{column.upstream}" for column in texts)
    other = f" To keep them, set `text columns` = {names} (ALTER SOURCES … SET), or `exclude columns` to omit them."
    return retry + found + other + _rescue_hint(captured, texts)


def _rescue_hint(captured: CapturedTable, columns: Sequence[CapturedColumn]) -> str:
    """Return that the option `on unrepresentable` keeps these values, or why it does not."""
    keys = [column.upstream for column in columns if column.name in captured.key]
    if keys:
        return f" Values of key columns ({', '.join(keys)}) cannot be rescued." if captured.rescue else ""
    return "" if captured.rescue else " Or set `on unrepresentable` = 'rescue', which stores their text beside the row."


def bad_values_condition(columns: Sequence[CapturedColumn]) -> str:
    """Return a condition for rows with values that these columns cannot store; '' if there is none."""
    return " OR ".join(
        condition for column in columns for condition in _conditions(column.type, quoted(column.upstream))
    )


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
