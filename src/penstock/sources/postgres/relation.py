"""Relation messages of pgoutput: how the stream describes a table before its first change, and after each DDL."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from penstock.errors import ProtocolError
from penstock.model import TableName
from penstock.sources.postgres.control import REPORT

__all__ = ["Relation", "RelationColumn", "parse_relation"]


@dataclass(frozen=True)
class RelationColumn:
    """A column as Postgres declares it: type OID and modifier, and whether it is part of the replica identity."""

    name: str
    oid: int
    typmod: int
    identity: bool = False


@dataclass(frozen=True)
class Relation:
    """A table as the stream describes it."""

    id: int
    table: TableName
    replica_identity: str
    columns: tuple[RelationColumn, ...]


def parse_relation(message: bytes) -> Relation:
    """Read a Relation message, from its kind byte on; anything malformed raises `ProtocolError`."""
    try:
        return _parse(message)
    except (struct.error, ValueError, IndexError) as error:
        said = "a malformed Relation message arrived from Postgres"
        raise ProtocolError(said, REPORT) from error


def _parse(message: bytes) -> Relation:
    if message[0:1] != b"R":
        raise ValueError(message[0:1])
    (relation,) = struct.unpack_from(">I", message, 1)
    schema, at = _text(message, 5)
    name, at = _text(message, at)
    identity, count = struct.unpack_from(">cH", message, at)
    at += 3
    columns = []
    for _ in range(count):
        flags = message[at]
        column, at = _text(message, at + 1)
        oid, typmod = struct.unpack_from(">Ii", message, at)
        at += 8
        columns.append(RelationColumn(column, oid, typmod, bool(flags & 1)))
    if at != len(message):
        raise ValueError(at)
    return Relation(relation, TableName(schema or "pg_catalog", name), identity.decode("ascii"), tuple(columns))


def _text(message: bytes, at: int) -> tuple[str, int]:
    end = message.index(0, at)
    return message[at:end].decode(), end + 1
