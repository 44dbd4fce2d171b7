"""Alarms: conditions of a home that need attention, found by comparing its status with limits.

::

    status ─┐
    memory ─┼─▶ evaluate ─▶ alarms, memory        a pure function
    limits ─┘

| code | level | condition |
|---|---|---|
| ``disk_low`` | warning | little space is free on the disk of the home |
| ``disk_full`` | critical | capture and apply have paused, because less than the floor is free |
| ``slot_lost`` | critical | the slot was invalidated, or does not exist |
| ``slot_at_risk`` | critical | the slot is about to be invalidated |
| ``wal_retained`` | warning | the server retains much WAL for a source |
| ``no_progress`` | critical | a source, table or sink has work or waits, and has not moved for some minutes |
| ``clock_skew`` | warning | the clocks of the server and of this machine differ |
| ``history_held`` | warning | a reader holds back much more history than ``retain history`` |
| ``spark_lost`` | critical | Spark was lost repeatedly in the last minutes, or cannot be started |

Whether something moves, and since when an alarm has been active, follows from earlier statuses: that is the `Memory`.
The process that runs the home evaluates alarms regularly, and keeps the memory in a file of the home (`AlarmWatch`).
Any process reads it for its own status (`with_alarms`), so all of them report the same alarms.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from rich.filesize import decimal

from penstock.engine.disk_space import DISK_FLOOR, disk_floor
from penstock.engine.status_document import AlarmStatus, HomeStatus, SourceStatus
from penstock.errors import PenstockError, UsageError
from penstock.event_log import Event, Level
from penstock.layout import run_path
from penstock.private_file import replace_file
from penstock.unexpected_errors import unexpected
from penstock.units import duration_text, parse_duration, parse_size, size_text

__all__ = [
    "CODES",
    "AlarmWatch",
    "Limits",
    "Memory",
    "evaluate",
    "limits_from_environment",
    "read_memory",
    "with_alarms",
    "write_memory",
]

CODES = (
    *("disk_low", "disk_full", "slot_lost", "slot_at_risk", "wal_retained", "no_progress", "clock_skew"),
    *("history_held", "spark_lost"),
)
"""All codes."""
_EACH_SECONDS = 5.0
_FILE = "alarms.json"


@dataclass(frozen=True)
class Limits:
    """The limits beyond which something is an alarm."""

    retained_wal: int = 10 << 30
    safe_wal: int = 1 << 30
    """A slot is at risk when less WAL than this can be written until it may be invalidated."""
    disk_free: int = 5 << 30
    disk_share: float = 0.05
    """Space is low below `disk_free`, or this share of the disk if that is less."""
    disk_floor: int = 512 << 20
    stalled: timedelta = timedelta(minutes=5)
    clock_skew: timedelta = timedelta(seconds=5)
    history_held: float = 2.0
    """A reader holds history back if it needs this many times what ``retain history`` says, and at least an hour."""


_VARIABLES: Mapping[str, tuple[str, Callable[[str], int | timedelta]]] = {
    "PENSTOCK_ALARM_RETAINED_WAL": ("retained_wal", parse_size),
    "PENSTOCK_ALARM_SAFE_WAL": ("safe_wal", parse_size),
    "PENSTOCK_ALARM_DISK_FREE": ("disk_free", parse_size),
    "PENSTOCK_ALARM_STALLED": ("stalled", parse_duration),
    "PENSTOCK_ALARM_CLOCK_SKEW": ("clock_skew", parse_duration),
}


def limits_from_environment() -> Limits:
    """Return the limits, some of which environment variables set; raise `UsageError` for an invalid value."""
    found: dict[str, int | timedelta] = {"disk_floor": disk_floor()}
    for variable, (name, parse) in _VARIABLES.items():
        if text := os.environ.get(variable):
            try:
                found[name] = parse(text)
            except UsageError as error:
                message = f"invalid value {text!r} of {variable}"
                raise UsageError(message, error.hint) from None
    return replace(Limits(), **found)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Memory:
    """What earlier statuses showed; times are seconds since 1970."""

    since: Mapping[str, float] = field(default_factory=dict)
    """When each active alarm began."""
    moved: Mapping[str, tuple[str, float]] = field(default_factory=dict)
    """The last progress of each source, table and sink that has work, and when it was first seen."""


def evaluate(status: HomeStatus, memory: Memory, limits: Limits, now: datetime) -> tuple[list[AlarmStatus], Memory]:
    """Return the alarms of a status, the most serious first, and the memory for the next one."""
    moved = _moved(status, memory, now.timestamp())
    found = [
        *_disk_alarms(status, limits),
        *_spark_alarms(status),
        *(alarm for source in status.sources for alarm in _source_alarms(source, limits)),
        *_stalled(status, moved, limits, now.timestamp()),
    ]
    found.sort(key=lambda each: each.level)
    since = {_identity(each): memory.since.get(_identity(each), now.timestamp()) for each in found}
    alarms = [replace(each, since=_moment(since[_identity(each)])) for each in found]
    return alarms, Memory(since, moved)


def _identity(alarm: AlarmStatus) -> str:
    """Return what stays the same while an alarm is active."""
    return json.dumps([alarm.code, alarm.source, alarm.table, alarm.sink])


def _moment(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds")


# -- conditions of one status ------------------------------------------------------------------------------------------


def _disk_alarms(status: HomeStatus, limits: Limits) -> Iterator[AlarmStatus]:
    disk = status.disk
    if disk is None:
        return
    message = f"{decimal(disk.free_bytes)} of {decimal(disk.total_bytes)} are free on the disk of the home"
    if disk.free_bytes < limits.disk_floor:
        hint = f"Free some space: capture and apply resume by themselves. {DISK_FLOOR} sets the limit."
        yield AlarmStatus("critical", "disk_full", f"{message}: capture and apply have paused", hint)
    elif disk.free_bytes < min(limits.disk_free, limits.disk_share * disk.total_bytes):
        hint = f"Free some space. Below {size_text(limits.disk_floor)}, capture and apply pause until there is more."
        yield AlarmStatus("warning", "disk_low", message, hint)


def _spark_alarms(status: HomeStatus) -> Iterator[AlarmStatus]:
    if status.process is not None and status.process.alarm:
        yield AlarmStatus("critical", "spark_lost", status.process.alarm, "`penstock logs` shows why.")


def _source_alarms(source: SourceStatus, limits: Limits) -> Iterator[AlarmStatus]:
    yield from _slot_alarms(source, limits)
    skew = timedelta(milliseconds=source.clock_skew_ms or 0)
    if abs(skew) > limits.clock_skew:
        order = "ahead of" if skew > timedelta(0) else "behind"
        message = (
            f'the clock of the server of source "{source.name}" is {_span(abs(skew))} {order} that of this machine'
        )
        hint = "Synchronize both clocks (NTP). Until then, latencies and queries AS OF a time are off by that much."
        yield AlarmStatus("warning", "clock_skew", message, hint, source.name)
    yield from _reader_alarms(source, limits)


def _slot_alarms(source: SourceStatus, limits: Limits) -> Iterator[AlarmStatus]:
    slot, name = source.slot, source.name
    if slot is None:
        return
    if slot.invalidated is not None or slot.wal_status == "lost":
        message = f'replication slot "{slot.name}" cannot be read any more: {slot.invalidated or "its WAL was removed"}'
        hint = f"Changes are lost. Drop the source with `penstock drop {name}` and capture it again."
        yield AlarmStatus("critical", "slot_lost", message, hint, name)
        return
    why = "Start capture with `penstock run`" if not slot.active else "Let capture catch up"
    if slot.wal_status == "unreserved" or (slot.safe_bytes is not None and slot.safe_bytes < limits.safe_wal):
        left = "soon" if slot.safe_bytes is None else f"after {decimal(max(0, slot.safe_bytes))} more WAL"
        message = f'replication slot "{slot.name}" may be invalidated {left}'
        yield AlarmStatus("critical", "slot_at_risk", message, f"{why}, or raise max_slot_wal_keep_size.", name)
    if slot.retained_bytes is not None and slot.retained_bytes > limits.retained_wal:
        message = f'the server retains {decimal(slot.retained_bytes)} of WAL for replication slot "{slot.name}"'
        hint = f"{why}. If the source is no longer needed: penstock drop {name}."
        yield AlarmStatus("warning", "wal_retained", message, hint, name)


def _reader_alarms(source: SourceStatus, limits: Limits) -> Iterator[AlarmStatus]:
    if source.retain_history is None or not source.readers:
        return
    retained = parse_duration(source.retain_history)
    allowed = max(retained * limits.history_held, retained + timedelta(hours=1))
    last = max(source.readers, key=lambda reader: reader.lag_ms or 0)
    held = timedelta(milliseconds=last.lag_ms or 0)
    if held > allowed:
        size = f", in a log of {decimal(source.log_bytes)}" if source.log_bytes is not None else ""
        message = f'reader "{last.name}" holds back {_span(held)} of history of source "{source.name}"{size}'
        hint = "Let it catch up. `SHOW READERS` lists the readers; one that is gone can be removed with forget_reader."
        yield AlarmStatus("warning", "history_held", message, hint, source.name)


def _span(span: timedelta) -> str:
    """Return a duration in its two largest units."""
    rounded = timedelta(seconds=round(span.total_seconds()))
    return " ".join(duration_text(rounded).split()[:4])


# -- progress ----------------------------------------------------------------------------------------------------------


def _moved(status: HomeStatus, memory: Memory, now: float) -> dict[str, tuple[str, float]]:
    """Return the progress of all that has work; what stands where it stood keeps its time."""
    found = {}
    for key, progress in _work(status) if status.running else ():
        known = memory.moved.get(key)
        found[key] = known if known is not None and known[0] == progress else (progress, now)
    return found


def _work(status: HomeStatus) -> Iterator[tuple[str, str]]:
    """Yield each object that has work to do, with a text that changes when it makes progress.

    All tables share Spark, which executes one job after the other: while one table is copied, others wait.
    """
    copied = _copied(status)
    for source in status.sources:
        if source.state == "ready" and source.waiting:
            yield _key("waiting", source.name), source.waiting
        elif source.state == "ready" and source.lag_bytes:
            yield _key("source", source.name), f"{source.durable} {source.log_bytes}"
        for table in source.tables:
            if table.state == "live" and table.behind:
                yield _key("table", source.name, table.upstream), f"{table.position} {copied}"
            elif table.state == "pending" and table.copied_rows is not None:
                yield _key("table", source.name, table.upstream), copied
    for sink in status.sinks:
        if sink.state == "running" and sink.behind:
            yield _key("sink", sink.source, sink.name), f"{sink.position} {sink.messages}"


def _copied(status: HomeStatus) -> str:
    """Return how much the snapshots in progress have copied."""
    tables = [table for source in status.sources for table in source.tables if table.copied_rows is not None]
    return " ".join(f"{table.upstream} {table.copied_rows} {table.copied_bytes}" for table in tables)


def _key(kind: str, source: str, name: str = "") -> str:
    return json.dumps([kind, source, name])


def _stalled(
    status: HomeStatus, moved: Mapping[str, tuple[str, float]], limits: Limits, now: float
) -> Iterator[AlarmStatus]:
    """Yield the alarms of what has work, and has not moved for too long."""
    for key, (_, at) in moved.items():
        if now - at < limits.stalled.total_seconds():
            continue
        kind, source, name = json.loads(key)
        since = _span(timedelta(seconds=now - at))
        hint = "Run `penstock status` to see its error, and `penstock logs` for details."
        if kind == "waiting":
            waiting = next((each.waiting for each in status.sources if each.name == source), None)
            yield AlarmStatus("critical", "no_progress", f'source "{source}" waits: {waiting}', hint, source)
        elif kind == "source":
            message = f'source "{source}" has changes to capture, and has not moved for {since}'
            yield AlarmStatus("critical", "no_progress", message, hint, source)
        elif kind == "table":
            message = f"{name} has changes or rows to apply, and has not moved for {since}"
            yield AlarmStatus("critical", "no_progress", message, hint, source, table=name)
        else:
            message = f'sink "{name}" has changes to write, and has not moved for {since}'
            yield AlarmStatus("critical", "no_progress", message, hint, source, sink=name)


# -- memory in the home ------------------------------------------------------------------------------------------------


def with_alarms(home: Path, status: HomeStatus, now: datetime | None = None) -> HomeStatus:
    """Return a status with its alarms, as the process that runs the home sees them."""
    memory = read_memory(home) if status.running is not None else Memory()
    alarms, _ = evaluate(status, memory, limits_from_environment(), now or datetime.now(UTC))
    return replace(status, alarms=alarms)


def read_memory(home: Path) -> Memory:
    """Return the memory of a home; an empty one if there is none."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        found = json.loads((run_path(home) / _FILE).read_text(encoding="utf-8"))
        moved = {str(key): (str(progress), float(at)) for key, (progress, at) in found["moved"].items()}
        return Memory({str(key): float(at) for key, at in found["since"].items()}, moved)
    return Memory()


