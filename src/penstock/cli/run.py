"""``penstock run``."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.live import Live

from penstock.cli.interrupt import Interrupt
from penstock.cli.options import (
    DebugOption,
    ExcludeOption,
    FailoverOption,
    HistoryOption,
    HomeOption,
    LogOption,
    PartitionsChoice,
    PartitionsOption,
    PasswordOption,
    PublicationOption,
    RulesChoice,
    RulesOption,
    SchemaOption,
    SlotOption,
    SnapshotChoice,
    SnapshotOption,
    TableOption,
    TextOption,
    source_options,
)
from penstock.cli.snapshot_progress import show_copy
from penstock.cli.spark_session import start_spark, stop_spark, waiting
from penstock.cli.sql import read_script
from penstock.cli.status import render
from penstock.engine.check import is_database_url
from penstock.errors import PenstockError, UsageError
from penstock.home import Home, open_home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.engine.runner import HomeRunner

__all__ = ["run"]


def run(
    target: Annotated[
        list[str] | None,
        typer.Argument(help="The URL of a database (postgresql://…), the URLs of several shards, or an SQL file."),
    ] = None,
    home: HomeOption = Path(".penstock"),
    name: Annotated[
        str | None, typer.Option("--name", help="The name of the source. Default: that of the database.")
    ] = None,
    password: PasswordOption = None,
    schema: SchemaOption = None,
    table: TableOption = None,
    exclude_column: ExcludeOption = None,
    text_column: TextOption = None,
    publication: PublicationOption = None,
    slot: SlotOption = None,
    rules: RulesOption = RulesChoice.OPEN,
    partitions: PartitionsOption = PartitionsChoice.LEAVES,
    failover: FailoverOption = False,
    log: LogOption = None,
    retain_history: HistoryOption = None,
    snapshot: SnapshotOption = SnapshotChoice.PARALLEL,
    connect: Annotated[
        bool,
        typer.Option("--connect", help="Serve Spark Connect, so that notebooks and other tools query live tables."),
    ] = False,
    connect_address: Annotated[
        str,
        typer.Option("--connect-address", metavar="HOST:PORT", help="The address for --connect."),
    ] = "127.0.0.1:15002",
    debug: DebugOption = False,
) -> None:
    """Capture the tables of a database, and run all sources of the home, until Ctrl-C.

    Captures all tables, unless --schema or --table select some. An SQL file with CREATE SOURCES and CREATE SINK
    statements describes the sources and sinks of the home: missing ones are created. Stops cleanly, and resumes exactly
    where it stopped. The password comes from PGPASSWORD, from ~/.pgpass, or from the reference in --password.

    Several databases with the same tables are the shards of one source, named by --name. Its tables have the additional
    column penstock_shard.

    Example: penstock run postgresql://penstock@db.example.com/shop

    Example: penstock run sources.sql
    """
    console = Console(stderr=True)
    opened = open_home(home)
    left = opened.recover()
    options = source_options(
        *(password, schema, table, exclude_column, text_column, publication, slot, rules, partitions, failover),
        log=log,
        retain_history=retain_history,
        snapshot=snapshot,
    )
    if target and _is_file(target[0]):
        _make_missing(console, opened, target, name, options)
    elif target:
        _capture(console, opened, target, name, options)
    elif options:
        message = "source options require a database URL"
        raise UsageError(message, "For example: penstock run postgresql://user@host/database")
    _require_sources(console, opened, left)
    with Interrupt() as interrupt:
        spark = start_spark()
        try:
            clients = _spark_clients(opened, lambda: spark, connect_address if connect else None, _printer(console))
            with opened.run(spark, _printer(console)) as running, clients:
                show_copy(console, opened, running, interrupt)
                _show_status(console, opened, running, interrupt)
                with waiting("stopping"):
                    running.stop()
        finally:
            stop_spark(spark)


def _spark_clients(
    home: Home, spark: Callable[[], SparkSession], address: str | None, report: Callable[[str], None]
) -> AbstractContextManager[None]:
    """Serve Spark Connect in the current session at an address, unless it is None."""
    if address is None:
        return nullcontext()
    from penstock.spark_clients import serve_spark_clients

    return serve_spark_clients(home, spark, address, report)


def _require_sources(console: Console, home: Home, left: list[PenstockError]) -> None:
    """Raise an error if no source can run; print the errors of the sources that cannot."""
    if not home.runnable():
        if left:
            raise left[0]
        message = "this home has no sources"
        raise UsageError(message, "Create one: penstock run postgresql://user@host/database")
    for error in left:
        console.print(str(error), style="yellow", highlight=False, markup=False)


def _is_file(target: str) -> bool:
    return "://" not in target and (target.endswith(".sql") or Path(target).is_file())


def _make_missing(console: Console, home: Home, target: list[str], name: str | None, options: dict[str, Any]) -> None:
    """Create the sources and sinks that an SQL file describes and the home does not have."""
    if options or name:
        message = "source options cannot be combined with an SQL file"
        raise UsageError(message, "Set them in the file: CREATE SOURCES … WITH (option = value);")
    if len(target) > 1:
        message = "expected exactly one SQL file"
        raise UsageError(message, "Run penstock with one file, like: penstock run sources.sql")
    with waiting("creating missing sources and sinks"):
        made = home.create_missing(read_script(Path(target[0])))
    for kind, each in made:
        if kind == "source":
            console.print(f"created source {each}: `penstock drop {each}` removes it and its upstream objects")
        else:
            console.print(f"created sink {each}: `DROP SINK {each};` removes it, and keeps its topics")


def _capture(console: Console, home: Home, target: list[str], name: str | None, options: dict[str, Any]) -> None:
    """Create the source, unless the home already captures this database or these shards."""
    for url in target:
        if not is_database_url(url):
            message = f"invalid database URL{'' if '@' in url else f': {url}'}"  # it may contain a password
            raise UsageError(message, "Use postgresql://user@host:5432/database, or an SQL file like sources.sql.")
    existing = home.captures(target, **options)
    if existing is not None and name not in (None, existing):
        message = f'this home already captures that database, as source "{existing}"'
        raise UsageError(message, f"Omit --name, or drop the source first: penstock drop {existing}")
    if existing is None:
        with waiting("creating the source"):
            made = home.create(target, name, **options)
        console.print(f"created source {made}: `penstock drop {made}` removes it and its upstream objects")


def _printer(console: Console) -> Callable[[str], None]:
    return lambda text: console.print(text, highlight=False, markup=False)


def _show_status(console: Console, home: Home, running: HomeRunner, interrupt: Interrupt) -> None:
    """Show the status once a second, until Ctrl-C or until a source fails permanently."""
    with Live(console=console, auto_refresh=False, transient=True) as view:
        while not interrupt.wait(1.0):
            running.check()
            if console.is_terminal:
                view.update(render(home.status()), refresh=True)
