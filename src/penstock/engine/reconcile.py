"""Reconciliation: a running source is made to match the catalog, table by table and option by option.

Requests for tables (`requests`)::

    describe   the tables as they are upstream now                                         capture runs
    release    snapshot and apply finish their current work on these tables
    alter      the other tables are checked ─▶ publication ─▶ catalog (instance)            capture is stopped
               ─▶ log: dropped tables end here ─▶ their files ─▶ catalog (table pending, failed, or removed)
    capture    restarted: begins the history of new tables, after `durable`
    snapshot   after that ─▶ live

A table that is added, or added again, gets a higher *generation* than the log has for its name. By that, capture knows
that its history begins there, also after a crash, and an older base table is distinguished from the copy to be made.
`published` is a position from which its changes are sent; the snapshot waits until capture has begun the table, which
is later, and for all transactions that ran then. So nothing is missed.

Tables are independent: one that was dropped upstream, or that Postgres refuses to publish, fails alone. A change for
one table must not hide a gap of another, so the others are checked first, as capture does when it connects.

If the process dies in between, the request is still in the catalog and is executed again from the start. Every step can
be repeated.

Options (``ALTER SOURCES … SET``)::

    request_options  validated like a new source ─▶ catalog: the spec, unless another process changed it meanwhile
    set_options      instance config and spec differ: capture is stopped ─▶ catalog: the instance ─▶ capture restarted

If the process dies in between, spec and instance differ, and the next run sees that. Only options that change nothing
upstream can be set this way; others are rejected with the reason.
"""

from __future__ import annotations

import shutil
from collections.abc import Collection, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, TypeVar

from penstock.catalog.states import TableState
from penstock.catalog.store import Catalog, SourceRecord, TableRecord
from penstock.changelog.interface import ChangeLog
from penstock.engine.lifecycle import HALF
from penstock.engine.records import instance_of, spec_of
from penstock.engine.requests import dropped
from penstock.engine.shards import reject_shard
from penstock.engine.table_names import named_sources
from penstock.errors import PenstockError, TableError, UsageError
from penstock.fields import with_fields
from penstock.layout import base_path
from penstock.model import TableName
from penstock.nearest import nearest
from penstock.positions import Lsn
from penstock.sources.findings import Finding, error
from penstock.sources.interface import InstanceConfig, ProducedTable, Source
from penstock.sources.postgres.captured_table import CapturedTable
from penstock.sources.postgres.config import PostgresInstanceConfig
from penstock.sources.postgres.connection import connect
from penstock.sources.postgres.publication_watch import PublicationWatch
from penstock.sources.postgres.query_errors import translate_errors

__all__ = ["Described", "alter", "describe", "give_up", "is_set", "request_options", "set_options"]

Described = Mapping[TableName, ProducedTable | Finding]
"""Tables as they are upstream, or the reason why they cannot be captured."""
_Table = TypeVar("_Table", bound=ProducedTable)


def describe(record: SourceRecord, requests: Sequence[TableRecord]) -> Described:
    """Query the upstream for the tables that are requested to be added or captured again."""
    wanted = [request.upstream for request in requests if request.state is not TableState.DROPPING]
    found = spec_of(record).redescribe(wanted) if wanted else {}
    instance, missing = instance_of(record), [name for name, why in found.items() if isinstance(why, Finding)]
    if missing and isinstance(instance, PostgresInstanceConfig):
        moved = instance.renamed_tables(missing)
        return {**found, **{before: _renamed(record.known_as, before, now) for before, now in moved.items()}}
    return found


def _renamed(source: str, before: TableName, now: TableName) -> Finding:
    hint = (
        f"Rename it back, then retry; or capture it under its new name: ALTER SOURCES {source} DROP TABLE {before};"
        f" and ALTER SOURCES {source} ADD TABLE {now};"
    )
    return error(str(before), f"it was renamed to {now} upstream", hint)


