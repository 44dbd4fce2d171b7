"""Which types have an exact Arrow form, known without their codecs: a check of a database must not wait for numba.

Columns of all other types are captured as the text that Postgres prints, like those of the option `text columns`.
"""

from __future__ import annotations

from collections import Counter

from penstock.sources.postgres.types.codec import KEEP_TEXT, UnsupportedTypeError
from penstock.sources.postgres.types.postgres_type import PostgresType, TypeKind, builtin

__all__ = ["EXTENSION_TYPES", "check_supported", "is_map", "is_supported"]

_HSTORE = "hstore"
EXTENSION_TYPES = ("citext", _HSTORE, "ltree", "lquery", "ltxtquery", "vector")
"""The names of the supported types of extensions."""


def is_supported(kind: PostgresType) -> bool:
    """Return whether some Arrow type holds the values of a type exactly."""
    try:
        check_supported(kind)
    except UnsupportedTypeError:
        return False
    return True


def check_supported(kind: PostgresType) -> None:
    """Raise `UnsupportedTypeError` if no Arrow type holds the values of a type exactly."""
    if kind.kind is TypeKind.COMPOSITE:
        _check_fields(kind)
    elif kind.kind is TypeKind.BASE:
        if builtin(kind.oid, kind.typmod) is None and kind.name not in EXTENSION_TYPES:
            raise _unsupported(kind, "it has no exact Arrow form")
    elif kind.kind is not TypeKind.ENUM:
        if kind.of is None:
            raise _unsupported(kind, "the type of its parts is unknown")
        check_supported(kind.of)


def is_map(kind: PostgresType) -> bool:
    """Return whether the values of a type become maps."""
    if kind.kind is TypeKind.DOMAIN and kind.of is not None:
        return is_map(kind.of)
    return kind.kind is TypeKind.BASE and kind.name == _HSTORE


def _check_fields(kind: PostgresType) -> None:
    names = [name for name, _ in kind.fields]
    duplicates = sorted(name for name, count in Counter(name.lower() for name in names).items() if count > 1)
    if duplicates:
        reason = f"its fields {', '.join(duplicates)} differ by case alone, which Spark does not distinguish"
        raise _unsupported(kind, reason)
    if not names:
        raise _unsupported(kind, "it has no fields")
    for _, part in kind.fields:
        check_supported(part)


def _unsupported(kind: PostgresType, reason: str) -> UnsupportedTypeError:
    name = f"type {kind.name}" if kind.name else f"type with OID {kind.oid}"
    return UnsupportedTypeError(kind.oid, kind.typmod, f"{name}: {reason}{KEEP_TEXT}")
