"""Where in an Avro schema Kafka Connect says more than Avro does; see `penstock.formats.meanings`."""

from __future__ import annotations

from collections.abc import Iterator

from penstock.formats.avro.schema import AvroType
from penstock.formats.avro.types import is_wrapped, member_name, members
from penstock.formats.meanings import ITEM, Meaning

__all__ = ["avro_meanings"]


def avro_meanings(schema: AvroType) -> tuple[Meaning, ...]:
    """Return them by the place of their columns; the schema has been made into columns before, so it has an end."""
    return tuple(_found(schema, ("value",) if is_wrapped(schema) else ()))


def _found(schema: AvroType, path: tuple[str, ...]) -> Iterator[Meaning]:
    if schema.meaning:
        yield path, schema.meaning
    elif schema.kind == "union":
        several = len(members(schema)) > 1
        for member in members(schema):
            yield from _found(member, (*path, member_name(member)) if several else path)
    elif schema.kind == "record":
        for one in schema.fields:
            yield from _found(one.type, (*path, one.name))
    elif schema.kind == "array":
        yield from _found(schema.inner, (*path, ITEM))
