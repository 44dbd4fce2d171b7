"""Creating and dropping sources, so that a crash at any point leaves nothing behind that nobody knows of.

::

    create:  catalog (creating) ─▶ publication ─▶ slot ─▶ log ─▶ catalog (ready)
    drop:    catalog (dropping) ─▶ slot ─▶ publication ─▶ log, lake ─▶ catalog (gone)

The catalog is written first and cleared last. A source found half-made at the next start is undone, one found
half-dropped is finished. While Postgres cannot be reached, such a source waits, and the others run; dropped by force,
it goes at once, and what it left upstream stays in the catalog as a debt, which each later start tries to settle.
"""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import psycopg

from penstock.catalog.states import SourceState, TableState
from penstock.catalog.store import Catalog, Debt, SourceRecord, TableRecord
from penstock.changelog.interface import ChangeLog
from penstock.changelog.place import log_at
from penstock.control.shards import refuse_shard, refuse_taken, refuse_unlike
from penstock.errors import DefiniteError, PenstockError, TransientError
from penstock.layout import lake_path
from penstock.model import TableName
from penstock.positions import Lsn
from penstock.sources.postgres.connection import connection_error
from penstock.sources.postgres.spec import PostgresInstanceConfig, PostgresSource

__all__ = [
    "TABLES",
    "create_source",
    "debt_of",
    "drop_source",
    "free_name",
    "instance_of",
    "recover",
    "spec_of",
    "upstream",
]


TABLES = "tables"
"""The reader that stands for the base tables: it needs what they have not taken in."""

_NONE: Mapping[TableName, str] = {}


def create_source(home: Path, catalog: Catalog, source: PostgresSource) -> None:
    """Make a source, of one database or of several shards: everything it needs upstream and here, or nothing at all."""
    shards = source.shards()
    refuse_taken(catalog, source, shards)
    for shard in shards:
        _refuse_foreign_log(home, shard)
    instances = [_looked_at(shard) for shard in shards]
    refuse_unlike({shard.shard or shard.name: each for shard, each in zip(shards, instances, strict=True)})
    records = [_record(shard, instance) for shard, instance in zip(shards, instances, strict=True)]
    catalog.add_sources(list(zip(records, map(_tables, instances), strict=True)))
    prepared: list[PostgresInstanceConfig] = []
    for shard, instance in zip(shards, instances, strict=True):
        try:
            prepared.append(_prepared(catalog, shard, instance))
        except BaseException as error:
            taken = isinstance(error.__cause__, psycopg.errors.DuplicateObject)  # what is there is somebody else's
            _undo(home, catalog, instances, prepared if taken else [*prepared, instance])
            raise
    catalog.made({instance.source: instance.model_dump_json() for instance in prepared})


def _looked_at(source: PostgresSource) -> PostgresInstanceConfig:
    with upstream(source.name, source.conninfo()):
        return source.create_instances(1)[0]


def _record(source: PostgresSource, instance: PostgresInstanceConfig) -> SourceRecord:
    return SourceRecord(
        source.name,
        source.NAME,
        source.model_dump_json(),
        instance.model_dump_json(),
        SourceState.CREATING,
        log=source.log,
        part_of=source.part_of,
        shard=source.shard,
    )


def _prepared(catalog: Catalog, source: PostgresSource, instance: PostgresInstanceConfig) -> PostgresInstanceConfig:
    with upstream(source.name, source.conninfo()):
        prepared = instance.prepare()
    _make_log(catalog.log(source.name), prepared.start())
    return prepared


def _refuse_foreign_log(home: Path, source: PostgresSource) -> None:
    """A log in Kafka may be that of another home, whose writer would be fenced and whose history mixed with ours."""
    log = log_at(home, source.name, source.log)
    if log.exists():
        message = f"there is a change log of a source {source.name} already: {log}"
        raise DefiniteError(
            message, "Name the source otherwise, give another prefix in the URL of its log, or remove it."
        )


