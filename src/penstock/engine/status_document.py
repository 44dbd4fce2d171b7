"""The status of a home as a document: sources, tables, sinks, frontiers, lag, errors, alarms.

Its JSON format is documented and versioned. This module imports nothing that is slow to import, so that a command can
show the status that a running process sends it.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from penstock.sources.upstream_status import SlotStatus

__all__ = [
    "VERSION",
    "AlarmStatus",
    "DebtStatus",
    "DiskStatus",
    "HomeStatus",
    "ProcessStatus",
    "ReaderStatus",
    "SinkStatus",
    "SourceStatus",
    "TableStatus",
]

VERSION = 1


@dataclass(frozen=True)
class TableStatus:
    """The status of one table.

    `position` is the position of its base table, and `behind` the number of changes in the log that are not applied to
    it yet. The fields from `copied_rows` to `waiting` describe a snapshot in progress, and what it waits for.
    `reason` says why a table is being captured again without a request, and `readable_at` is the position of the last
    consistent state of a table that is being captured again.
    `changes` is the number of changes in the log since the source was created, and `lag_ms` how much older the last
    change in the base table is than the last one in the log. `rows` is the number of rows in the base table when it was
    last counted.
    """

    name: str
    upstream: str
    state: str
    position: str | None
    behind: int
    error: str | None
    hint: str | None
    copied_rows: int | None = None
    copied_bytes: int | None = None
    estimated_rows: int | None = None
    estimated_bytes: int | None = None
    waiting: str | None = None
    changes: int | None = None
    lag_ms: float | None = None
    reason: str | None = None
    readable_at: str | None = None
    rows: int | None = None


@dataclass(frozen=True)
class ReaderStatus:
    """A reader that needs the history after `position`; `expires` is None for a registered reader, without a lease.

    `lag_ms` is the time between the last change before its position and the end of the log.
    """

    name: str
    position: str
    expires: str | None
    lag_ms: float | None = None


@dataclass(frozen=True)
class SourceStatus:
    """The status of one source.

    `at` is its upstream. `valid` and `durable` are the frontiers of its change log, `committed_at` the commit time of
    the last transaction in it, and `latency_ms` the time from that commit until the transaction was readable.
    `lag_bytes` is None if the upstream could not be queried, `log` is None if the change log is in the home. `waiting`
    says what capture waits for, such as the rest of a transaction. `valid_from` is the time from which the tables are
    consistent, if capture began in the middle of a transaction. Every transaction that committed before
    `complete_until` is in the log. `slot` and `clock_skew_ms` are None if the upstream could not be queried.
    `capture_errors` counts the errors of capture by class, including transient ones.
    """

    name: str
    kind: str
    at: str
    state: str
    valid: str | None
    durable: str | None
    committed_at: str | None
    latency_ms: float | None
    lag_bytes: int | None
    error: str | None
    hint: str | None
    log: str | None
    tables: list[TableStatus]
    readers: list[ReaderStatus]
    part_of: str | None = None
    shard: str | None = None
    waiting: str | None = None
    valid_from: str | None = None
    complete_until: str | None = None
    log_bytes: int | None = None
    retain_history: str | None = None
    clock_skew_ms: float | None = None
    slot: SlotStatus | None = None
    capture_errors: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class DebtStatus:
    """Upstream objects that a source dropped by force left in place.

    Each later start tries to remove them; `statements` removes them by hand.
    """

    source: str
    at: str
    since: str
    statements: list[str]
    error: str | None


@dataclass(frozen=True)
class SinkStatus:
    """The status of one sink.

    `table` is None if it writes all tables of its source, and `into` names its topics and brokers, or its function.
    `position` is the position up to which it has written (one for each shard), `behind` the number of row images in the
    log after it, `lag_ms` the time from the commit of the last written transaction until it was written, and `messages`
    the number of messages, or of changes passed to a function, since the sink was last started. They are None before
    the first start.
    """

    name: str
    source: str
    table: str | None
    into: str
    envelope: str
    format: str
    state: str
    position: str | None = None
    behind: int | None = None
    lag_ms: float | None = None
    messages: int | None = None
    error: str | None = None
    hint: str | None = None

    @property
    def reads(self) -> str:
        """The source or the table that it reads, as written after FROM."""
        return self.source if self.table is None else f"{self.source}.{self.table}"


@dataclass(frozen=True)
class ProcessStatus:
    """The process that runs the home with ``penstock run``.

    `state` is ``starting``, ``running``, ``restarting Spark`` or ``stopping``. `restarts` is the number of times that
    Spark was lost, or could not be started, and was started again. `alarm` is set if that happened repeatedly in the
    last minutes.
    """

    pid: int
    state: str
    since: str
    started: str
    restarts: int
    alarm: str | None = None


@dataclass(frozen=True)
class DiskStatus:
    """The file system of the home."""

    free_bytes: int
    total_bytes: int


@dataclass(frozen=True)
class AlarmStatus:
    """A condition that needs attention: `level` is ``warning`` or ``critical``, `since` the time when it began.

    `source`, `table` and `sink` name the object that it is about; all are None for the home as a whole.
    """

    level: str
    code: str
    message: str
    hint: str
    source: str | None = None
    table: str | None = None
    sink: str | None = None
    since: str = ""


@dataclass(frozen=True)
class HomeStatus:
    """The status of a home; `running` is the pid of the process that runs it, or None."""

    version: int
    home: str
    running: int | None
    sources: list[SourceStatus]
    debts: list[DebtStatus] = field(default_factory=list)
    sinks: list[SinkStatus] = field(default_factory=list)
    process: ProcessStatus | None = None
    disk: DiskStatus | None = None
    alarms: list[AlarmStatus] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """Return the JSON document of ``penstock status --json``."""
        return asdict(self)

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> HomeStatus:
        """Return the status of a document of the same version; raise `ValueError` for any other."""
        try:
            found: HomeStatus = _object(cls, document)
        except (KeyError, TypeError, AttributeError) as error:
            message = "the document is not a status of this version"
            raise ValueError(message) from error
        return found


_PARTS: dict[str, type[Any]] = {
    "sources": SourceStatus,
    "tables": TableStatus,
    "readers": ReaderStatus,
    "slot": SlotStatus,
    "sinks": SinkStatus,
    "debts": DebtStatus,
    "process": ProcessStatus,
    "disk": DiskStatus,
    "alarms": AlarmStatus,
}
"""The fields that are objects, or lists of objects."""


def _object(kind: type[Any], document: dict[str, Any]) -> Any:
    return kind(**{name: _value(_PARTS.get(name), value) for name, value in document.items()})


def _value(kind: type[Any] | None, value: Any) -> Any:
    if kind is None or value is None:
        return value
    return [_object(kind, each) for each in value] if isinstance(value, list) else _object(kind, value)
