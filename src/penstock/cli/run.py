"""``penstock run``."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.live import Live

from penstock.cli.global_options import LogFormatChoice, LogLevelChoice
from penstock.cli.interrupt import Interrupt
from penstock.cli.options import (
    DebugOption,
    ExcludeOption,
    FailoverOption,
    HistoryOption,
    HomeOption,
    LogFormatOption,
    LogLevelOption,
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
from penstock.cli.spark_session import waiting
from penstock.cli.sql import read_script
from penstock.cli.status import render
from penstock.engine.check import is_database_url
from penstock.engine.upstream_watches import UpstreamWatches
from penstock.errors import DefiniteError, PenstockError, UsageError
from penstock.event_log import RUN_FAILED, Event, log_event, open_event_log
from penstock.home import Home, open_home
from penstock.server.address import check_listen, running_server
from penstock.server.token import Token, read_token
from penstock.unexpected_errors import origin

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.engine.supervisor import Supervisor
    from penstock.server.serving import Serving

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
    listen: Annotated[
        str | None,
        typer.Option(
            "--listen",
            metavar="HOST:PORT",
            help="Serve the status page here. Default: 127.0.0.1:7878, or the next free port. Other machines can "
            "connect only with --token-file.",
        ),
    ] = None,
    token_file: Annotated[
        Path | None, typer.Option("--token-file", help="A file with the token that HTTP clients must send.")
    ] = None,
    log_level: LogLevelOption = LogLevelChoice.INFO,
    log_format: LogFormatOption = LogFormatChoice.TEXT,
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
    where it stopped. Restarts Spark if its JVM ends. The password comes from PGPASSWORD, from ~/.pgpass, or from the
    reference in --password.

    Serves a status page, metrics and an HTTP API meanwhile; `penstock ui` opens the page.

    Several databases with the same tables are the shards of one source, named by --name. Its tables have the additional
    column penstock_shard.

    Example: penstock run postgresql://penstock@db.example.com/shop

    Example: penstock run sources.sql
    """
    console = Console(stderr=True)
    opened = open_home(home)
    token = read_token(token_file) if token_file else None
    check_listen(listen, has_token=token is not None)
    _require_idle(opened)
    left = opened.recover()
    options = source_options(
        *(password, schema, table, exclude_column, text_column, publication, slot, rules, partitions, failover),
        log=log,
        retain_history=retain_history,
        snapshot=snapshot,
    )
    with _event_log(console, opened, log_level, log_format):
        if target and _is_file(target[0]):
            _make_missing(opened, target, name, options)
        elif target:
            _capture(opened, target, name, options)
        elif options:
            message = "source options require a database URL"
            raise UsageError(message, "For example: penstock run postgresql://user@host/database")
        _require_sources(opened, left)
        _run(console, opened, listen, token, connect_address if connect else None)


def _run(console: Console, opened: Home, listen: str | None, token: Token | None, connect: str | None) -> None:
    """Run all sources, and serve the status page, until Ctrl-C."""
    from penstock.server.serving import serve

    with (
        Interrupt() as interrupt,
        opened.supervise(log_event) as running,
        serve(opened, running.spark, listen, token) as serving,
        _spark_clients(opened, running.spark, connect),
    ):
        url = serving.address.url
        log_event(Event(f"status page: {url}", "server_started", url=url))
        show_copy(console, opened, running, interrupt)
        _show_status(console, opened, running, serving, interrupt)
        with waiting("stopping"):
            log_event(Event("stopping", "stopping"))
            running.stop()  # the status page shows it


def _spark_clients(home: Home, spark: Callable[[], SparkSession], address: str | None) -> AbstractContextManager[None]:
    """Serve Spark Connect in the current session at an address, unless it is None."""
    if address is None:
        return nullcontext()
    from penstock.spark_clients import serve_spark_clients

    return serve_spark_clients(home, spark, address, log_event)


@contextmanager
def _event_log(console: Console, home: Home, level: LogLevelChoice, form: LogFormatChoice) -> Iterator[None]:
    """Log to the file of the home and to stderr; the error that ends the run is logged, too."""
    if level is LogLevelChoice.DEBUG:
        os.environ.setdefault("PENSTOCK_SPARK_LOG", "warn")
    with open_event_log(home.path, level.value, form.value, _printer(console)):
        try:
            log_event(Event(f"penstock {version('penstock')} started, pid {os.getpid()}", "started"))
            yield
            log_event(Event("stopped", "stopped"))
        except Exception as error:
            message = error.message if isinstance(error, PenstockError) else f"unexpected {origin(error)}"
            log_event(Event(f"stopped: {message}", RUN_FAILED, "error"))
            raise


def _require_idle(home: Home) -> None:
    """Raise `DefiniteError` with the URL of the status page, if another process runs this home."""
    server = running_server(home.path)
    if server is not None:
        message = f"another Penstock (pid {server.pid}) is using the home {home.path}"
        hint = f"Its status page is at {server.url} – stop it first, or use another home (--home)."
        raise DefiniteError(message, hint)


def _require_sources(home: Home, left: list[PenstockError]) -> None:
    """Raise an error if no source can run; print the errors of the sources that cannot."""
    if not home.runnable():
        if left:
            raise left[0]
        message = "this home has no sources"
        raise UsageError(message, "Create one: penstock run postgresql://user@host/database")
    for error in left:
        log_event(Event(error.message, "recovery_failed", "warning"))


def _is_file(target: str) -> bool:
    return "://" not in target and (target.endswith(".sql") or Path(target).is_file())


def _make_missing(home: Home, target: list[str], name: str | None, options: dict[str, Any]) -> None:
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
            _log_created(each)
        else:
            message = f"created sink {each}: `DROP SINK {each};` removes it, and keeps its topics"
            log_event(Event(message, "sink_created", sink=each))


def _capture(home: Home, target: list[str], name: str | None, options: dict[str, Any]) -> None:
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
        _log_created(made)


def _log_created(source: str) -> None:
    message = f"created source {source}: `penstock drop {source}` removes it and its upstream objects"
    log_event(Event(message, "source_created", source=source))


def _printer(console: Console) -> Callable[[str], None]:
    return lambda text: console.print(text, highlight=False, markup=False, soft_wrap=True)


def _show_status(console: Console, home: Home, running: Supervisor, serving: Serving, interrupt: Interrupt) -> None:
    """Show the status once a second, until Ctrl-C or until a source fails permanently."""
    watches = UpstreamWatches()
    with Live(console=console, auto_refresh=False, transient=True) as view, closing(watches):
        while not interrupt.wait(1.0):
            running.check()
            serving.check()
            if console.is_terminal:
                view.update(render(home.status(watches)), refresh=True)