def _undo(
    home: Path,
    catalog: Catalog,
    instances: Sequence[PostgresInstanceConfig],
    begun: Sequence[PostgresInstanceConfig],
) -> None:
    """Take back what a failed create made; while Postgres cannot be reached, the catalog keeps it for `recover`."""
    ours = {instance.source for instance in begun}
    for instance in instances:
        try:
            if instance.source in ours:
                instance.cleanup()
        except (PenstockError, psycopg.Error):
            continue
        _remove_files(home, catalog, instance.source)
        catalog.remove_source(instance.source)


def drop_source(home: Path, catalog: Catalog, name: str, *, force: bool = False) -> list[str]:
    """Remove a source and all that it made; return what is left upstream, as statements to run by hand.

    Of shards, those go that can; what keeps one of them is raised after that.
    """
    records = catalog.parts(name)
    if not records:
        known = ", ".join(dict.fromkeys(source.known_as for source in catalog.sources())) or "none"
        message = f"there is no source {name}"
        raise DefiniteError(message, f"The sources of this home: {known}.")
    refuse_shard(records[0], name)
    catalog.dropping([record.name for record in records])
    left, kept = list[str](), list[TransientError]()
    for record in records:
        try:
            left += _drop(home, catalog, record, force)
        except TransientError as error:
            kept.append(error)
    if kept:
        raise kept[0]
    return left


def _drop(home: Path, catalog: Catalog, record: SourceRecord, force: bool = False) -> list[str]:
    instance = instance_of(record)
    left = _clean_upstream(instance, record.known_as, force)
    debt = (instance.model_dump_json(), _durable(catalog, instance)) if left else None
    _remove_files(home, catalog, record.name)
    catalog.remove_source(record.name, debt)
    return left


def recover(home: Path, catalog: Catalog) -> list[PenstockError]:
    """Undo what was half made, finish what was half dropped, settle debts; return what has to wait, and why.

    Upstreams that cannot be reached keep nothing else from running. The home must be held.
    """
    waiting: list[PenstockError] = []
    for record in catalog.sources():
        if record.state in (SourceState.CREATING, SourceState.DROPPING):
            try:
                catalog.dropping([record.name])
                _drop(home, catalog, record)
            except TransientError as error:
                catalog.set_source(record.name, SourceState.DROPPING, error=error.message, remedy=error.remedy)
                waiting.append(error)
    unsettled = [_settle(catalog, debt) for debt in catalog.debts()]
    return waiting + [left for left in unsettled if left is not None]


def _settle(catalog: Catalog, debt: Debt) -> PenstockError | None:
    """Remove what a source dropped by force left upstream; where a new source has those names, they are its own."""
    instance = debt_of(debt)
    names = [(other.connection, other.slot) for other in map(instance_of, catalog.sources())]
    try:
        if (instance.connection, instance.slot) not in names:
            instance.settle(debt.durable)
    except (PenstockError, psycopg.Error) as error:
        said = _said(error)
        catalog.defer(debt, said)
        message = f"what source {debt.source} left upstream could not be removed: {said}"
        return TransientError(message, "\n".join(["It will be tried again; or run by hand:", *instance.by_hand()]))
    catalog.settle(debt)
    return None


def debt_of(debt: Debt) -> PostgresInstanceConfig:
    """Read what a debt is about."""
    return PostgresInstanceConfig.model_validate_json(debt.instance)


def spec_of(record: SourceRecord) -> PostgresSource:
    """Read what was asked for."""
    return PostgresSource.model_validate_json(record.spec)


def instance_of(record: SourceRecord) -> PostgresInstanceConfig:
    """Read a source's instance config."""
    return PostgresInstanceConfig.model_validate_json(record.instance)


