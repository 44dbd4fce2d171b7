"""The report of ``penstock verify``. Its JSON format is documented and versioned.

It contains the keys of differing rows, which the user requested, but no other row values. For a keyless table it
contains only the number of differing rows.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.engine.verify import Verdict

__all__ = ["VerifyKey", "VerifyRepair", "VerifyReport", "VerifyTable", "verify_report"]

_VERSION = 1


@dataclass(frozen=True)
class VerifyKey:
    """The key of a differing row, and how the row differs."""

    key: dict[str, Any]
    how: str


@dataclass(frozen=True)
class VerifyTable:
    """The result for one table."""

    name: str
    upstream: str
    result: str
    rows: int | None
    differing: int | None
    missing: int | None
    unexpected: int | None
    changed: int | None
    keys: list[VerifyKey]
    error: str | None
    hint: str | None
    shard: str | None = None
    position: str | None = None


@dataclass(frozen=True)
class VerifyRepair:
    """The repair of one table."""

    name: str
    rows_changed: int
    low: str
    high: str


@dataclass(frozen=True)
class VerifyReport:
    """The comparison of tables at one position; after a repair, `before` is the report of the first comparison."""

    version: int
    source: str
    position: str | None
    equal: bool
    tables: list[VerifyTable]
    repairs: list[VerifyRepair] = field(default_factory=list)
    before: VerifyReport | None = None

    @property
    def differs(self) -> bool:
        """Whether a table was compared and differs."""
        return any(table.result == "different" for table in self.tables)

    def as_json(self) -> dict[str, Any]:
        """Return the JSON document of ``penstock verify --json``."""
        return asdict(self)


def verify_report(source: str, verdicts: Sequence[Verdict], limit: int = 20) -> VerifyReport:
    """Return the report of verdicts, with up to `limit` keys per table; shards have no common position."""
    tables = [_table(verdict, limit) for verdict in verdicts]
    sharded = any(verdict.shard is not None for verdict in verdicts)
    position = None if sharded or not verdicts else tables[0].position
    return VerifyReport(_VERSION, source, position, all(verdict.equal for verdict in verdicts), tables)


def _table(verdict: Verdict, limit: int) -> VerifyTable:
    name, found = f"{verdict.source}.{verdict.local}", verdict.differences
    of = (verdict.shard, None if verdict.position is None else str(verdict.position))
    if found is None:
        none = (None, None, None, None, None)
        return VerifyTable(name, verdict.table, "not compared", *none, [], verdict.error, verdict.hint, *of)
    reported = found.first[:limit] if verdict.key else []
    keys = [VerifyKey(json.loads(each.json, parse_float=str), each.how.value) for each in reported]
    result = "equal" if verdict.equal else "different"
    counts = (found.rows_compared, found.count, found.missing, found.unexpected, found.changed)
    return VerifyTable(name, verdict.table, result, *counts, keys, None, None, *of)
