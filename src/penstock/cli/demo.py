"""``penstock demo``."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated

import typer
from pyspark.sql import SparkSession
from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from penstock.cli.interrupt import Interrupt
from penstock.cli.options import DebugOption, HomeOption
from penstock.cli.snapshot_progress import show_copy
from penstock.cli.spark_session import start_spark, stop_spark, waiting
from penstock.demo.load import Load
from penstock.demo.scenario import DATABASE, LatencySampler, Look, Looker, start_database
from penstock.errors import DefiniteError
from penstock.home import Home, open_home
from penstock.server.serving import serve

__all__ = ["demo"]

_BETWEEN_LOOKS = 0.5
_INTERRUPTED = 130


def demo(
    seconds: Annotated[int, typer.Option(min=1, help="Duration of the load, in seconds.")] = 30,
    rate: Annotated[int, typer.Option(min=1, help="Transactions per second.")] = 50,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the home, for `penstock sql`.")] = False,
    home: HomeOption = Path(".penstock"),
    debug: DebugOption = False,
) -> None:
    """Demonstrate Penstock: start a Postgres with a shop and a bank under load, and capture it into live Spark tables.

    Needs no running service and no arguments. Queries the live tables repeatedly and checks the bank's invariants each
    time; at the end, compares every table with Postgres row by row.

    Example: penstock demo --seconds 60 --rate 200
    """
    console = Console(soft_wrap=True, highlight=False)
    with Interrupt() as interrupt, _home(home, keep) as opened, ExitStack() as stack:
        with waiting("starting Postgres"):
            url = stack.enter_context(start_database())
        console.print(f"started Postgres at {url}, with a shop and a bank")
        spark = start_spark()
        try:
            right = _demonstrate(console, opened, spark, url, rate, seconds, interrupt)
        finally:
            stop_spark(spark)
    if interrupt.asked:
        console.print("interrupted; all processes are stopped")
        raise typer.Exit(_INTERRUPTED)
    if keep:
        console.print(f'\nkept the home {home}; try: penstock sql --home {home} "SELECT * FROM demo.orders LIMIT 5"')
    raise typer.Exit(0 if right else 1)


@contextmanager
def _home(home: Path, keep: bool) -> Iterator[Home]:
    """Open a home for the demo, which is removed afterwards unless `keep` is set."""
    if keep:
        opened = open_home(home)
        opened.recover()
        if DATABASE in opened.sources():
            message = f"home {home} already contains a demo"
            raise DefiniteError(message, f"Remove it: penstock drop {DATABASE} --force --home {home}")
        yield opened
        return
    folder = Path(tempfile.mkdtemp(prefix="penstock-demo-"))
    try:
        yield open_home(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _demonstrate(
    console: Console, home: Home, spark: SparkSession, url: str, rate: int, seconds: int, interrupt: Interrupt
) -> bool:
    """Run load, capture and queries; then compare. Return whether all checks passed."""
    with waiting("creating publication, slot and change log"):
        source = home.create(url)
    with home.run(spark) as running, serve(home, lambda: spark) as serving:
        console.print(f"status page: {serving.address.url}")
        with Load(url, rate) as load, LatencySampler(home, source) as latency:
            show_copy(console, home, running, interrupt)
            looker = Looker(home, spark, source)
            if not interrupt.asked:
                with waiting("running the first query, which Spark compiles"):
                    looker.look()
            _watch(console, home, looker, load, latency, seconds, interrupt)
        if interrupt.asked:
            return False
        return _conclude(console, home, looker, load, latency)


def _watch(
    console: Console,
    home: Home,
    looker: Looker,
    load: Load,
    latency: LatencySampler,
    seconds: int,
    interrupt: Interrupt,
) -> None:
    """Query the live tables repeatedly while the load runs."""
    end = time.monotonic() + seconds
    with Live(console=console, auto_refresh=False, transient=True) as view:
        while time.monotonic() < end and not interrupt.wait(_BETWEEN_LOOKS):
            look = looker.look()
            if console.is_terminal:
                view.update(_picture(home, looker, load, latency, end - time.monotonic()), refresh=True)
            else:
                console.print(_line(look))


def _line(look: Look) -> str:
    held = "all transfers complete" if not look.broken else f"{look.broken} INCOMPLETE"
    return f"at {look.position}: sum of balances {look.total:,}, {look.transfers:,} transfers, {held}"


def _picture(home: Home, looker: Looker, load: Load, latency: LatencySampler, left: float) -> Group:
    look = looker.looks[-1]
    table = Table(box=None, pad_edge=False)
    for name in ("live table", "state", "rows", "unapplied", "base at"):
        table.add_column(name, justify="right" if name in ("rows", "unapplied") else "left")
    source = home.status().sources[0]
    for row in source.tables:
        rows = looker.rows.get(row.name)
        count = "" if rows is None else f"{rows:,}"
        table.add_row(row.name, row.state, count, f"{row.behind:,}", row.position or "")
    held = Text("consistent", style="green") if looker.steady else Text("INCONSISTENT", style="bold red")
    return Group(
        Text(f"{max(0, left):3.0f} s left   {load.transactions:,} transactions   {_lag(latency)}"),
        table,
        Text.assemble(f"sum of balances {look.total:,} at {look.position}, query {len(looker.looks)}: ", held),
    )


def _lag(latency: LatencySampler) -> str:
    found = latency.percentiles()
    return "" if found is None else f"commit to readable: median {found[0]:.1f} ms, p99 {found[1]:.1f} ms"


def _conclude(console: Console, home: Home, looker: Looker, load: Load, latency: LatencySampler) -> bool:
    console.print(f"{load.transactions:,} transactions, {load.transfers:,} of them transfers; {_lag(latency)}")
    total = f"{looker.looks[-1].total:,}" if looker.looks else "not queried"
    verb = "the same in all" if looker.steady else "NOT the same in all"
    console.print(f"sum of balances: {total}, {verb} {len(looker.looks)} queries")
    with waiting("comparing every table with Postgres, row by row"):
        verdicts = home.verify(looker.spark, looker.source)
    for verdict in verdicts:
        found = verdict.differences
        if found is None:
            console.print(f"  {verdict.table:<20} [red]not compared: {escape(verdict.error or '')}[/]")
            continue
        word = "[green]equal[/]" if verdict.equal else f"[red]{found.count} keys differ: {found.keys[:3]}[/]"
        console.print(f"  {verdict.table:<20} {found.rows_compared:>9,} rows at {verdict.position}  {word}")
    return looker.steady and bool(looker.looks) and all(verdict.equal for verdict in verdicts)
