"""What a statement of ours gives back: something to tell, or rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.control.status import HomeStatus

__all__ = ["Answer", "show_sources"]


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