def write_memory(home: Path, memory: Memory) -> None:
    """Replace the memory of a home."""
    path = run_path(home) / _FILE
    with suppress(OSError):  # a full disk is one of the alarms
        replace_file(path, json.dumps({"since": memory.since, "moved": memory.moved}))


class AlarmWatch:
    """Evaluates the alarms of a running home, until `stop`; reports each alarm when it begins and when it ends."""

    def __init__(self, home: Path, status: Callable[[], HomeStatus], report: Callable[[str], None]) -> None:
        """Start; the memory begins empty, because nothing moves while no process runs the home."""
        self._home, self._status, self._report = home, status, report
        self._failure = ""
        self._limits = limits_from_environment()
        self._memory = Memory()
        self._active: dict[str, AlarmStatus] = {}
        write_memory(home, self._memory)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="penstock-alarms", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop evaluating."""
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopping.wait(_EACH_SECONDS):
            try:
                self._evaluate(datetime.now(UTC))
            except PenstockError:  # the status of a source that is just being dropped
                continue
            except Exception as error:  # alarms must not end because of one status
                failure = unexpected("the evaluation of alarms", error).message
                if failure != self._failure:
                    self._report(failure)
                self._failure = failure

    def _evaluate(self, now: datetime) -> None:
        alarms, self._memory = evaluate(self._status(), self._memory, self._limits, now)
        write_memory(self._home, self._memory)
        active = {_identity(alarm): alarm for alarm in alarms}
        for key in active.keys() - self._active.keys():
            alarm = active[key]
            level: Level = "error" if alarm.level == "critical" else "warning"
            self._report(Event(f"alarm ({alarm.level}): {alarm.message}", "alarm", level, code=alarm.code))
        for key in self._active.keys() - active.keys():
            ended = self._active[key]
            self._report(Event(f"alarm ended: {ended.message}", "alarm_ended", code=ended.code))
        self._active = active