def alter(
    home: Path, catalog: Catalog, record: SourceRecord, requests: Sequence[TableRecord], found: Described
) -> list[str]:
    """Execute requests; return progress messages. Capture must not run meanwhile: it stores its config, too."""
    instance, log = instance_of(record), catalog.log(record.name)
    of = _of_a_database if isinstance(instance, PostgresInstanceConfig) else _of_another_kind
    config, published, refused = of(instance, requests, found, log)
    found = {**found, **refused}
    recorded = (record.error or "", record.hint or "")
    catalog.set_source(
        record.name, record.state, instance=config.model_dump_json(), error=recorded[0], hint=recorded[1]
    )
    _end(catalog.log(record.name), record, [request for request in requests if request.state is TableState.DROPPING])
    return [_settle(home, catalog, request, found, published) for request in requests]


def give_up(catalog: Catalog, requests: Sequence[TableRecord], error: PenstockError) -> None:
    """Record a permanent error that prevents the requests: the tables have failed until an operator acts."""
    for request in requests:
        catalog.complete_request(request, TableState.FAILED, error=error.message, hint=error.hint)


def _of_a_database(
    instance: InstanceConfig, requests: Sequence[TableRecord], found: Described, log: ChangeLog
) -> tuple[InstanceConfig, Lsn, Described]:
    """Alter the publication of a database; return config, position, and the tables that it refused to publish."""
    assert isinstance(instance, PostgresInstanceConfig)
    _end_unpublished(instance, requests, log)
    config = _altered(instance, requests, found, _generations(log))
    config, published, refused = config.repair(
        [name for name, table in found.items() if isinstance(table, CapturedTable)]
    )
    if refused:
        found = {**found, **refused}
        config = with_fields(_altered(instance, requests, found, _generations(log)), facts=config.facts)
    tables = [
        with_fields(t, published=int(published)) if isinstance(found.get(t.name), CapturedTable) else t
        for t in config.tables
    ]
    return with_fields(config, tables=tuple(tables)).without_facts(found), published, refused


def _end_unpublished(instance: PostgresInstanceConfig, requests: Sequence[TableRecord], log: ChangeLog) -> None:
    """Fail the other tables whose changes are not all published: altering the publication next would hide the gap."""
    requested = {str(request.upstream) for request in requests}
    with closing(log.reader()) as reader:
        durable = reader.frontiers().durable
        running = {str(name) for name, table in reader.tables().items() if table.error is None}
    with translate_errors(instance.connection), connect(instance.connection) as connection:
        found = PublicationWatch(instance, durable).check(connection, durable)
    errors = [trouble for trouble in found if trouble.table in running - requested]
    if errors:
        with closing(log.writer()) as writer:
            writer.publish([], durable, errors=errors)


def _of_another_kind(
    instance: InstanceConfig, requests: Sequence[TableRecord], found: Described, log: ChangeLog
) -> tuple[InstanceConfig, Lsn, Described]:
    """Restart the history of tables of another kind of source; nothing needs to be changed upstream for that."""
    tables, generations = [table for table in found.values() if isinstance(table, ProducedTable)], _generations(log)
    with closing(log.reader()) as reader:
        durable = reader.frontiers().durable
    restarted = [_next(table, instance.produced(), generations) for table in tables]
    return (instance.restarted(restarted) if restarted else instance), durable, {}


def _altered(
    instance: PostgresInstanceConfig,
    requests: Sequence[TableRecord],
    found: Described,
    generations: Mapping[TableName, int],
) -> PostgresInstanceConfig:
    """Return the config with the added tables and without the dropped ones."""
    new = [_next(table, instance.tables, generations) for table in found.values() if isinstance(table, CapturedTable)]
    gone = {request.upstream for request in requests if request.state is TableState.DROPPING}
    kept = [table for table in instance.tables if table.name not in gone | {table.name for table in new}]
    captured = {table.name for table in (*kept, *new)}
    refused = {str(name): (why.why, why.hint) for name, why in found.items() if isinstance(why, Finding)}
    refused = {**instance.refused, **refused}
    left_out = {name: why for name, why in refused.items() if not _any(name, gone | captured)}
    return with_fields(instance, tables=(*kept, *new), refused=left_out)


