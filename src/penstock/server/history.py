"""The history of rates and lags over the last hour, in bounded memory.

The newest samples are kept as they are, one per second; older ones are averaged over some seconds. A series has at most
720 points. A sample is stored as one array of numbers, NaN for unknown ones, and shares the names of its series with
its neighbours, so that hundreds of tables take a few megabytes.
"""

from __future__ import annotations

import math
from array import array
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["History"]

_HOUR = 3600.0
_FINE = 240
"""Samples that are kept as they are."""
_BUCKET_SECONDS = 8.0
_COARSE = 450
"""Averages: enough for the rest of the hour."""

_Point = dict[str, dict[str, float | None]]
_Names = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class _Row:
    at: float
    names: _Names
    values: array[float]


@dataclass
class History:
    """Rates and lags of sources, tables and sinks over the last hour."""

    _fine: deque[_Row] = field(default_factory=deque)
    _coarse: deque[_Row] = field(default_factory=lambda: deque(maxlen=_COARSE))
    _bucket: list[_Row] = field(default_factory=list)
    _names: _Names = ()
    _counts: dict[str, float] = field(default_factory=dict)
    _counted_at: float | None = None

    def add(self, at: float, document: Mapping[str, Any]) -> _Point:
        """Add the status at a time, in seconds since the epoch; return its values, by series and metric."""
        point = self._point(at, document)
        names = tuple((series, metric) for series, metrics in point.items() for metric in metrics)
        self._names = names if names != self._names else self._names
        self._fine.append(_Row(at, self._names, array("d", map(_number, _values(point)))))
        if len(self._fine) > _FINE:
            self._age(self._fine.popleft())
        while self._coarse and self._coarse[0].at < at - _HOUR:
            self._coarse.popleft()
        return point

    def as_json(self) -> dict[str, Any]:
        """Return the points of all series that exist now: ``{"at": […], "series": {name: {metric: […]}}}``."""
        rows = [*self._coarse, *self._bucket[-1:], *self._fine]
        series: dict[str, dict[str, list[float | None]]] = {}
        columns = [dict(zip(row.names, row.values, strict=True)) for row in rows]
        for name, metric in self._names:
            values = [column.get((name, metric), math.nan) for column in columns]
            series.setdefault(name, {})[metric] = [None if math.isnan(value) else value for value in values]
        return {"at": [row.at for row in rows], "series": series}

    def _age(self, row: _Row) -> None:
        """Put a sample that is no longer among the newest into the average of its bucket."""
        if self._bucket and row.at // _BUCKET_SECONDS != self._bucket[0].at // _BUCKET_SECONDS:
            self._coarse.append(_average(self._bucket))
            self._bucket = []
        self._bucket.append(row)

    def _point(self, at: float, document: Mapping[str, Any]) -> _Point:
        counts: dict[str, float] = {}
        point: _Point = {}
        seconds = at - self._counted_at if self._counted_at is not None else 0.0

        def rate(series: str, count: float | None) -> float | None:
            """Return the increase per second; None without an earlier count, or if it began again at 0."""
            if count is None:
                return None
            counts[series] = count
            before = self._counts.get(series)
            return (count - before) / seconds if before is not None and count >= before and seconds > 0 else None

        for source in document["sources"]:
            rates = []
            for table in source["tables"]:
                series = f"table:{table['name']}"
                point[series] = {"rate": rate(series, table.get("changes")), "behind": table["behind"]}
                rates.append(point[series]["rate"])
            known = [each for each in rates if each is not None]
            point[f"source:{source['name']}"] = {
                "rate": sum(known) if known else None,
                "lag_ms": source["latency_ms"],
                "lag_bytes": source["lag_bytes"],
                "retained_bytes": (source.get("slot") or {}).get("retained_bytes"),
            }
        for sink in document["sinks"]:
            series = f"sink:{sink['name']}"
            sent = rate(series, sink["messages"])
            point[series] = {"rate": sent, "lag_ms": sink["lag_ms"], "behind": sink["behind"]}
        self._counts, self._counted_at = counts, at
        return point


def _values(point: _Point) -> Iterator[float | None]:
    return (value for metrics in point.values() for value in metrics.values())


def _number(value: float | None) -> float:
    return math.nan if value is None else float(value)


def _average(rows: list[_Row]) -> _Row:
    """Return the averages of the known values of some samples, with the names of the last one."""
    names = rows[-1].names
    columns = [dict(zip(row.names, row.values, strict=True)) for row in rows]
    values = array("d")
    for name in names:
        known = [column[name] for column in columns if name in column and not math.isnan(column[name])]
        values.append(sum(known) / len(known) if known else math.nan)
    return _Row(rows[-1].at, names, values)
