"""Metrics in the Prometheus text format: the status of a home, its processes, and the instruments of this process.

`FAMILIES` defines each metric of the status: its name, its labels, and how its samples follow from the status. A value
that is unknown has no sample. Names follow the habits of Prometheus: base units (seconds, bytes), and ``_total`` for
counters.

Positions (``_lsn``) are numbers of 64 bits, and samples are floating-point numbers, which are exact below 2^53. That is
LSN 200000/0, after 8 PiB of WAL; beyond it, positions are rounded to a few bytes. Use them to see that a position
moves; lag has metrics of its own.

The instruments (`penstock.engine.instruments`) have samples only in the process that runs the home, so
``penstock status --metrics`` in another process prints none of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from importlib.metadata import version

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from penstock.engine.instruments import DESCRIPTIONS, REGISTRY, Description
from penstock.engine.processes import ProcessUsage, process_usage
from penstock.engine.status_document import HomeStatus, ReaderStatus, SinkStatus, SourceStatus, TableStatus
from penstock.positions import Lsn
from penstock.sources.upstream_status import SlotStatus

__all__ = ["FAMILIES", "PROCESSES", "PROCESS_LABELS", "Family", "Sample", "Value", "descriptions", "metrics_text"]

Value = float | int | bool | None
Sample = tuple[Sequence[str], Value]


@dataclass(frozen=True)
class Family:
    """One metric, with its samples for a status."""

    name: str
    help: str
    labels: tuple[str, ...]
    samples: Callable[[HomeStatus], Iterable[Sample]]


def metrics_text(status: HomeStatus) -> str:
    """Return the metrics of a home: of this status, of the processes that run it, and of this process."""
    registry = CollectorRegistry()
    registry.register(_Status(status))
    registry.register(_Instruments())
    return generate_latest(registry).decode()


class _Status(Collector):
    def __init__(self, status: HomeStatus) -> None:
        self._status = status

    def collect(self) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
        for family in FAMILIES:
            yield _collected(family, family.samples(self._status))
        usage = process_usage(self._status.running)
        for name, (what, value) in PROCESSES.items():
            samples = [((each.process, each.source), value(each)) for each in usage]
            yield _collected(Family(name, what, PROCESS_LABELS, lambda _: ()), samples)


class _Instruments(Collector):
    """The instruments, without the time at which each label was first used, which the client library adds."""

    def collect(self) -> Iterator[Metric]:
        for metric in REGISTRY.collect():
            metric.samples = [sample for sample in metric.samples if not sample.name.endswith("_created")]
            yield metric


def _collected(family: Family, samples: Iterable[Sample]) -> GaugeMetricFamily | CounterMetricFamily:
    """Return the samples of a metric; unknown values are omitted."""
    kind = CounterMetricFamily if family.name.endswith("_total") else GaugeMetricFamily
    found = kind(family.name, family.help, labels=family.labels)
    for labels, value in samples:
        if value is not None:
            found.add_metric(list(labels), float(value))
    return found


def descriptions() -> list[Description]:
    """Describe all metrics, for the documentation."""
    status = [Description(family.name, _type(family.name), family.labels, family.help) for family in FAMILIES]
    processes = [Description(name, _type(name), PROCESS_LABELS, what) for name, (what, _) in PROCESSES.items()]
    return [*status, *processes, *DESCRIPTIONS]


def _type(name: str) -> str:
    return "counter" if name.endswith("_total") else "gauge"


# -- home --------------------------------------------------------------------------------------------------------------


def _home(name: str, what: str, value: Callable[[HomeStatus], Value]) -> Family:
    return Family(f"penstock_{name}", what, (), lambda status: [((), value(status))])


def _alarms(status: HomeStatus) -> Iterator[Sample]:
    for alarm in status.alarms:
        yield (alarm.code, alarm.level, alarm.source or "", alarm.table or "", alarm.sink or ""), 1


_HOME = (
    Family("penstock_info", "1; the version of Penstock is in a label", ("version",), lambda _: [((_version(),), 1)]),
    _home("running", "1 if a process runs the home, 0 if none does", lambda s: s.running is not None),
    _home(
        "disk_free_bytes", "Free space on the file system of the home", lambda s: s.disk.free_bytes if s.disk else None
    ),
    _home("disk_total_bytes", "Size of the file system of the home", lambda s: _disk(s, "total_bytes")),
    _home("debts", "Dropped sources whose upstream objects could not be removed", lambda s: len(s.debts)),
    Family(
        "penstock_run_state",
        "1 for the current state of penstock run: starting, running, restarting Spark or stopping",
        ("state",),
        lambda status: [((status.process.state,), 1)] if status.process else [],
    ),
    _home(
        "spark_restarts_total",
        "Times that Spark was lost, or could not be started, and was started again",
        lambda s: s.process.restarts if s.process else None,
    ),
    Family(
        "penstock_alarm",
        "1 for each active alarm; labels that do not apply are empty",
        ("code", "level", "source", "table", "sink"),
        _alarms,
    ),
)


def _disk(status: HomeStatus, field: str) -> Value:
    return None if status.disk is None else int(getattr(status.disk, field))


def _version() -> str:
    return version("penstock")


# -- sources and their slots -------------------------------------------------------------------------------------------


def _source(name: str, what: str, value: Callable[[SourceStatus], Value]) -> Family:
    return Family(
        *(f"penstock_source_{name}", what, ("source",)), lambda status: [((s.name,), value(s)) for s in status.sources]
    )


def _up(source: SourceStatus) -> Value:
    return source.state == "ready"


def _slot(name: str, what: str, value: Callable[[SlotStatus], Value]) -> Family:
    return Family(
        *(f"penstock_slot_{name}", what, ("source", "slot")),
        lambda status: [((s.name, s.slot.name), value(s.slot)) for s in status.sources if s.slot is not None],
    )


def _wal_statuses(status: HomeStatus) -> Iterator[Sample]:
    for source in status.sources:
        if source.slot is not None:
            yield (source.name, source.slot.name, source.slot.wal_status or "missing"), 1


def _capture_errors(status: HomeStatus) -> Iterator[Sample]:
    for source in status.sources:
        for name, count in source.capture_errors.items():
            yield (source.name, name), count


_SOURCES = (
    _source("up", "1 if the source is ready, 0 if it has failed or is being created or dropped", _up),
    Family(
        "penstock_source_state",
        "1 for the current state of a source, as in the status",
        ("source", "state"),
        lambda status: [((source.name, source.state), 1) for source in status.sources],
    ),
    _source("error", "1 if the source has an error, transient or permanent", lambda s: s.error is not None),
    _source("durable_lsn", "Position up to which every transaction is in the log", lambda s: _lsn(s.durable)),
    _source("valid_lsn", "Position from which history is readable", lambda s: _lsn(s.valid)),
    _source("committed_timestamp_seconds", "Commit time of the last transaction", lambda s: _time(s.committed_at)),
    _source(
        "complete_timestamp_seconds",
        "Every transaction that committed before this time is in the log",
        lambda s: _time(s.complete_until),
    ),
    _source(
        "commit_to_readable_seconds",
        "Time from the commit of the last transaction until it was readable",
        lambda s: _seconds(s.latency_ms),
    ),
    _source("lag_bytes", "WAL that the server has flushed and that is not in the log yet", lambda s: s.lag_bytes),
    _source("log_bytes", "Size of the change log", lambda s: s.log_bytes),
    _source(
        "clock_skew_seconds",
        "How far the clock of the server is ahead of the clock of this machine",
        lambda s: _seconds(s.clock_skew_ms),
    ),
    Family(
        "penstock_capture_errors_total",
        "Errors of capture by class, including transient ones, which are retried; since the source was created",
        ("source", "class"),
        _capture_errors,
    ),
    _slot("active", "1 if a session reads the slot", lambda s: s.active),
    _slot("retained_bytes", "WAL that the server retains for the slot", lambda s: s.retained_bytes),
    _slot(
        "safe_bytes",
        "WAL that can be written until the slot may be invalidated; no sample if there is no limit",
        lambda s: s.safe_bytes,
    ),
    _slot("confirmed_lsn", "Position up to which the source has confirmed", lambda s: _lsn(s.confirmed)),
    Family(
        "penstock_slot_wal_status",
        "1 for the current wal_status of the slot: reserved, extended, unreserved, lost, or missing",
        ("source", "slot", "status"),
        _wal_statuses,
    ),
)


# -- tables and readers ------------------------------------------------------------------------------------------------


def _table(name: str, what: str, value: Callable[[TableStatus], Value]) -> Family:
    return Family(
        *(f"penstock_table_{name}", what, ("source", "table")),
        lambda status: [((s.name, t.upstream), value(t)) for s in status.sources for t in s.tables],
    )


def _reader(name: str, what: str, value: Callable[[ReaderStatus], Value]) -> Family:
    return Family(
        *(f"penstock_reader_{name}", what, ("source", "reader")),
        lambda status: [((s.name, r.name), value(r)) for s in status.sources for r in s.readers],
    )


_TABLES = (
    Family(
        "penstock_table_state",
        "1 for the current state of a table, as in the status",
        ("source", "table", "state"),
        lambda status: [((s.name, t.upstream, t.state), 1) for s in status.sources for t in s.tables],
    ),
    _table("error", "1 if the table has an error, transient or permanent", lambda t: t.error is not None),
    _table("changes_total", "Captured changes, since the source was created", lambda t: t.changes),
    _table("behind", "Row images in the log that are not applied to the base table yet", lambda t: t.behind),
    _table(
        "lag_seconds",
        "How much older the last change in the base table is than the last one in the log",
        lambda t: _seconds(t.lag_ms),
    ),
    _table("rows", "Rows in the base table when it was last counted", lambda t: t.rows),
    _table("applied_lsn", "Position of the base table", lambda t: _lsn(t.position)),
    _table("copied_rows", "Rows copied so far by the snapshot in progress", lambda t: t.copied_rows),
    _table("copied_bytes", "Bytes copied so far by the snapshot in progress", lambda t: t.copied_bytes),
    _table("estimated_rows", "Estimated rows of a table whose snapshot is in progress", lambda t: t.estimated_rows),
    _table("estimated_bytes", "Estimated size of a table whose snapshot is in progress", lambda t: t.estimated_bytes),
    _reader("lsn", "Position after which a reader still needs history", lambda r: _lsn(r.position)),
    _reader("lag_seconds", "Age of the history that is retained for a reader", lambda r: _seconds(r.lag_ms)),
)

# -- sinks -------------------------------------------------------------------------------------------------------------


def _sink(name: str, what: str, value: Callable[[SinkStatus], Value]) -> Family:
    return Family(
        *(f"penstock_sink_{name}", what, ("sink", "source")),
        lambda status: [((s.name, s.source), value(s)) for s in status.sinks],
    )


_SINKS = (
    _sink("up", "1 if the sink is running, 0 if it has failed or is being dropped", lambda s: s.state == "running"),
    _sink("error", "1 if the sink has an error, transient or permanent", lambda s: s.error is not None),
    _sink(
        "written_lsn",
        "Position up to which a sink has written every change; not for shards, which have one each",
        lambda s: None if s.position is None or " " in s.position else _lsn(s.position),
    ),
    _sink("behind", "Row images in the log that the sink has not written yet", lambda s: s.behind),
    _sink(
        "commit_to_written_seconds",
        "Time from the commit of the last transaction until the sink has written it",
        lambda s: _seconds(s.lag_ms),
    ),
    _sink("messages_total", "Messages written since the sink was started", lambda s: s.messages),
)

FAMILIES: tuple[Family, ...] = (*_HOME, *_SOURCES, *_TABLES, *_SINKS)
"""The metrics of the status."""


# -- processes ---------------------------------------------------------------------------------------------------------

PROCESSES: dict[str, tuple[str, Callable[[ProcessUsage], float]]] = {
    "penstock_process_resident_memory_bytes": ("Resident memory", lambda p: p.resident_bytes),
    "penstock_process_cpu_seconds_total": ("Processor time, of the processes that still run", lambda p: p.cpu_seconds),
    "penstock_process_threads": ("Threads", lambda p: p.threads),
    "penstock_process_open_files": ("Open file descriptors", lambda p: p.open_files),
}
PROCESS_LABELS = ("process", "source")


# -- values ------------------------------------------------------------------------------------------------------------


def _lsn(text: str | None) -> Value:
    return None if text is None else float(Lsn.parse(text))


def _time(text: str | None) -> Value:
    return None if text is None else datetime.fromisoformat(text).timestamp()


def _seconds(milliseconds: float | None) -> Value:
    return None if milliseconds is None else milliseconds / 1000