def _any(name: str, tables: Collection[TableName]) -> bool:
    return any(name == str(table) for table in tables)


def _next(table: _Table, before: Sequence[ProducedTable], generations: Mapping[TableName, int]) -> _Table:
    known = max((each.generation for each in before if each.name == table.name), default=0)
    return with_fields(table, generation=1 + max(known, generations.get(table.name, 0)))


def _generations(log: ChangeLog) -> dict[TableName, int]:
    with closing(log.reader()) as reader:
        return {name: table.generation for name, table in reader.tables().items()}


def _end(log: ChangeLog, source: SourceRecord, gone: Sequence[TableRecord]) -> None:
    """Record in the log that tables end here: a reader gets all captured changes, and then this error.

    The error is cleared when the table is added again, with a higher generation.
    """
    with closing(log.reader()) as reader:
        known = {name for name, table in reader.tables().items() if table.error is None}
    ended = [request for request in gone if request.upstream in known]
    if ended:
        with closing(log.writer()) as writer:
            durable = writer.frontiers().durable
            errors = [TableError(str(w.upstream), durable + 1, *dropped(source.known_as, w.upstream)) for w in ended]
            writer.publish([], durable, errors=errors)


def _settle(home: Path, catalog: Catalog, request: TableRecord, found: Described, published: Lsn) -> str:
    """Record the result of a request in the catalog; return a progress message."""
    if request.state is TableState.DROPPING:
        shutil.rmtree(base_path(home, request.source, request.local), ignore_errors=True)
        catalog.complete_request(request, None)
        return f"{request.source}: {request.upstream} is dropped"
    table = found[request.upstream]
    if isinstance(table, Finding):
        catalog.complete_request(request, TableState.FAILED, error=table.why, hint=table.hint)
        return f"{request.source}: {request.upstream} cannot be captured: {table.why}"
    catalog.complete_request(request, TableState.PENDING)
    how = "captured again" if request.state is TableState.RETRYING else "added"
    return f"{request.source}: {request.upstream} is {how}, published from {published}"


def request_options(catalog: Catalog, source: str, options: dict[str, Any]) -> None:
    """Record a request to change options of a source, on every shard."""
    records = named_sources(catalog, source)
    reject_shard(records[0], source)
    changed = {record.name: (record.spec, _altered_spec(record, options).model_dump_json()) for record in records}
    if any(before != after for before, after in changed.values()):
        catalog.alter(changed)


def _altered_spec(record: SourceRecord, options: dict[str, Any]) -> Source:
    """Return the spec with changed options; raise `UsageError` for options that are fixed or invalid."""
    if record.state in HALF:
        message = f"source {record.name} is {record.state}"
        raise UsageError(message, "Change its options when it is ready; see `penstock status`.")
    spec = spec_of(record)
    for option in options:
        _refuse_fixed(spec, option)
    given = {field: getattr(spec, field) for field in type(spec).model_fields if field != "name"}
    return type(spec).of(spec.name, **{**given, **options})


def set_options(catalog: Catalog, record: SourceRecord) -> None:
    """Apply the requested options to a source. Capture must not run meanwhile: it stores its config, too."""
    if not is_set(record):
        altered = instance_of(record).altered(spec_of(record)).model_dump_json()
        recorded = {"error": record.error or "", "hint": record.hint or ""}
        catalog.set_source(record.name, record.state, instance=altered, **recorded)


def is_set(record: SourceRecord) -> bool:
    """Return whether the requested options of a source are applied."""
    instance = instance_of(record)
    return instance.altered(spec_of(record)) == instance


def _refuse_fixed(spec: Source, option: str) -> None:
    if option in spec.ALTERABLE:
        return
    changeable = f"Options that can be changed: {', '.join(sorted(spec.ALTERABLE))}."
    if option not in type(spec).model_fields:
        message = f"unknown option {option} of a {spec.NAME} source"
        raise UsageError(message, " ".join(filter(None, [nearest(option, spec.ALTERABLE), changeable])))
    message = f"option {option} of source {spec.name} cannot be changed: {spec.why_fixed(option)}"
    raise UsageError(message, changeable)
