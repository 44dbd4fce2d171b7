"""``penstock status``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from http.client import HTTPException
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console, Group, RenderableType
from rich.filesize import decimal
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from penstock.cli.interrupt import Interrupt
from penstock.cli.options import DebugOption, HomeOption, JsonOption
from penstock.cli.socket_connection import get_json
from penstock.engine.status_document import AlarmStatus, DebtStatus, HomeStatus, SinkStatus, SourceStatus, TableStatus
from penstock.errors import with_hint
from penstock.server.address import running_server

__all__ = ["render", "status"]

_ANSWER_SECONDS = 5.0
_COLORS = {"live": "green", "ready": "green", "running": "green", "pending": "yellow", "failed": "red"}


def status(
    home: HomeOption = Path(".penstock"),
    as_json: JsonOption = False,
    as_metrics: Annotated[bool, typer.Option("--metrics", help="Print metrics in the Prometheus text format.")] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Update the status every second.")] = False,
    debug: DebugOption = False,
) -> None:
    """Show sources, tables and sinks with their states, positions, lag and errors.

    Example: penstock status --watch
    """
    if as_json:
        typer.echo(json.dumps(_status_of(home).as_json(), indent=2))
        return
    if as_metrics:
        from penstock.home import open_existing

        typer.echo(open_existing(home).metrics(), nl=False)
        return
    console = Console()
    if not watch:
        console.print(render(_status_of(home)))
        return
    with Interrupt() as interrupt, Live(render(_status_of(home)), console=console, auto_refresh=False) as view:
        while not interrupt.wait(1.0):
            view.update(render(_status_of(home)), refresh=True)


def _status_of(home: Path) -> HomeStatus:
    """Return the status that the running process has read within the last second, or read it if none runs.

    The former takes a tenth of the time, most of which would be spent importing modules.
    """
    server = running_server(home)
    if server is not None:
        with suppress(OSError, HTTPException, ValueError):  # it is stopping, or of another version
            return HomeStatus.from_json(get_json(server.socket, "/api/status", _ANSWER_SECONDS))
    from penstock.home import open_existing

    return open_existing(home).status()


def render(found: HomeStatus) -> RenderableType:
    """Render a status for a terminal."""
    parts: list[RenderableType] = [Text(f"home {found.home} ({_process(found)})"), *map(_alarm, found.alarms)]
    if not found.sources:
        parts.append(Text("no sources yet; try: penstock run postgresql://user@host/database"))
    for source in found.sources:
        parts += [_headline(source), _tables(source), *_snapshots(source), *_readers(source)]
        if source.error:
            parts.append(Text(with_hint(source.error, source.hint), style="red"))
        parts += [
            Text(with_hint(f"{table.upstream}: {table.error}", table.hint), style="red")
            for table in source.tables
            if table.error
        ]
    if found.sinks:
        parts.append(_sinks(found.sinks))
    parts += [
        Text(with_hint(f"{sink.name}: {sink.error}", sink.hint), style="red") for sink in found.sinks if sink.error
    ]
    parts += [_cleanup(debt) for debt in found.debts]
    return Group(*parts)


def _process(found: HomeStatus) -> str:
    if not found.running:
        return "not running"
    process = found.process
    if process is None:  # run by the Python API
        return f"running, pid {found.running}"
    restarts = f", Spark restarted {process.restarts} times" if process.restarts else ""
    return f"{process.state}, pid {found.running}{restarts}"


def _alarm(alarm: AlarmStatus) -> Text:
    text = with_hint(f"{alarm.level}: {alarm.message} (since {alarm.since})", alarm.hint)
    return Text(text, style="red" if alarm.level == "critical" else "yellow")


def _cleanup(debt: DebtStatus) -> Text:
    why = f" ({debt.error})" if debt.error else ""
    text = (
        f"left upstream by {debt.source}, dropped with --force, at {debt.at}{why}; "
        "removal is retried at each start, or run there:"
    )
    return Text("\n".join([text, *debt.statements]), style="yellow")


def _headline(source: SourceStatus) -> Text:
    lag = "unknown" if source.lag_bytes is None else f"{source.lag_bytes:,} bytes"
    current = source.latency_ms is not None and source.waiting is None  # an old latency is not shown
    latency = f", commit to readable {source.latency_ms:.0f} ms" if current else ""
    shard = f", shard {source.shard} of {source.part_of}," if source.part_of else ""
    text = Text.assemble((source.name, "bold"), f"{shard} from {source.kind} {source.at}: ", _state(source.state))
    return text.append(f", durable {source.durable or 'none'}, lag {lag}{latency}")


def _tables(source: SourceStatus) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in ("table", "upstream", "state", "position"):
        table.add_column(name)
    table.add_column("unapplied", justify="right")
    for row in source.tables:
        cells = (escape(row.name), escape(row.upstream))
        table.add_row(*cells, _state(row.state), row.position or "", f"{row.behind:,}")
    return table


def _sinks(sinks: Sequence[SinkStatus]) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in ("sink", "from", "into", "envelope", "state", "position"):
        table.add_column(name)
    table.add_column("behind", justify="right")
    for sink in sinks:
        cells = (escape(sink.name), escape(sink.reads), escape(sink.into), sink.envelope)
        behind = "" if sink.behind is None else f"{sink.behind:,}"
        table.add_row(*cells, _state(sink.state), sink.position or "", behind)
    return table


def _snapshots(source: SourceStatus) -> list[Text]:
    """Return what the source waits for, the progress of snapshots, and what pending snapshots wait for."""
    parts = [Text(f"waiting: {source.waiting}", style="yellow")] if source.waiting else []
    parts += [Text(f"valid from {source.valid_from}", style="dim")] if source.valid_from else []
    parts += [
        Text(f"{table.upstream}: captured again because of an error: {table.reason}", style="yellow")
        for table in source.tables
        if table.reason
    ]
    parts += [
        Text(
            f"{table.upstream}: until its snapshot is complete, readable AS OF LSN '{table.readable_at}'",
            style="yellow",
        )
        for table in source.tables
        if table.readable_at
    ]
    parts += [_snapshot_progress(table) for table in source.tables if table.copied_rows is not None]
    waits = dict.fromkeys(table.waiting for table in source.tables if table.waiting)
    return parts + [Text(f"snapshot: {what}", style="yellow") for what in waits]


def _snapshot_progress(table: TableStatus) -> Text:
    rows, size = table.copied_rows or 0, table.copied_bytes or 0
    text = f"{table.upstream}: copied {rows:,} of about {table.estimated_rows or 0:,} rows"
    return Text(f"{text}, {decimal(size)} of about {decimal(table.estimated_bytes or 0)}", style="yellow")


def _readers(source: SourceStatus) -> list[Text]:
    """Return the retained history, and the registered readers that need it and do not expire."""
    names = [f"{reader.name} at {reader.position}" for reader in source.readers if reader.expires is None]
    kept = f"history from {source.valid}" if source.valid else "no history"
    return [Text(f"{kept}; needed by {', '.join(names)}" if names else kept, style="dim")]


def _state(state: str) -> Text:
    return Text(state, style=_COLORS.get(state, ""))
