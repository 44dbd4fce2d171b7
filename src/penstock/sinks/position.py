"""The position of a sink: what its topics contain. It is written in the same Kafka transaction as the messages.

::

    {"version": 1, "position": "16/B374D848", "tables": {"public.orders": 0}, "copying": null}

Every change up to `position` of the tables in `tables` is in the topics, and so are the rows that these tables had
when they joined. A table joins with its generation, which shows when it was captured again. While the rows of a table
are copied, `copying` names the base version that they are read from, and counts the rows that are written: the same
version gives the same rows in the same order.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from penstock.errors import DefiniteError
from penstock.model import TableName
from penstock.positions import Lsn

__all__ = ["Copying", "SinkPosition"]

_VERSION = 1
_HINT = "Drop the sink and create it again, with another positions topic."


@dataclass(frozen=True)
class Copying:
    """The copy of a table that has begun: the base version that is read, and the number of rows that are written."""

    table: TableName
    version: int
    base: Lsn
    rows: int = 0


@dataclass(frozen=True)
class SinkPosition:
    """What the topics of a sink contain."""

    position: Lsn
    tables: Mapping[TableName, int] = field(default_factory=dict)
    """The tables that have joined, each with its generation."""
    copying: Copying | None = None

    def begun(self) -> set[TableName]:
        """Return the tables that have joined, or whose rows are being written."""
        return {*self.tables, *(() if self.copying is None else (self.copying.table,))}

    def at(self, position: Lsn) -> SinkPosition:
        """Return the position after all changes up to there."""
        return replace(self, position=position)

    def joined(self, table: TableName, generation: int) -> SinkPosition:
        """Return the position with one more table, whose rows are written."""
        return replace(self, tables={**self.tables, table: generation}, copying=None)

    def without(self, table: TableName) -> SinkPosition:
        """Return the position without a table: it is no longer captured."""
        return replace(self, tables={name: kept for name, kept in self.tables.items() if name != table})

    def to_bytes(self) -> bytes:
        """Return the message of the topic of positions."""
        copying = self.copying
        fields = {
            "version": _VERSION,
            "position": str(self.position),
            "tables": {str(name): generation for name, generation in self.tables.items()},
            "copying": copying and [str(copying.table), copying.version, str(copying.base), copying.rows],
        }
        return json.dumps(fields, ensure_ascii=False).encode()

    @classmethod
    def from_bytes(cls, message: bytes) -> SinkPosition:
        """Read a message of the topic of positions; raise `DefiniteError` if it is not one of this version."""
        try:
            fields = json.loads(message)
            if fields["version"] != _VERSION:
                text = f"the position of the sink has version {fields['version']}, and this Penstock reads {_VERSION}"
                raise DefiniteError(text, "Use the Penstock that wrote it, or a newer one.")
            tables = {TableName.parse(name): int(generation) for name, generation in fields["tables"].items()}
            copying = fields["copying"]
            if copying is not None:
                table, version, base, rows = copying
                copying = Copying(TableName.parse(table), int(version), Lsn.parse(base), int(rows))
            return cls(Lsn.parse(fields["position"]), tables, copying)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            text = "the positions topic contains a message that is not the position of a sink"
            raise DefiniteError(text, _HINT) from error
