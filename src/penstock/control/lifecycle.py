"""Creating and dropping sources, so that a crash at any point leaves nothing behind that nobody knows of.

::

    create:  catalog (creating) ─▶ publication ─▶ slot ─▶ log ─▶ catalog (ready)
    drop:    catalog (dropping) ─▶ slot ─▶ publication ─▶ log, lake ─▶ catalog (gone)

The catalog is written first and cleared last. A source found half-made at the next start is undone, one found
half-dropped is finished.
"""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psycopg

from penstock.catalog.states import SourceState, TableState
from penstock.catalog.store import Catalog, SourceRecord, TableRecord
from penstock.changelog.sqlite import create_log
from penstock.errors import DefiniteError, PenstockError, TransientError
from penstock.layout import lake_path, log_path
from penstock.model import TableName
from penstock.sources.postgres.connection import connection_error
from penstock.sources.postgres.spec import PostgresInstanceConfig, PostgresSource

__all__ = ["create_source", "drop_source", "instance_of", "recover"]


def create_source(home: Path, catalog: Catalog, source: PostgresSource) -> SourceRecord:
    """Make a source: everything it needs upstream and here, or nothing at all."""
    if catalog.source(source.name) is not None:
        message = f"there is a source {source.name} already"
        raise DefiniteError(message, f"Drop it first: penstock drop {source.name}")
    with _upstream(source.name, source.connection):
        instance = source.create_instances(1)[0]
    record = SourceRecord(
        source.name, source.NAME, source.model_dump_json(), instance.model_dump_json(), SourceState.CREATING
    )
    catalog.add_source(record, _tables(instance))
    try:
        with _upstream(source.name, source.connection):
            prepared = instance.prepare()
        create_log(log_path(home, source.name), prepared.start())
    except BaseException as error:
        _undo(home, catalog, instance, error)
        raise
    catalog.set_source(source.name, SourceState.READY, instance=prepared.model_dump_json())
    return record


def _undo(home: Path, catalog: Catalog, instance: PostgresInstanceConfig, error: BaseException) -> None:
    """Take back what a failed create made; while Postgres cannot be reached, the catalog keeps it for `recover`."""
    taken = isinstance(error.__cause__, psycopg.errors.DuplicateObject)  # what is there is somebody else's
    try:
        if not taken:
            instance.cleanup()
    except (PenstockError, psycopg.Error):
        return
    _remove_files(home, instance.source)
    catalog.remove_source(instance.source)


def drop_source(home: Path, catalog: Catalog, name: str, *, force: bool = False) -> list[str]:
    """Remove a source and all that it made; return what is left upstream, as statements to run by hand."""
    record = catalog.source(name)
    if record is None:
        known = ", ".join(source.name for source in catalog.sources()) or "none"
        message = f"there is no source {name}"
        raise DefiniteError(message, f"The sources of this home: {known}.")
    catalog.set_source(name, SourceState.DROPPING)
    left = _clean_upstream(instance_of(record), force)
    _remove_files(home, name)
    catalog.remove_source(name)
    return left


def recover(home: Path, catalog: Catalog) -> None:
    """Undo what was half made and finish what was half dropped, when its process died. The home must be held."""
    for record in catalog.sources():
        if record.state in (SourceState.CREATING, SourceState.DROPPING):
            drop_source(home, catalog, record.name)


def instance_of(record: SourceRecord) -> PostgresInstanceConfig:
    """Read a source's instance config."""
    return PostgresInstanceConfig.model_validate_json(record.instance)


def _tables(instance: PostgresInstanceConfig) -> list[TableRecord]:
    captured = [table.name for table in instance.tables]
    refused = [TableName.parse(name) for name in instance.refused]
    local = _local_names([*captured, *refused])
    pending = [TableRecord(instance.source, name, local[name], TableState.PENDING) for name in captured]
    failed = [
        TableRecord(instance.source, name, local[name], TableState.FAILED, *instance.refused[str(name)])
        for name in refused
    ]
    return pending + failed


def _local_names(tables: Sequence[TableName]) -> dict[TableName, str]:
    """Name a table as upstream does; where another has that name, in any case, by its schema too, then by a number."""
    names = [table.name.lower() for table in tables]
    own = {table: _folder_name(table.name) for table in tables if names.count(table.name.lower()) == 1}
    taken = {name.lower() for name in own.values()}
    for table in tables:
        name = _folder_name(f"{table.schema}_{table.name}")
        if table not in own:
            numbered = itertools.chain([name], (f"{name}_{n}" for n in itertools.count(2)))
            own[table] = next(name for name in numbered if name.lower() not in taken)
            taken.add(own[table].lower())
    return own


def _folder_name(name: str) -> str:
    """A local name is a folder's, too."""
    return name.replace("/", "_") if name.strip(".") else name.replace(".", "_")


@contextmanager
def _upstream(source: str, conninfo: str) -> Iterator[None]:
    """Tell in our words what Postgres says while a source is made."""
    try:
        yield
    except psycopg.Error as error:
        said = " ".join(str(error).split())
        if error.sqlstate is None or error.sqlstate.startswith(("08", "57")):
            raise connection_error(error, conninfo) from error
        message = f"Postgres refused to prepare source {source}: {said}"
        raise DefiniteError(message, "Mend that upstream, then try again.") from error


def _clean_upstream(instance: PostgresInstanceConfig, force: bool) -> list[str]:
    try:
        instance.cleanup()
    except (PenstockError, psycopg.Error) as error:
        if force:
            return instance.by_hand()
        said = error.message if isinstance(error, PenstockError) else " ".join(str(error).split())
        message = f"source {instance.source} is not gone yet, because slot and publication could not be removed: {said}"
        raise TransientError(
            message,
            f"Try again when Postgres can be reached; or: penstock drop {instance.source} --force, and by hand there:\n"
            + "\n".join(instance.by_hand()),
        ) from error
    return []


def _remove_files(home: Path, name: str) -> None:
    log = log_path(home, name)
    for suffix in ("", "-wal", "-shm"):
        log.with_name(log.name + suffix).unlink(missing_ok=True)
    log.with_suffix(".lock").unlink(missing_ok=True)
    shutil.rmtree(lake_path(home, name), ignore_errors=True)
