"""Reconcile: a running source is made to match the catalog, table by table, and option by option.

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

Tables are independent: one that is gone upstream, or that Postgres refuses to publish, fails alone. A change made for
one table must not hide a gap of another, so the others are checked first, as capture does when it connects.

If the process dies in between, the request is still in the catalog and is executed again from the start. Every step can
be repeated.

Options (``ALTER SOURCES … SET``)::

    ask_set      validated like a new source ─▶ catalog: the spec, unless another process changed it meanwhile
    set_options  instance config and spec differ: capture is stopped ─▶ catalog: the instance ─▶ capture restarted

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
from penstock.engine.shards import refuse_shard
from penstock.engine.table_names import named_sources
from penstock.errors import PenstockError, TableError, UsageError
from penstock.fields import with_fields
from penstock.layout import base_path
from penstock.model import TableName
from penstock.nearest import nearest
from penstock.positions import Lsn
from penstock.sources.findings import Finding, error
from penstock.sources.interface import InstanceConfig, ProducedTable, Source
from penstock.sources.postgres.captured import CapturedTable
from penstock.sources.postgres.config import PostgresInstanceConfig
from penstock.sources.postgres.connection import connect
from penstock.sources.postgres.query_errors import asking
from penstock.sources.postgres.watch import PublicationWatch

__all__ = ["Described", "alter", "ask_set", "describe", "give_up", "is_set", "set_options"]

Described = Mapping[TableName, ProducedTable | Finding]
"""Tables as they are upstream, or why they cannot be captured."""
_Table = TypeVar("_Table", bound=ProducedTable)


def describe(record: SourceRecord, wishes: Sequence[TableRecord]) -> Described:
    """Look at the tables that shall come, or come again."""
    wanted = [wish.upstream for wish in wishes if wish.state is not TableState.DROPPING]
    found = spec_of(record).look_again(wanted) if wanted else {}
    instance, missing = instance_of(record), [name for name, why in found.items() if isinstance(why, Finding)]
    if missing and isinstance(instance, PostgresInstanceConfig):
        moved = instance.called_now(missing)
        return {**found, **{before: _renamed(record.known_as, before, now) for before, now in moved.items()}}
    return found


def _renamed(source: str, before: TableName, now: TableName) -> Finding:
    hint = (
        f"Give it its name again, then retry; or take it as another table: ALTER SOURCES {source} DROP TABLE {before};"
        f" and ALTER SOURCES {source} ADD TABLE {now};"
    )
    return error(str(before), f"it is called {now} upstream now", hint)


def alter(
    home: Path, catalog: Catalog, record: SourceRecord, wishes: Sequence[TableRecord], found: Described
) -> list[str]:
    """Carry wishes out; return what there is to tell. Capture must not run meanwhile: it stores its config, too."""
    instance, log = instance_of(record), catalog.log(record.name)
    of = _of_a_database if isinstance(instance, PostgresInstanceConfig) else _of_another_kind
    config, published, refused = of(instance, wishes, found, log)
    found = {**found, **refused}
    told = (record.error or "", record.hint or "")
    catalog.set_source(record.name, record.state, instance=config.model_dump_json(), error=told[0], hint=told[1])
    _end(catalog.log(record.name), record, [wish for wish in wishes if wish.state is TableState.DROPPING])
    return [_settle(home, catalog, wish, found, published) for wish in wishes]


def give_up(catalog: Catalog, wishes: Sequence[TableRecord], error: PenstockError) -> None:
    """Note a definite error that is in the way: the tables have failed until somebody acts."""
    for wish in wishes:
        catalog.grant(wish, TableState.FAILED, error=error.message, hint=error.hint)


def _of_a_database(
    instance: InstanceConfig, wishes: Sequence[TableRecord], found: Described, log: ChangeLog
) -> tuple[InstanceConfig, Lsn, Described]:
    """Let a database publish what is captured from now on; return also what it refused to."""
    assert isinstance(instance, PostgresInstanceConfig)
    _end_unpublished(instance, wishes, log)
    config = _altered(instance, wishes, found, _generations(log))
    config, published, refused = config.repair(
        [name for name, table in found.items() if isinstance(table, CapturedTable)]
    )
    if refused:
        found = {**found, **refused}
        config = with_fields(_altered(instance, wishes, found, _generations(log)), facts=config.facts)
    tables = [
        with_fields(t, published=int(published)) if isinstance(found.get(t.name), CapturedTable) else t
        for t in config.tables
    ]
    return with_fields(config, tables=tuple(tables)).begun_anew(found), published, refused


def _end_unpublished(instance: PostgresInstanceConfig, wishes: Sequence[TableRecord], log: ChangeLog) -> None:
    """End the other tables whose changes are not all sent: the publication is mended next, and nobody would see it."""
    wished = {str(wish.upstream) for wish in wishes}
    with closing(log.reader()) as reader:
        durable = reader.frontiers().durable
        running = {str(name) for name, table in reader.tables().items() if table.error is None}
    with asking(instance.connection), connect(instance.connection) as connection:
        found = PublicationWatch(instance, durable).look(connection, durable)
    errors = [trouble for trouble in found if trouble.table in running - wished]
    if errors:
        with closing(log.writer()) as writer:
            writer.publish([], durable, errors=errors)


def _of_another_kind(
    instance: InstanceConfig, wishes: Sequence[TableRecord], found: Described, log: ChangeLog
) -> tuple[InstanceConfig, Lsn, Described]:
    """Let tables begin again; elsewhere nothing needs to be done for that."""
    tables, generations = [table for table in found.values() if isinstance(table, ProducedTable)], _generations(log)
    with closing(log.reader()) as reader:
        durable = reader.frontiers().durable
    anew = [_next(table, instance.produced(), generations) for table in tables]
    return (instance.anew(anew) if anew else instance), durable, {}


def _altered(
    instance: PostgresInstanceConfig,
    wishes: Sequence[TableRecord],
    found: Described,
    generations: Mapping[TableName, int],
) -> PostgresInstanceConfig:
    """Return the config with what comes and without what goes."""
    new = [_next(table, instance.tables, generations) for table in found.values() if isinstance(table, CapturedTable)]
    gone = {wish.upstream for wish in wishes if wish.state is TableState.DROPPING}
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
    """Say in the log that tables end here: whoever reads one gets all that was captured of it, and then this error.

    It is forgotten when the table comes again, under a higher generation.
    """
    with closing(log.reader()) as reader:
        known = {name for name, table in reader.tables().items() if table.error is None}
    ended = [wish for wish in gone if wish.upstream in known]
    if ended:
        with closing(log.writer()) as writer:
            durable = writer.frontiers().durable
            errors = [TableError(str(w.upstream), durable + 1, *dropped(source.known_as, w.upstream)) for w in ended]
            writer.publish([], durable, errors=errors)


def _settle(home: Path, catalog: Catalog, wish: TableRecord, found: Described, published: Lsn) -> str:
    """Write down what becomes of a table, and tell it."""
    if wish.state is TableState.DROPPING:
        shutil.rmtree(base_path(home, wish.source, wish.local), ignore_errors=True)
        catalog.grant(wish, None)
        return f"{wish.source}: {wish.upstream} is dropped"
    table = found[wish.upstream]
    if isinstance(table, Finding):
        catalog.grant(wish, TableState.FAILED, error=table.why, hint=table.hint)
        return f"{wish.source}: {wish.upstream} cannot be captured: {table.why}"
    catalog.grant(wish, TableState.PENDING)
    how = "captured anew" if wish.state is TableState.RETRYING else "added"
    return f"{wish.source}: {wish.upstream} is {how}, published from {published} on"


def ask_set(catalog: Catalog, source: str, options: dict[str, Any]) -> None:
    """Note that options of a source, on every shard, shall have other values."""
    records = named_sources(catalog, source)
    refuse_shard(records[0], source)
    changed = {record.name: (record.spec, _wished(record, options).model_dump_json()) for record in records}
    if any(before != after for before, after in changed.values()):
        catalog.alter(changed)


def _wished(record: SourceRecord, options: dict[str, Any]) -> Source:
    """Return what is asked of a source then; refuse what cannot be changed, or makes no sense."""
    if record.state in HALF:
        message = f"source {record.name} is {record.state}"
        raise UsageError(message, "Its options can be changed when it is ready; see `penstock status`.")
    spec = spec_of(record)
    for option in options:
        _refuse_fixed(spec, option)
    given = {field: getattr(spec, field) for field in type(spec).model_fields if field != "name"}
    return type(spec).of(spec.name, **{**given, **options})


def set_options(catalog: Catalog, record: SourceRecord) -> None:
    """Give a source the options that are wished of it. Capture must not run meanwhile: it stores its config, too."""
    if not is_set(record):
        altered = instance_of(record).altered(spec_of(record)).model_dump_json()
        told = {"error": record.error or "", "hint": record.hint or ""}
        catalog.set_source(record.name, record.state, instance=altered, **told)


def is_set(record: SourceRecord) -> bool:
    """Say whether a source has the options that are wished of it."""
    instance = instance_of(record)
    return instance.altered(spec_of(record)) == instance


def _refuse_fixed(spec: Source, option: str) -> None:
    if option in spec.ALTERABLE:
        return
    changeable = f"These can be changed: {', '.join(sorted(spec.ALTERABLE))}."
    if option not in type(spec).model_fields:
        message = f"there is no option {option} of a source {spec.NAME}"
        raise UsageError(message, " ".join(filter(None, [nearest(option, spec.ALTERABLE), changeable])))
    message = f"the option {option} of source {spec.name} cannot be changed: {spec.why_fixed(option)}"
    raise UsageError(message, changeable)
