"""Names of records and their fields in registered schemas.

A column of Postgres may have any name; Avro and Protobuf allow letters, digits and underscores. Other characters become
underscores, as in Kafka Connect. Two columns whose names become equal are an error.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import pyarrow as pa

from penstock.errors import UsageError

__all__ = [
    "CONNECT_NAME",
    "CONNECT_VERSION",
    "RecordName",
    "distinct_names",
    "record_name",
    "valid_full_name",
    "valid_name",
    "with_record_name",
]

CONNECT_NAME, CONNECT_VERSION = b"connect.name", b"connect.version"
_RECORD_NAME = b"record.name"
_INVALID = re.compile(r"[^A-Za-z0-9_]")


@dataclass(frozen=True)
class RecordName:
    """The full name of the record of keys or values of a topic."""

    name: str
    is_connect: bool = False
    """Whether it is a schema of Kafka Connect, of which the registered schema has all properties."""
    version: int | None = None
    """The version of Connect's schema."""

    def field(self, kind: pa.StructType) -> pa.Field:
        """Return the record as a field: its name, type and Connect's metadata."""
        metadata = {CONNECT_NAME: self.name} if self.is_connect else {}
        if self.version is not None:
            metadata[CONNECT_VERSION] = str(self.version)
        return pa.field(self.name, kind, nullable=False, metadata=metadata or None)


def with_record_name(field: pa.Field, name: str) -> pa.Field:
    """Return a field of structs with the name of their record, in the namespace of the record around it."""
    return field.with_metadata({**(field.metadata or {}), _RECORD_NAME: name})


def record_name(field: pa.Field) -> str | None:
    """Return the name that `with_record_name` set."""
    name = (field.metadata or {}).get(_RECORD_NAME)
    return None if name is None else name.decode()


def valid_name(name: str) -> str:
    """Return a name of letters, digits and underscores, which does not begin with a digit."""
    valid = _INVALID.sub("_", name)
    return f"_{valid}" if not valid or valid[0].isdigit() else valid


def valid_full_name(name: str) -> str:
    """Return a name of which every part between dots is valid."""
    return ".".join(valid_name(part) for part in name.split("."))


def distinct_names(names: Iterable[str], form: Callable[[str], str], schema: str) -> dict[str, str]:
    """Return each name in its valid form; raise `UsageError` if two have the same one in this kind of schema."""
    found: dict[str, str] = {}
    for name in names:
        first = found.setdefault(form(name), name)
        if first != name:
            message = f"columns {first!r} and {name!r} have the same name in {schema}: {form(name)}"
            raise UsageError(message, "Rename or exclude one of the columns in the sink.")
    return {name: valid_name(name) for name in found.values()}
