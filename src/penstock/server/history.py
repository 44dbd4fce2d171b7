"""The history of rates and lags over the last hour, in bounded memory.

The newest samples are kept as they are, one per second; older ones are averaged over some seconds. A series has at most
720 points. A sample is stored as one array of numbers, NaN for unknown ones, and shares the names of its series with
its neighbours, so that hundreds of tables take a few megabytes.
"""

from __future__ import annotations

import math
from array import array
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

__all__ = ["History"]

_HOUR = 3600.0
_FINE = 240
"""Samples that are kept as they are."""
_BUCKET_SECONDS = 8.0
_COARSE = 450
"""Averages: enough for the rest of the hour."""
_DIGITS = 3
"""Decimals of rates and averages."""

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
        for (name, metric), values in zip(self._names, _columns(rows, self._names), strict=True):
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
            if before is None or count < before or seconds <= 0:
                return None
            return round((count - before) / seconds, _DIGITS)

        for source in document["sources"]:
            rates = []
            for table in source["tables"]:
                series = f"table:{table['name']}"
                point[series] = {"rate": rate(series, table.get("changes")), "behind": table["behind"]}
                rates.append(point[series]["rate"])
            known = [each for each in rates if each is not None]
            point[f"source:{source['name']}"] = {
                "rate": round(sum(known), _DIGITS) if known else None,
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


def _columns(rows: Sequence[_Row], names: _Names) -> Iterator[list[float]]:
    """Yield the values of each series in all samples; NaN where a sample does not have it."""
    indexes: dict[_Names, list[int | None]] = {}
    for row in rows:
        if row.names not in indexes:
            positions = {name: index for index, name in enumerate(row.names)}
            indexes[row.names] = [positions.get(name) for name in names]
    found = [(row.values, indexes[row.names]) for row in rows]
    for number in range(len(names)):
        places = ((values, index[number]) for values, index in found)
        yield [math.nan if place is None else values[place] for values, place in places]


def _average(rows: list[_Row]) -> _Row:
    """Return the averages of the known values of some samples, with the names of the last one."""
    averages = array("d")
    for values in _columns(rows, rows[-1].names):
        known = [value for value in values if not math.isnan(value)]
        averages.append(round(sum(known) / len(known), _DIGITS) if known else math.nan)
    return _Row(rows[-1].at, rows[-1].names, averages)
