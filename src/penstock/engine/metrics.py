"""The status of a home as metrics, in the Prometheus text format."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from penstock.engine.status import HomeStatus, SinkStatus, SourceStatus
from penstock.positions import Lsn

__all__ = ["metrics_text"]

_SOURCE = {
    "up": "1 if the source is ready, 0 if it has failed or is being created or dropped",
    "durable_lsn": "Position up to which every transaction is durable in the change log",
    "valid_lsn": "Position from which history is readable",
    "committed_timestamp_seconds": "Commit time of the last transaction in the log",
    "commit_to_readable_seconds": "Time from the commit of the last transaction until it was readable",
    "lag_bytes": "WAL that the server has flushed and that is not in the log yet",
}
_COPY = {
    "copied_rows": "Rows copied so far by the snapshot in progress",
    "copied_bytes": "Bytes copied so far by the snapshot in progress",
    "estimated_rows": "Estimated number of rows in a table whose snapshot is in progress",
    "estimated_bytes": "Estimated size of a table whose snapshot is in progress",
}
_SINK = {
    "up": "1 if the sink is running, 0 if it has failed or is being dropped",
    "written_lsn": "Position up to which a sink has written every change; not for shards, which have one each",
    "behind": "Changes in the log that the sink has not written yet",
    "commit_to_written_seconds": "Time from the commit of the last transaction until the sink has written it",
    "messages": "Messages written since the sink was started",
}


def metrics_text(status: HomeStatus) -> str:
    """Return a status as metrics; unknown values are omitted."""
    registry = CollectorRegistry()
    registry.register(_Status(status))
    return generate_latest(registry).decode()


class _Status(Collector):
    def __init__(self, status: HomeStatus) -> None:
        self._status = status

    def collect(self) -> Iterator[GaugeMetricFamily]:
        for name, what in _SOURCE.items():
            family = GaugeMetricFamily(f"penstock_source_{name}", what, labels=["source"])
            for source in self._status.sources:
                value = _values(source)[name]
                if value is not None:
                    family.add_metric([source.name], value)
            yield family
        yield self._states()
        yield self._tables()
        yield from map(self._copies, _COPY)
        yield self._readers()
        yield from map(self._sinks, _SINK)

    def _states(self) -> GaugeMetricFamily:
        what = "1 for the current state of a source, as in the status"
        family = GaugeMetricFamily("penstock_source_state", what, labels=["source", "state"])
        for source in self._status.sources:
            family.add_metric([source.name, source.state], 1)
        return family

    def _tables(self) -> GaugeMetricFamily:
        what = "Changes in the log that are not applied to the base table yet"
        family = GaugeMetricFamily("penstock_table_behind", what, labels=["source", "table", "state"])
        for source in self._status.sources:
            for table in source.tables:
                family.add_metric([source.name, table.upstream, table.state], table.behind)
        return family

    def _copies(self, name: str) -> GaugeMetricFamily:
        family = GaugeMetricFamily(f"penstock_table_{name}", _COPY[name], labels=["source", "table"])
        for source in self._status.sources:
            for table in source.tables:
                if getattr(table, name) is not None:
                    family.add_metric([source.name, table.upstream], getattr(table, name))
        return family

    def _readers(self) -> GaugeMetricFamily:
        what = "Position after which a reader still needs history"
        family = GaugeMetricFamily("penstock_reader_lsn", what, labels=["source", "reader"])
        for source in self._status.sources:
            for reader in source.readers:
                family.add_metric([source.name, reader.name], Lsn.parse(reader.position))
        return family

    def _sinks(self, name: str) -> GaugeMetricFamily:
        family = GaugeMetricFamily(f"penstock_sink_{name}", _SINK[name], labels=["sink", "source"])
        for sink in self._status.sinks:
            value = _sink_values(sink)[name]
            if value is not None:
                family.add_metric([sink.name, sink.source], value)
        return family


def _sink_values(sink: SinkStatus) -> dict[str, float | None]:
    return {
        "up": float(sink.state == "running"),
        "written_lsn": None if sink.position is None or " " in sink.position else float(Lsn.parse(sink.position)),
        "behind": sink.behind,
        "commit_to_written_seconds": None if sink.lag_ms is None else sink.lag_ms / 1000,
        "messages": sink.messages,
    }


def _values(source: SourceStatus) -> dict[str, float | None]:
    committed = source.committed_at and datetime.fromisoformat(source.committed_at).timestamp()
    return {
        "up": float(source.state == "ready"),
        "durable_lsn": None if source.durable is None else float(Lsn.parse(source.durable)),
        "valid_lsn": None if source.valid is None else float(Lsn.parse(source.valid)),
        "committed_timestamp_seconds": committed or None,
        "commit_to_readable_seconds": None if source.latency_ms is None else source.latency_ms / 1000,
        "lag_bytes": source.lag_bytes,
    }
