"""Durations and counts that only the running process knows: apply, snapshots and sinks record them here.

`penstock.engine.metrics` adds them to the metrics of the status. They begin at zero when the process starts. No label
has a value from a row: an error is counted by its class, without its message.
"""

from __future__ import annotations

from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Histogram

__all__ = [
    "APPLY_ROUND_SECONDS",
    "CAPTURE_RESTARTS",
    "COMPACTION_SECONDS",
    "DESCRIPTIONS",
    "ERRORS",
    "MERGE_SECONDS",
    "REGISTRY",
    "SINK_BATCH_SECONDS",
    "SNAPSHOT_SECONDS",
    "Description",
    "count_error",
]

REGISTRY = CollectorRegistry()
"""All instruments of this process."""
_SHORT = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_MEDIUM = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900)
_LONG = (1, 5, 10, 30, 60, 300, 900, 3600, 4 * 3600, 24 * 3600)


@dataclass(frozen=True)
class Description:
    """A metric, for the documentation."""

    name: str
    type: str
    labels: tuple[str, ...]
    help: str


DESCRIPTIONS: list[Description] = []
"""The instruments below."""


def _histogram(name: str, what: str, labels: tuple[str, ...], buckets: tuple[float, ...]) -> Histogram:
    DESCRIPTIONS.append(Description(name, "histogram", labels, what))
    return Histogram(name, what, labels, registry=REGISTRY, buckets=buckets)


def _counter(name: str, what: str, labels: tuple[str, ...]) -> Counter:
    DESCRIPTIONS.append(Description(name, "counter", labels, what))
    return Counter(name, what, labels, registry=REGISTRY)


APPLY_ROUND_SECONDS = _histogram(
    "penstock_apply_round_seconds",
    "Duration of a round of apply, in which all tables with new changes are merged",
    ("source",),
    _MEDIUM,
)
MERGE_SECONDS = _histogram(
    "penstock_merge_seconds", "Duration of the merge of changes into one base table", ("source",), _MEDIUM
)
SNAPSHOT_SECONDS = _histogram(
    "penstock_snapshot_seconds", "Duration of the complete snapshot of one table", ("source",), _LONG
)
COMPACTION_SECONDS = _histogram(
    "penstock_compaction_seconds", "Duration of a compaction or vacuum of one base table", ("source",), _MEDIUM
)
SINK_BATCH_SECONDS = _histogram(
    "penstock_sink_batch_seconds",
    "Duration of writing one batch of changes or rows to a sink",
    ("sink", "source"),
    _SHORT,
)
ERRORS = _counter(
    "penstock_errors_total",
    "Errors of the work on tables and of sinks, by class, including transient ones, which are retried",
    ("source", "sink", "class"),
)
CAPTURE_RESTARTS = _counter(
    "penstock_capture_restarts_total", "Capture processes that died and were started again", ("source",)
)


def count_error(error: BaseException, source: str, sink: str = "") -> None:
    """Count an error by its class."""
    ERRORS.labels(source, sink, type(error).__name__).inc()
