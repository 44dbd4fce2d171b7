"""A Postgres type as the system catalogs describe it, with everything that decoding its values requires."""

from __future__ import annotations

import enum
from dataclasses import dataclass

__all__ = ["PostgresType", "TypeKind"]


class TypeKind(enum.StrEnum):
    """The kind of a type."""

    BASE = "base"
    """A scalar type, identified by `oid`."""
    ARRAY = "array"
    """Elements of the type `of`."""
    ENUM = "enum"
    DOMAIN = "domain"
    """Values of the type `of`, sent as such."""
    RANGE = "range"
    """A range with bounds of the type `of`."""
    MULTIRANGE = "multirange"
    """Ranges of the type `of`."""
    COMPOSITE = "composite"
    """Named `fields`."""


@dataclass(frozen=True)
class PostgresType:
    """A type with its modifier. A plain value: it is stored in the catalog and sent to Spark workers."""

    oid: int
    typmod: int = -1
    name: str = ""
    """The name of a base type in ``pg_type``; identifies types of extensions, whose OIDs differ between databases."""
    kind: TypeKind = TypeKind.BASE
    of: PostgresType | None = None
    fields: tuple[tuple[str, PostgresType], ...] = ()