def _tables(instance: PostgresInstanceConfig) -> list[TableRecord]:
    captured = [table.name for table in instance.tables]
    refused = [TableName.parse(name) for name in instance.refused]
    aliases = {table.name: table.alias for table in instance.tables if table.alias}
    local = _local_names([*captured, *refused], aliases)
    pending = [TableRecord(instance.source, name, local[name], TableState.PENDING) for name in captured]
    failed = [
        TableRecord(instance.source, name, local[name], TableState.FAILED, *instance.refused[str(name)])
        for name in refused
    ]
    return pending + failed


def _local_names(tables: Sequence[TableName], aliases: Mapping[TableName, str] = _NONE) -> dict[TableName, str]:
    """Name a table as asked for, else as upstream does; where that is taken, in any case, by its schema, a number."""
    own = {table: _folder_name(alias) for table, alias in aliases.items()}
    taken = {name.lower() for name in own.values()}
    names = [table.name.lower() for table in tables if table not in own]
    for table in tables:
        lower = table.name.lower()
        if table not in own and names.count(lower) == 1 and lower not in taken:
            own[table] = _folder_name(table.name)
    taken |= {name.lower() for name in own.values()}
    for table in tables:
        if table not in own:
            own[table] = _longer_name(table, taken)
            taken.add(own[table].lower())
    return own


def free_name(table: TableName, taken: Collection[str]) -> str:
    """Name a table that comes later as upstream does; where that is taken, in any case, by its schema, a number."""
    name = _folder_name(table.name)
    return name if name.lower() not in taken else _longer_name(table, taken)


def _longer_name(table: TableName, taken: Collection[str]) -> str:
    name = _folder_name(f"{table.schema}_{table.name}")
    numbered = itertools.chain([name], (f"{name}_{n}" for n in itertools.count(2)))
    return next(name for name in numbered if name.lower() not in taken)


def _folder_name(name: str) -> str:
    """A local name is a folder's, too."""
    return name.replace("/", "_") if name.strip(".") else name.replace(".", "_")


@contextmanager
def upstream(source: str, conninfo: str) -> Iterator[None]:
    """Tell in our words what Postgres says while a source is made or changed."""
    try:
        yield
    except psycopg.Error as error:
        said = " ".join(str(error).split())
        if error.sqlstate is None or error.sqlstate.startswith(("08", "57")):
            raise connection_error(error, conninfo) from error
        message = f"Postgres refused to prepare source {source}: {said}"
        raise DefiniteError(message, "Mend that upstream, then try again.") from error


def _clean_upstream(instance: PostgresInstanceConfig, known_as: str, force: bool) -> list[str]:
    if not instance.by_hand():  # all of it is the user's
        return []
    try:
        instance.cleanup()
    except (PenstockError, psycopg.Error) as error:
        if force:
            return instance.by_hand()
        message = (
            f"source {instance.source} is not gone yet, because slot and publication could not be removed:"
            f" {_said(error)}"
        )
        raise TransientError(
            message,
            f"Try again when Postgres can be reached; or: penstock drop {known_as} --force, and by hand there:\n"
            + "\n".join(instance.by_hand()),
        ) from error
    return []


def _said(error: BaseException) -> str:
    return error.message if isinstance(error, PenstockError) else " ".join(str(error).split())


def _durable(catalog: Catalog, instance: PostgresInstanceConfig) -> Lsn:
    """How far the slot can have been confirmed by us."""
    log = catalog.log(instance.source)
    if not log.exists():
        return instance.start()
    with closing(log.reader()) as reader:
        return reader.frontiers().durable


def _make_log(log: ChangeLog, start: Lsn) -> None:
    """Make the log, with the pin of those who follow it into the lake: nothing is removed before they say so."""
    log.create(start)
    with closing(log.reader()) as reader:
        reader.pin(TABLES, start)


def _remove_files(home: Path, catalog: Catalog, name: str) -> None:
    catalog.log(name).remove()
    shutil.rmtree(lake_path(home, name), ignore_errors=True)
