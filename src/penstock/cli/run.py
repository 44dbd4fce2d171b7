"""``penstock run``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.live import Live

from penstock.cli.copying import show_copy
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
from penstock.cli.script import read_script
from penstock.cli.starting import start_spark, stop_spark, waiting
from penstock.cli.status import render
from penstock.errors import PenstockError, UsageError
from penstock.home import URL_SCHEMES, Home, open_home

if TYPE_CHECKING:
    from penstock.engine.runner import Running

__all__ = ["run"]


def run(
    target: Annotated[
        list[str] | None,
        typer.Argument(help="postgresql://… of a database to capture; of several, as shards; or a file of statements."),
    ] = None,
    home: HomeOption = Path(".penstock"),
    name: Annotated[str | None, typer.Option("--name", help="The source's name; else the database's.")] = None,
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
    debug: DebugOption = False,
) -> None:
    """Capture the tables of a database, and run every source of the home, until Ctrl-C.

    All tables, unless --schema or --table name some. A file of CREATE SOURCES statements describes what the home shall
    have: what it has not yet is made. Stops cleanly and resumes exactly where it was. The password
    comes from PGPASSWORD, ~/.pgpass, or from where --password says.

    Several databases with the same tables are shards of one source, which --name names: its tables have the column
    penstock_shard.

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
        message = "options of a source without a database"
        raise UsageError(message, "Name it: penstock run postgresql://user@host/database")
    _require_sources(console, opened, left)
    with Interrupt() as interrupt:
        spark = start_spark()
        try:
            with opened.run(spark, _say(console)) as running:
                show_copy(console, opened, running, interrupt)
                _show(console, opened, running, interrupt)
                with waiting("stopping"):
                    running.stop()
        finally:
            stop_spark(spark)


def _require_sources(console: Console, home: Home, left: list[PenstockError]) -> None:
    """Go on with what can run; say what has to wait."""
    if not home.runnable():
        if left:
            raise left[0]
        message = "this home has no sources"
        raise UsageError(message, "Name a database: penstock run postgresql://user@host/database")
    for error in left:
        console.print(str(error), style="yellow", highlight=False, markup=False)


def _is_file(target: str) -> bool:
    return "://" not in target and (target.endswith(".sql") or Path(target).is_file())


def _make_missing(console: Console, home: Home, target: list[str], name: str | None, options: dict[str, Any]) -> None:
    """Make what a file of statements describes and the home has not."""
    if options or name:
        message = "options of a source beside a file, which has them in its statements"
        raise UsageError(message, "Write them there: CREATE SOURCES … WITH (option = value);")
    if len(target) > 1:
        message = "a file of statements, and more"
        raise UsageError(message, "Name one file.")
    with waiting("looking at the sources"):
        made = home.make_missing(read_script(Path(target[0])))
    for each in made:
        console.print(f"created source {each}: `penstock drop {each}` removes it again, also upstream")


def _capture(console: Console, home: Home, target: list[str], name: str | None, options: dict[str, Any]) -> None:
    """Make the source, unless the home captures this database, or these, already."""
    for url in target:
        if not url.startswith(URL_SCHEMES):
            message = f"{'this' if '@' in url else url} is not the URL of a database"  # a password may be in it
            raise UsageError(message, "Name one as postgresql://user@host:5432/database, or a file: sources.sql.")
    existing = home.captures(target, **options)
    if existing is not None and name not in (None, existing):
        message = f"this home captures that database already, as source {existing}"
        raise UsageError(message, f"Leave --name out, or drop it first: penstock drop {existing}")
    if existing is None:
        with waiting("looking at the database"):
            made = home.create(target, name, **options)
        console.print(f"created source {made}: `penstock drop {made}` removes it again, also upstream")


def _say(console: Console) -> Callable[[str], None]:
    return lambda text: console.print(text, highlight=False, markup=False)


def _show(console: Console, home: Home, running: Running, interrupt: Interrupt) -> None:
    """Show the state once a second, until Ctrl-C or until a source stops for good."""
    with Live(console=console, auto_refresh=False, transient=True) as view:
        while not interrupt.wait(1.0):
            running.check()
            if console.is_terminal:
                view.update(render(home.status()), refresh=True)
