"""The sources, tables and sinks on the status page, from their parts of a status document and the latest sample."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from penstock.server.page.levels import Level
from penstock.server.page.quantities import age_text, count_text, size_text

__all__ = ["Document", "SinkRow", "SlotView", "SourceView", "TableRow", "sink_row", "source_view"]

Document = Mapping[str, Any]

_WARN_SLOT, _CRITICAL_SLOT = 0.5, 0.8
_TABLE_LEVELS: dict[str, Level] = {
    "live": "ok",
    "pending": "busy",
    "adding": "busy",
    "retrying": "busy",
    "dropping": "idle",
    "failed": "critical",
}


@dataclass(frozen=True)
class TableRow:
    """A table; numbers that are unknown are None. `fraction` is that of its snapshot."""

    name: str
    source: str
    upstream: str
    state: str
    level: Level
    rows: int | None
    rate: float | None
    behind: int | None
    lag_ms: float | None
    position: str | None
    fraction: float | None
    progress: str | None
    waiting: str | None
    error: str | None
    hint: str | None


@dataclass(frozen=True)
class SlotView:
    """A replication slot; `fraction` is the share of the WAL that it may retain, None without a limit."""

    name: str
    state: str
    level: Level
    retained: str | None
    limit: str | None
    fraction: float | None
    confirmed: str | None


@dataclass(frozen=True)
class SourceView:
    """A source, or one shard of it; `group` is the name under which shards are queried together."""

    name: str
    group: str
    shard: str | None
    kind: str
    at: str
    state: str
    level: Level
    status: str
    rate: float | None
    latency_ms: float | None
    lag_bytes: int | None
    durable: str | None
    valid: str | None
    committed: str | None
    committed_at: str | None
    log: str
    log_bytes: int | None
    waiting: str | None
    error: str | None
    slot: SlotView | None
    tables: tuple[TableRow, ...]


@dataclass(frozen=True)
class SinkRow:
    """A sink."""

    name: str
    source: str
    reads: str
    into: str
    envelope: str
    format: str
    state: str
    level: Level
    position: str | None
    behind: int | None
    lag_ms: float | None
    rate: float | None
    messages: int | None
    error: str | None
    hint: str | None


def source_view(found: Document, series: Document, now: datetime) -> SourceView:
    """Return a source and its tables."""
    name = str(found["name"])
    tables = tuple(_table(table, name, series) for table in found.get("tables", ()))
    level, status = _source_status(found, tables)
    return SourceView(
        name=name,
        group=found.get("part_of") or name,
        shard=found.get("shard"),
        kind=str(found.get("kind", "")),
        at=str(found.get("at", "")),
        state=str(found.get("state", "")),
        level=level,
        status=status,
        rate=_latest(series, f"source:{name}", "rate"),
        latency_ms=None if found.get("waiting") or found.get("error") else found.get("latency_ms"),
        lag_bytes=found.get("lag_bytes"),
        durable=found.get("durable"),
        valid=found.get("valid"),
        committed=age_text(found.get("committed_at"), now),
        committed_at=found.get("committed_at"),
        log=found.get("log") or "in the home",
        log_bytes=found.get("log_bytes"),
        waiting=found.get("waiting"),
        error=found.get("error"),
        slot=_slot(found.get("slot")),
        tables=tables,
    )


def _source_status(found: Document, tables: Sequence[TableRow]) -> tuple[Level, str]:
    state = str(found.get("state", ""))
    if state == "failed":
        return "critical", "failed"
    if state in ("creating", "dropping"):
        return "busy", state
    if found.get("error"):
        return "warning", "retrying"
    if found.get("waiting"):
        return "warning", "waiting"
    if any(table.state in ("pending", "adding", "retrying") for table in tables):
        return "busy", "snapshot"
    return "ok", "streaming"


def _table(found: Document, source: str, series: Document) -> TableRow:
    name, state = str(found["name"]), str(found.get("state", ""))
    level = _TABLE_LEVELS.get(state, "idle")
    if level == "ok" and found.get("error"):
        level = "warning"
    fraction, progress = _snapshot(found) if state != "live" else (None, None)
    return TableRow(
        name=name,
        source=source,
        upstream=str(found.get("upstream", "")),
        state=state,
        level=level,
        rows=found.get("rows"),
        rate=_latest(series, f"table:{name}", "rate"),
        behind=found.get("behind"),
        lag_ms=found.get("lag_ms"),
        position=found.get("position"),
        fraction=fraction,
        progress=progress,
        waiting=found.get("waiting"),
        error=found.get("error"),
        hint=found.get("hint"),
    )


def _snapshot(found: Document) -> tuple[float | None, str | None]:
    """Return the progress of a snapshot as a fraction, and in words; the estimate of Postgres may be too low."""
    copied, estimated = found.get("copied_rows"), found.get("estimated_rows")
    if copied is None:
        return None, None
    if not estimated:
        return None, f"{count_text(copied)} rows copied"
    return min(copied / estimated, 0.99), f"{count_text(copied)} of about {count_text(max(copied, estimated))} rows"


def _slot(found: Document | None) -> SlotView | None:
    if not found:
        return None
    retained, safe = found.get("retained_bytes"), found.get("safe_bytes")
    fraction = None
    if retained is not None and safe is not None:
        fraction = min(1.0, retained / (retained + safe)) if safe > 0 else 1.0
    lost = found.get("wal_status") == "lost" or bool(found.get("invalidated"))
    state = "in use" if found.get("active") else "not in use"
    if lost:
        state = f"invalidated: {found['invalidated']}" if found.get("invalidated") else "lost"
    level: Level = "ok" if found.get("active") else "warning"
    if lost or (fraction is not None and fraction >= _CRITICAL_SLOT):
        level = "critical"
    elif found.get("wal_status") in ("extended", "unreserved") or (fraction is not None and fraction >= _WARN_SLOT):
        level = "warning"
    return SlotView(
        name=str(found.get("name", "")),
        state=state,
        level=level,
        retained=None if retained is None else size_text(retained),
        limit=size_text(retained + max(safe, 0)) if retained is not None and safe is not None else None,
        fraction=fraction,
        confirmed=found.get("confirmed"),
    )


def sink_row(found: Document, series: Document) -> SinkRow:
    """Return a sink."""
    name, state = str(found["name"]), str(found.get("state", ""))
    level: Level = "critical" if state == "failed" else "busy" if state == "dropping" else "ok"
    if level == "ok" and found.get("error"):
        level = "warning"
    table = found.get("table")
    return SinkRow(
        name=name,
        source=str(found.get("source", "")),
        reads=str(found.get("source", "")) if table is None else f"{found.get('source', '')}.{table}",
        into=str(found.get("into", "")),
        envelope=str(found.get("envelope", "")),
        format=str(found.get("format", "")),
        state=state,
        level=level,
        position=found.get("position"),
        behind=found.get("behind"),
        lag_ms=found.get("lag_ms"),
        rate=_latest(series, f"sink:{name}", "rate"),
        messages=found.get("messages"),
        error=found.get("error"),
        hint=found.get("hint"),
    )


def _latest(series: Document, name: str, metric: str) -> float | None:
    value = series.get(name, {}).get(metric)
    return None if value is None else float(value)
