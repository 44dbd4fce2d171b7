"""Requests for tables: to add a table to a source, drop it, or capture it again. Any process may record one.

::

    ADD TABLE     checked upstream, rejected at once if it cannot be captured ─▶ catalog: adding
    DROP TABLE    ─▶ catalog: dropping; not readable from then on
    RETRY TABLE   ─▶ catalog: retrying

The request and the changed spec of the source are recorded in one transaction of the catalog. The running home, or the
next run, executes the request (see `reconcile`).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

from penstock.catalog.states import REQUESTS, TableState
from penstock.catalog.store import Catalog, SourceRecord, TableRecord, TableRequest
from penstock.engine.catalog_records import instance_of, spec_of
from penstock.engine.shards import reject_shard, reject_unlike_tables
from penstock.engine.table_names import free_name, named_sources, named_table
from penstock.errors import DefiniteError, UsageError
from penstock.model import TableName
from penstock.sources.findings import Finding
from penstock.sources.option_names import TableChoice, parse_table
from penstock.sources.produced_table import ProducedTable

__all__ = ["dropped", "pending_requests", "request_add", "request_drop", "request_retry", "retry_request"]

_RETRIED = (TableState.LIVE, TableState.FAILED, TableState.RETRYING)


def pending_requests(catalog: Catalog, source: str) -> list[TableRecord]:
    """Return the tables of a source with a pending request."""
    return [record for record in catalog.tables(source) if record.state in REQUESTS]


def dropped(source: str, table: TableName) -> tuple[str, str]:
    """Return message and hint of the error that readers of a dropped table get."""
    message = f"{table} is no longer captured: it was dropped from source {source}"
    return message, f"To capture it again: ALTER SOURCES {source} ADD TABLE {table};"


def request_add(catalog: Catalog, source: str, table: str) -> None:
    """Record a request to add a table (``schema.table`` or ``schema.table AS name``), on every shard."""
    records, choice = named_sources(catalog, source), parse_table(table)
    reject_shard(records[0], source)
    known = {record.name: catalog.tables(record.name) for record in records}
    found = {record.shard or record.name: _addable(record, choice, known[record.name]) for record in records}
    reject_unlike_tables(choice.table, {shard: schema.table_schema() for shard, schema in found.items()})
    local = _local_name(choice, [each for tables in known.values() for each in tables])
    requested = [TableRecord(record.name, choice.table, local, TableState.ADDING) for record in records]
    specs = [(record.spec, spec_of(record).with_table(choice).model_dump_json()) for record in records]
    catalog.add_requests([TableRequest(*each) for each in zip(requested, specs, strict=True)])


def request_drop(catalog: Catalog, source: str, table: str) -> None:
    """Record a request to drop a table, on every shard."""
    records = named_sources(catalog, source)
    reject_shard(records[0], source)
    catalog.add_requests([_drop(catalog, record, table) for record in records])


def request_retry(catalog: Catalog, source: str, table: str) -> None:
    """Record a request to capture a live or failed table again, on every shard unless `source` names one."""
    catalog.add_requests([retry_request(catalog, record, table) for record in named_sources(catalog, source)])


def _addable(record: SourceRecord, choice: TableChoice, known: Sequence[TableRecord]) -> ProducedTable:
    """Return a table as it is upstream; raise an error if it cannot be added."""
    spec = spec_of(record).with_table(choice)
    _reject_known(next((each for each in known if each.upstream == choice.table), None))
    found = spec.redescribe([choice.table])[choice.table]
    if isinstance(found, Finding):
        message = f"{choice.table} cannot be added to {record.name}: {found.why}"
        raise DefiniteError(message, found.hint)
    return found


def _drop(catalog: Catalog, record: SourceRecord, table: str) -> TableRequest:
    found, tables = named_table(catalog, record.name, table), catalog.tables(record.name)
    spec = spec_of(record).without_table(found.upstream)
    going = {each.upstream for each in tables if each.state is TableState.DROPPING} | {found.upstream}
    if all(captured.name in going for captured in instance_of(record).produced()):
        message = f"{found.upstream} is the last table that source {record.known_as} captures"
        raise UsageError(message, f"Drop the source instead: penstock drop {record.known_as}")
    _reject_sinks(catalog, record.known_as, found)
    requested = replace(found, state=TableState.DROPPING, error=None, hint=None)
    return TableRequest(requested, (record.spec, spec.model_dump_json()))


def _reject_sinks(catalog: Catalog, source: str, table: TableRecord) -> None:
    """Raise `UsageError` if a sink reads only this table."""
    for sink in catalog.sinks.all(source):
        if json.loads(sink.spec).get("table") == table.local:
            message = f"table {table.upstream} is not dropped: sink {sink.name} reads it"
            raise UsageError(message, f"Drop the sink first: DROP SINK {sink.name};")


def retry_request(catalog: Catalog, record: SourceRecord, table: str) -> TableRequest:
    """Return the request to capture a table again; raise `UsageError` if its state does not allow it."""
    found = named_table(catalog, record.name, table)
    if found.state not in _RETRIED:
        message = f"{record.name}: {found.upstream} is {found.state}"
        raise UsageError(message, "RETRY TABLE requires a table that is live or failed; see `penstock status`.")
    instance = instance_of(record)  # raises an error if this kind of source cannot restart a single table
    instance.restarted([each for each in instance.produced() if each.name == found.upstream])
    return TableRequest(replace(found, state=TableState.RETRYING, reason=None))


def _reject_known(known: TableRecord | None) -> None:
    if known is None:
        return
    message = f"source {known.source} already has table {known.upstream}: it is {known.state}"
    if known.state is TableState.DROPPING:
        raise UsageError(message, "Add it after it is dropped; see `penstock status`.")
    raise UsageError(message, f"To resnapshot it: ALTER SOURCES {known.source} RETRY TABLE {known.upstream};")


def _local_name(choice: TableChoice, known: list[TableRecord]) -> str:
    taken = {record.local.lower() for record in known}
    if choice.alias is not None and choice.alias.lower() in taken:
        message = f"a table with the local name {choice.alias} already exists"
        raise UsageError(message, "Choose another name: ADD TABLE schema.table AS name.")
    return choice.alias or free_name(choice.table, taken)
