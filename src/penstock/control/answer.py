"""What a statement of ours gives back: something to tell, or rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.catalog.repairs import Repair
from penstock.control.status import HomeStatus

__all__ = ["Answer", "repaired", "show_repairs", "show_sources"]


@dataclass(frozen=True)
class Answer:
    """The answer to a statement."""

    told: str = ""
    columns: Sequence[str] = ()
    rows: Sequence[Sequence[str | int | None]] = ()


def show_sources(status: HomeStatus) -> Answer:
    """Answer ``SHOW SOURCES``."""
    columns = ("name", "kind", "state", "tables", "valid", "durable", "committed_at", "lag_bytes", "error")
    rows = [
        (s.name, s.kind, s.state, len(s.tables), s.valid, s.durable, s.committed_at, s.lag_bytes, s.error)
        for s in status.sources
    ]
    return Answer(columns=columns, rows=rows)


def show_repairs(repairs: Sequence[Repair]) -> Answer:
    """Answer ``SHOW REPAIRS``."""
    columns = (
        "id",
        "table",
        "rows",
        "state",
        "asked_by",
        "asked_at",
        "low",
        "high",
        "rows_read",
        "rows_changed",
        "error",
    )
    return Answer(columns=columns, rows=[_repair_row(repair) for repair in repairs])


def repaired(repair: Repair) -> str:
    """Tell what a repair did."""
    rows = f"{repair.rows_read or 0:,} rows read upstream, {repair.rows_changed or 0:,} changed here"
    return f"repaired {repair.source}.{repair.table}: {rows}, between {repair.low} and {repair.high}"


def _repair_row(repair: Repair) -> tuple[str | int | None, ...]:
    low, high = (None if position is None else str(position) for position in (repair.low, repair.high))
    chosen = repair.chosen
    rows = f"{len(chosen['keys']):,} keys" if "keys" in chosen else chosen.get("where", "all")
    asked = (repair.id, f"{repair.source}.{repair.table}", rows, repair.state.value, repair.asked_by, repair.asked_at)
    return (*asked, low, high, repair.rows_read, repair.rows_changed, repair.error)
