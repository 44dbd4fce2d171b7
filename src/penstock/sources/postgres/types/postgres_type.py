"""A Postgres type as the system catalogs describe it, with all that decoding its values needs."""

from __future__ import annotations

import enum
from dataclasses import dataclass

__all__ = ["PostgresType", "TypeKind"]


class TypeKind(enum.StrEnum):
    """What a type is made of."""

    BASE = "base"
    """Itself; `oid` says all."""
    ARRAY = "array"
    """Elements of the type `of`."""
    ENUM = "enum"
    DOMAIN = "domain"
    """Values of the type `of`, sent as such."""
    RANGE = "range"
    """Between two values of the type `of`."""
    MULTIRANGE = "multirange"
    """Ranges of the type `of`."""
    COMPOSITE = "composite"
    """Named `fields`."""


@dataclass(frozen=True)
class PostgresType:
    """A type with its modifier. Values only: it is stored in the catalog and sent to Spark's workers."""

    oid: int
    typmod: int = -1
    name: str = ""
    """Of a base type, as ``pg_type`` has it; how an extension's type, whose OID differs everywhere, is known."""
    kind: TypeKind = TypeKind.BASE
    of: PostgresType | None = None
    fields: tuple[tuple[str, PostgresType], ...] = ()
