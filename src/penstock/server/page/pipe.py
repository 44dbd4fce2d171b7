"""The drawing of the pipe: sources, change logs, tables and sinks, as boxes and pipes with coordinates.

::

    wide  ┌────────┐   ┌─────┐   ┌───────────────┐        tall  ┌────────┐
          │ source ├──▶│ log ├──▶│ tables        │              │ source │
          └────────┘   └──┬──┘   └───────────────┘              └───┬────┘
                          │            ┌─────────┐              ┌───▼────┐
                          └───────────▶│ sink    │              │ log    ├─┐
                                       └─────────┘              └───┬────┘ │ …

Sinks read the log, not the tables, so their pipe passes below the tables. The drawing is made on the server, twice:
wide, and tall for narrow screens; the style sheet shows one of them. Shards of one source are one box. With many
sources or sinks the last box stands for the rest, and the lists below the drawing contain all of them.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from penstock.server.page.levels import Level, worst
from penstock.server.page.quantities import lag_text, number_text, rate_text, short_count_text, size_text
from penstock.server.page.rows import SinkRow, SourceView, TableRow
from penstock.server.page.view import PageView

__all__ = ["Box", "Dot", "Drawing", "Label", "Pipe", "draw_pipe"]

_GROUPS, _SINKS, _DOTS = 6, 4, 300
_DOT, _BAR_HEIGHT = 15, 34
_BOX_HEIGHT, _SINK_HEIGHT = 88, 64
_N = TypeVar("_N", int, float)


@dataclass(frozen=True)
class Dot:
    """A table, as a small bar that fills with its rate, or as a square where there are many tables."""

    x: float
    y: float
    height: float
    filled: float
    level: Level
    title: str


@dataclass(frozen=True)
class Box:
    """A box with a title and lines of text; `full` is the text that a narrow box truncates."""

    kind: str
    x: float
    y: float
    width: float
    height: float
    level: Level
    title: str
    lines: tuple[str, ...]
    full: str
    dots: tuple[Dot, ...] = ()
    busiest: tuple[tuple[str, str], ...] = ()

    @property
    def middle(self) -> float:
        """The height at which pipes enter and leave."""
        return self.y + _BOX_HEIGHT / 2

    @property
    def bottom(self) -> float:
        """The lower edge."""
        return self.y + self.height


@dataclass(frozen=True)
class Label:
    """A number beside a pipe."""

    x: float
    y: float
    text: str
    is_rate: bool


@dataclass(frozen=True)
class Pipe:
    """A pipe; water flows through it at `rate` changes per second, if that is known and the level is not a problem."""

    path: str
    level: Level
    rate: float | None
    arrow: str
    labels: tuple[Label, ...]


@dataclass(frozen=True)
class Drawing:
    """A drawing of the pipe."""

    shape: str
    width: float
    height: float
    boxes: tuple[Box, ...]
    pipes: tuple[Pipe, ...]


@dataclass(frozen=True)
class _Group:
    """A source with all its shards, its tables and its sinks."""

    name: str
    parts: tuple[SourceView, ...]
    sinks: tuple[SinkRow, ...]

    @property
    def tables(self) -> tuple[TableRow, ...]:
        return tuple(table for part in self.parts for table in part.tables)

    @property
    def level(self) -> Level:
        return worst(part.level for part in self.parts)

    @property
    def rate(self) -> float | None:
        return _sum(part.rate for part in self.parts)


def draw_pipe(view: PageView) -> tuple[Drawing, Drawing]:
    """Return the wide and the tall drawing of the pipe."""
    groups = _groups(view)
    return _wide(groups, view), _tall(groups, view)


def _groups(view: PageView) -> list[_Group]:
    names = list(dict.fromkeys(source.group for source in view.sources))
    found = []
    for name in names:
        parts = tuple(source for source in view.sources if source.group == name)
        inside = {name, *(part.name for part in parts)}
        found.append(_Group(name, parts, tuple(sink for sink in view.sinks if sink.source in inside)))
    return found


def _drawing(shape: str, width: float, boxes: Sequence[Box], pipes: Sequence[Pipe]) -> Drawing:
    height = max((box.bottom for box in boxes), default=0.0) + 2
    return Drawing(shape, width, height, tuple(boxes), tuple(pipes))


# -- wide --------------------------------------------------------------------------------------------------------------


def _wide(groups: Sequence[_Group], view: PageView) -> Drawing:
    boxes: list[Box] = []
    pipes: list[Pipe] = []
    top = 2.0
    for group in groups[:_GROUPS]:
        source = Box("source", 2, top, 226, _BOX_HEIGHT, group.level, *_source_text(group, 16, 26))
        log = Box("log", 366, top, 190, _BOX_HEIGHT, group.level, *_log_text(group, 20))
        tables = _tables_box(group, 694, top, 424)
        boxes += [source, log, tables]
        pipes += [_straight(source, log, group, view), _apply(log, tables, group, view)]
        top = tables.bottom + 16
        for sink in _sink_boxes(group, 834, top, 284, 34):
            boxes.append(sink[0])
            pipes.append(_branch(log, sink[0], sink[1], view))
            top = sink[0].bottom + 12
        top += 14
    if len(groups) > _GROUPS:
        boxes.append(_rest(groups[_GROUPS:], 2, top, 226))
    return _drawing("wide", 1120, boxes, pipes)


def _straight(source: Box, log: Box, group: _Group, view: PageView) -> Pipe:
    begin, end, y = source.x + source.width, log.x, source.middle
    middle = (begin + end) / 2
    labels = [Label(middle, y - 16, _rate(group.rate), is_rate=True)]
    if behind := _upstream_lag(group):
        labels.append(Label(middle, y + 26, behind, is_rate=False))
    return Pipe(
        f"M{begin} {y}H{end - 6}", _pipe_level(group.level, view), group.rate, _arrow(end, y, "right"), tuple(labels)
    )


def _apply(log: Box, tables: Box, group: _Group, view: PageView) -> Pipe:
    begin, end, y = log.x + log.width, tables.x, log.middle
    middle = (begin + end) / 2
    labels = [Label(middle, y - 16, "apply", is_rate=False), Label(middle, y + 26, _unapplied(group), is_rate=False)]
    level = _pipe_level("ok" if group.level == "warning" else group.level, view)
    return Pipe(f"M{begin} {y}H{end - 6}", level, group.rate, _arrow(end, y, "right"), tuple(labels))


def _branch(log: Box, box: Box, sink: SinkRow | None, view: PageView) -> Pipe:
    x, y, end = log.x + log.width / 2, box.y + _SINK_HEIGHT / 2, box.x
    path = f"M{x} {log.bottom}V{y - 18}Q{x} {y} {x + 18} {y}H{end - 6}"
    labels: tuple[Label, ...] = ()
    if sink is not None:
        labels = (
            Label(end - 70, y - 16, _rate(sink.rate), is_rate=True),
            Label(end - 70, y + 26, _sink_lag(sink), is_rate=False),
        )
    level = _pipe_level(box.level, view)
    return Pipe(path, level, sink.rate if sink else None, _arrow(end, y, "right"), tuple(x for x in labels if x.text))


# -- tall --------------------------------------------------------------------------------------------------------------


def _tall(groups: Sequence[_Group], view: PageView) -> Drawing:
    boxes: list[Box] = []
    pipes: list[Pipe] = []
    top, width = 2.0, 292.0
    for group in groups[:_GROUPS]:
        source = Box("source", 2, top, width, _BOX_HEIGHT, group.level, *_source_text(group, 22, 36))
        log = Box("log", 2, source.bottom + 58, width, _BOX_HEIGHT, group.level, *_log_text(group, 33))
        tables = _tables_box(group, 2, log.bottom + 58, width)
        boxes += [source, log, tables]
        below = "ok" if group.level == "warning" else group.level
        pipes.append(_down(source, log, _rate(group.rate), _upstream_lag(group), group.level, group.rate, view))
        pipes.append(_down(log, tables, "apply", _unapplied(group), below, group.rate, view, is_rate=False))
        top = tables.bottom + 16
        for box, sink in _sink_boxes(group, 2, top, width, 34):
            boxes.append(box)
            pipes.append(_beside(log, box, sink, view))
            top = box.bottom + 12
        top += 18
    if len(groups) > _GROUPS:
        boxes.append(_rest(groups[_GROUPS:], 2, top, width))
    return _drawing("tall", 330, boxes, pipes)


def _down(
    upper: Box,
    lower: Box,
    first: str,
    second: str,
    level: Level,
    rate: float | None,
    view: PageView,
    is_rate: bool = True,
) -> Pipe:
    x, begin, end = 46, upper.bottom, lower.y
    labels = [Label(x + 22, begin + 26, first, is_rate)]
    labels += [Label(x + 22, begin + 44, second, is_rate=False)] if second else []
    return Pipe(f"M{x} {begin}V{end - 6}", _pipe_level(level, view), rate, _arrow(x, end, "down"), tuple(labels))


def _beside(log: Box, box: Box, sink: SinkRow | None, view: PageView) -> Pipe:
    begin, x, y = log.x + log.width, 318, box.y + _SINK_HEIGHT / 2
    path = (
        f"M{begin} {log.middle}H{x - 8}Q{x} {log.middle} {x} {log.middle + 8}V{y - 8}Q{x} {y} {x - 8} {y}H{begin + 6}"
    )
    return Pipe(path, _pipe_level(box.level, view), sink.rate if sink else None, _arrow(begin, y, "left"), ())


# -- boxes -------------------------------------------------------------------------------------------------------------


def _source_text(group: _Group, title_room: int, room: int) -> tuple[str, tuple[str, ...], str]:
    first = group.parts[0]
    at = first.at if len(group.parts) == 1 else f"{len(group.parts)} shards"
    status = next(part.status for part in group.parts if part.level == group.level)
    shown = (_fit(at, room), f"{first.kind}, {status}")
    return _fit(group.name, title_room), shown, f"source {group.name}, {first.kind} {at}: {status}"


def _log_text(group: _Group, room: int) -> tuple[str, tuple[str, ...], str]:
    size = _sum(part.log_bytes for part in group.parts)
    latencies = [part.latency_ms for part in group.parts if part.latency_ms is not None]
    durable = group.parts[0].durable if len(group.parts) == 1 else None
    lines = [
        f"durable {durable}" if durable else size_text(size) if size is not None else f"{len(group.parts)} logs",
        f"readable after {lag_text(max(latencies))}" if latencies else "waiting for a commit",
    ]
    if durable and size is not None and room > 24:
        lines[0] += f" · {size_text(size)}"
    return (
        "change log",
        tuple(_fit(line, room + 6) for line in lines),
        f"change log of {group.name}: {', '.join(lines)}",
    )


def _tables_box(group: _Group, x: float, y: float, width: float) -> Box:
    tables = group.tables
    dots = _dots(tables[:_DOTS], x + 20, y + 70, int((width - 36) // _DOT))
    counted = _counted(tables)
    height = max(_BOX_HEIGHT, max((dot.y + dot.height for dot in dots), default=y) - y + 18)
    level = worst([table.level for table in tables])
    lines = (_fit(counted, int(width / 7.2)),)
    title = number_text(len(tables), "table")
    busiest = _busiest(tables) if width - _DOT * len(tables) > 230 else ()
    return Box("tables", x, y, width, height, level, title, lines, counted, dots, busiest)


def _busiest(tables: Sequence[TableRow]) -> tuple[tuple[str, str], ...]:
    """Return the tables with the highest rates, and their rates."""
    found = sorted((table for table in tables if table.rate), key=lambda table: -(table.rate or 0))
    return tuple((_fit(table.name.partition(".")[2], 18), _rate(table.rate)) for table in found[:3])


def _dots(tables: Sequence[TableRow], x: float, y: float, across: int) -> tuple[Dot, ...]:
    """Return a bar for each table, or squares in rows if there are more tables than fit beside each other."""
    if len(tables) <= across:
        placed = [
            (x + _DOT * place, y, _BAR_HEIGHT, _BAR_HEIGHT * _filled(table)) for place, table in enumerate(tables)
        ]
    else:
        side = _DOT - 4
        placed = [(x + _DOT * (p % across), y + _DOT * (p // across), side, side) for p in range(len(tables))]
    return tuple(Dot(*place, table.level, _dot_title(table)) for place, table in zip(placed, tables, strict=True))


def _filled(table: TableRow) -> float:
    """Return how much of the bar of a table is filled: a third for 10 changes per second, all of it for 1,000."""
    if table.level == "critical":
        return 1.0
    if table.fraction is not None:
        return max(0.12, table.fraction)
    return max(0.12, min(1.0, math.log10(1 + (table.rate or 0)) / 3))


def _dot_title(table: TableRow) -> str:
    rate = "" if table.rate is None else f", {rate_text(table.rate)}"
    return f"{table.name}: {table.state}{rate}"


def _counted(tables: Sequence[TableRow]) -> str:
    states = dict.fromkeys(table.state for table in tables)
    order = sorted(states, key=lambda state: state != "failed")
    return ", ".join(f"{sum(table.state == state for table in tables)} {state}" for state in order)


def _sink_boxes(group: _Group, x: float, y: float, width: float, room: int) -> list[tuple[Box, SinkRow | None]]:
    shown = group.sinks if len(group.sinks) <= _SINKS else group.sinks[: _SINKS - 1]
    found: list[tuple[Box, SinkRow | None]] = []
    for sink in shown:
        full = f"sink {sink.name} from {sink.reads} into {sink.into}: {sink.state}"
        lines = (_fit(sink.into, room),)
        found.append((Box("sink", x, y, width, _SINK_HEIGHT, sink.level, _fit(sink.name, 21), lines, full), sink))
        y += _SINK_HEIGHT + 12
    if rest := group.sinks[len(shown) :]:
        title = f"{len(rest)} more sinks"
        found.append((Box("sink", x, y, width, _SINK_HEIGHT, worst(s.level for s in rest), title, ("",), title), None))
    return found


def _rest(groups: Sequence[_Group], x: float, y: float, width: float) -> Box:
    title, level = f"{len(groups)} more sources", worst(group.level for group in groups)
    tables = number_text(sum(len(group.tables) for group in groups), "table")
    return Box("source", x, y, width, _SINK_HEIGHT, level, title, (tables,), title)


# -- numbers beside pipes ----------------------------------------------------------------------------------------------


def _rate(rate: float | None) -> str:
    return "" if rate is None else rate_text(rate)


def _upstream_lag(group: _Group) -> str:
    if group.level == "critical":
        return "stopped"
    if group.level == "warning":
        return "waiting"
    known = _sum(part.lag_bytes for part in group.parts)
    return "" if known is None else "caught up" if known == 0 else f"{size_text(known)} left"


def _unapplied(group: _Group) -> str:
    behind = _sum(table.behind for table in group.tables)
    return "" if behind is None else "all applied" if behind == 0 else f"{short_count_text(behind)} left"


def _sink_lag(sink: SinkRow) -> str:
    if sink.level == "critical":
        return "stopped"
    return "" if sink.behind is None else "all written" if sink.behind == 0 else f"{short_count_text(sink.behind)} left"


def _pipe_level(level: Level, view: PageView) -> Level:
    return level if view.running is not None else "idle"


def _arrow(x: float, y: float, way: str) -> str:
    if way == "right":
        return f"M{x - 13} {y - 7}L{x - 3} {y}L{x - 13} {y + 7}"
    if way == "left":
        return f"M{x + 13} {y - 7}L{x + 3} {y}L{x + 13} {y + 7}"
    return f"M{x - 7} {y - 13}L{x} {y - 3}L{x + 7} {y - 13}"


def _sum(numbers: Iterable[_N | None]) -> _N | None:
    known = [number for number in numbers if number is not None]
    return sum(known) if known else None


def _fit(text: str, room: int) -> str:
    """Return a text in at most `room` columns, truncated with an ellipsis; wide characters take two columns."""
    taken = 0
    for place, character in enumerate(text):
        taken += 2 if unicodedata.east_asian_width(character) in "WF" else 1
        if taken > room:
            return text[: max(0, place - 1)] + "…"
    return text
