"""Reconciliation: a running source is made to match the catalog, table by table and option by option.

Requests for tables (`requests`)::

    describe   the tables as they are upstream now                                         capture runs
    release    snapshot and apply finish their current work on these tables
    alter      the other tables are checked ─▶ upstream ─▶ catalog (instance)            capture is stopped
               ─▶ log: dropped tables end here ─▶ their files ─▶ catalog (table pending, failed, or removed)
    capture    restarted: begins the history of new tables, after `durable`
    snapshot   after that ─▶ live

A table that is added, or added again, gets a higher *generation* than the log has for its name. By that, capture knows
that its history begins there, also after a crash, and an older base table is distinguished from the copy to be made.
`published` is a position from which its changes are sent; the snapshot waits until capture has begun the table, which
is later, and for all transactions that ran then. So nothing is missed.

Tables are independent: one that was dropped upstream, or that the upstream refuses to send, fails alone. A change for
one table must not hide a gap of another, so the others are checked first, as capture does when it connects.

The last base table of a table that is captured again stays readable until the new one is complete: `_last_state`.

If the process dies in between, the request is still in the catalog and is executed again from the start. Every step can
be repeated.

Options (``ALTER SOURCES … SET``)::

    request_options  validated like a new source ─▶ catalog: the spec, unless another process changed it meanwhile
    set_options      instance config and spec differ: capture is stopped ─▶ catalog: the instance ─▶ capture restarted

If the process dies in between, spec and instance differ, and the next run sees that. Only options that change nothing
upstream can be set this way; others are rejected with the reason. Options that determine the columns of tables take
effect by requests to capture these tables again, recorded in one transaction with the spec. A changed connection must
lead to the same upstream: that is proven before it is recorded, and again by capture when it connects.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from penstock.catalog.bases import KeptBase
from penstock.catalog.states import TableState
from penstock.catalog.store import Catalog, SourceRecord, TableRecord, TableRequest
from penstock.changelog.interface import ChangeLog
from penstock.engine.as_of import durable_now
from penstock.engine.catalog_records import database_of, instance_of, spec_of
from penstock.engine.lifecycle import HALF
from penstock.engine.requests import dropped, retry_request
from penstock.engine.shards import reject_shard
from penstock.engine.table_names import named_sources
from penstock.errors import DefiniteError, HistoryExpiredError, PenstockError, TableError, UsageError
from penstock.fields import with_fields
from penstock.layout import base_path
from penstock.model import TableName
from penstock.name_suggestions import nearest
from penstock.positions import Lsn
from penstock.sources.findings import Finding, error
from penstock.sources.interface import Source
from penstock.sources.produced_table import ProducedTable
from penstock.tables.message_tables import message_tables

__all__ = ["Described", "alter", "describe", "give_up", "is_set", "request_options", "set_options"]

Described = Mapping[TableName, ProducedTable | Finding]
"""Tables as they are upstream, or the reason why they cannot be captured."""


def describe(record: SourceRecord, requests: Sequence[TableRecord]) -> Described:
    """Query the upstream for the tables that are requested to be added or captured again."""
    wanted = [request.upstream for request in requests if request.state is not TableState.DROPPING]
    found = spec_of(record).redescribe(wanted) if wanted else {}
    missing = [name for name, why in found.items() if isinstance(why, Finding)]
    moved = instance_of(record).renamed_tables(missing) if missing else {}
    return {**found, **{before: _renamed(record.known_as, before, now) for before, now in moved.items()}}


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
    durable = _end_incomplete(record, requests, log)
    with closing(log.reader()) as reader:
        generations = {name: table.generation for name, table in reader.tables().items()}
    for table in instance.produced():
        generations[table.name] = max(table.generation, generations.get(table.name, 0))
    new = [
        with_fields(table, generation=1 + generations.get(table.name, 0))
        for table in found.values()
        if isinstance(table, ProducedTable)
    ]
    gone = [request for request in requests if request.state is TableState.DROPPING]
    kept = {request.upstream: _last_state(catalog, request, log, durable) for request in requests}
    refused = {name: why for name, why in found.items() if isinstance(why, Finding)}
    altered = instance.alter_tables(new, [request.upstream for request in gone], refused)
    found, config = {**found, **altered.refused}, altered.config
    published = durable if altered.published is None else altered.published
    recorded = (record.error or "", record.hint or "")
    catalog.set_source(
        record.name, record.state, instance=config.model_dump_json(), error=recorded[0], hint=recorded[1]
    )
    _end(log, record, gone)
    return [_settle(home, catalog, request, found, published, kept[request.upstream]) for request in requests]


def give_up(catalog: Catalog, requests: Sequence[TableRecord], error: PenstockError) -> None:
    """Record a permanent error that prevents the requests: the tables have failed until an operator acts."""
    for request in requests:
        catalog.complete_request(request, TableState.FAILED, error=error.message, hint=error.hint, code=request.code)


def _end_incomplete(record: SourceRecord, requests: Sequence[TableRecord], log: ChangeLog) -> Lsn:
    """Fail the other tables whose changes do not all arrive: altering the source next would hide the gap.

    Return the end of the log.
    """
    requested = {str(request.upstream) for request in requests}
    with closing(log.reader()) as reader:
        durable = reader.frontiers().durable
        running = {str(name) for name, table in reader.tables().items() if table.error is None}
    database = database_of(record)
    found = database.check_tables(durable) if database is not None else ()
    errors = [error for error in found if error.table in running - requested]
    if errors:
        with closing(log.writer()) as writer:
            writer.publish([], durable, errors=errors)
    return durable


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


def _last_state(catalog: Catalog, request: TableRecord, log: ChangeLog, durable: Lsn) -> KeptBase | None:
    """Return the last state of a table that is captured again, as far as it can be read without the log.

    The log forgets the changes of the table when capture begins it again; what remains is its newest base. That is also
    the state at later positions, up to the next change, the error of the table, or the end of the log.
    """
    if request.state is not TableState.RETRYING or message_tables(log) is not None:
        return None
    with closing(log.reader()) as reader:
        logged = reader.tables().get(request.upstream)
        error = None if logged is None else logged.error
        if logged is None or (error is None and request.error is not None):
            return None  # the base itself may be wrong
        end = durable if error is None else Lsn(min(durable, error.lsn - 1))
        base = catalog.bases.newest(request.source, request.local, end)
        if base is None:
            return None
        try:
            unchanged = not reader.extent(request.upstream, base.position, end).chunks
        except HistoryExpiredError:
            unchanged = False
    return KeptBase(base.version, base.position, end if unchanged else base.position, base.schema)


def _settle(
    home: Path, catalog: Catalog, request: TableRecord, found: Described, published: Lsn, kept: KeptBase | None
) -> str:
    """Record the result of a request in the catalog; return a progress message."""
    if request.state is TableState.DROPPING:
        shutil.rmtree(base_path(home, request.source, request.local), ignore_errors=True)
        catalog.complete_request(request, None)
        return f"{request.source}: {request.upstream} is dropped"
    table = found[request.upstream]
    if isinstance(table, Finding):
        catalog.complete_request(request, TableState.FAILED, error=table.why, hint=table.hint, code=request.code)
        return f"{request.source}: {request.upstream} cannot be captured: {table.why}"
    catalog.complete_request(request, TableState.PENDING, kept=kept)
    how = "captured again" if request.state is TableState.RETRYING else "added"
    return f"{request.source}: {request.upstream} is {how}, published from {published}"


def request_options(catalog: Catalog, source: str, options: dict[str, Any]) -> None:
    """Record a request to change options of a source, on every shard."""
    records = named_sources(catalog, source)
    reject_shard(records[0], source)
    altered = [(record, _altered_spec(record, options)) for record in records]
    for record, spec in altered:
        _require_same_upstream(catalog, record, spec)
    changed = {record.name: (record.spec, spec.model_dump_json()) for record, spec in altered}
    if any(before != after for before, after in changed.values()):
        catalog.alter(changed, [request for each in altered for request in _resnapshots(catalog, *each)])


def _require_same_upstream(catalog: Catalog, record: SourceRecord, spec: Source) -> None:
    """Raise an error if a changed connection leads to another upstream, or it cannot be proven that it does not."""
    if spec.upstream() == spec_of(record).upstream():
        return
    if record.part_of is not None:
        message = f"the connections of the sharded source {record.part_of} cannot be changed"
        raise UsageError(message, "Direct the host names of its shards to other servers instead.")
    instance, log = instance_of(record).altered(spec), catalog.log(record.name)
    while True:
        durable = durable_now(log)
        try:
            return spec.require_same_upstream(instance, instance.start() if durable is None else durable)
        except DefiniteError:
            if durable_now(log) == durable:  # otherwise the running capture may have confirmed more than was known
                raise


def _resnapshots(catalog: Catalog, record: SourceRecord, spec: Source) -> list[TableRequest]:
    """Return requests for the captured tables that contain something else with a new spec."""
    captured = {table.upstream for table in catalog.tables(record.name)}
    names = [name for name in spec.resnapshotted_tables(spec_of(record)) if name in captured]
    for name, found in (spec.redescribe(names) if names else {}).items():
        if isinstance(found, Finding):
            message = f"{name} cannot be captured with these options: {found.why}"
            raise DefiniteError(message, found.hint)
    return [retry_request(catalog, record, str(name)) for name in names]


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
