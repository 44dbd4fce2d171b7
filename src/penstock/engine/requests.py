"""Wishes: a table shall be added to a source, dropped from it, or captured anew. Noted by anybody; see `reconcile`.

::

    ADD TABLE     looked at upstream, refused at once where it cannot be captured ─▶ catalog: adding
    DROP TABLE    ─▶ catalog: dropping; it cannot be read from there on
    RETRY TABLE   ─▶ catalog: retrying

A wish and what is asked of the source from then on (its spec) are one step in the catalog. Whoever runs the home
carries it out; where nobody does, the next one who will.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from penstock.catalog.states import WISHES, TableState
from penstock.catalog.store import Catalog, SourceRecord, TableRecord, Wish
from penstock.engine.records import database_instance_of, database_spec_of, instance_of
from penstock.engine.shards import refuse_shard, refuse_unlike_tables
from penstock.engine.table_names import free_name, named_sources, named_table
from penstock.errors import DefiniteError, UsageError
from penstock.fields import with_fields
from penstock.model import TableName
from penstock.sources.findings import Finding
from penstock.sources.postgres.captured import CapturedTable
from penstock.sources.postgres.config import PostgresInstanceConfig
from penstock.sources.postgres.names import TableChoice, choice_text, parse_table
from penstock.sources.postgres.spec import PostgresSource

__all__ = ["ask_add", "ask_drop", "ask_retry", "dropped", "open_wishes"]

_RETRIED = (TableState.LIVE, TableState.FAILED, TableState.RETRYING)


def open_wishes(catalog: Catalog, source: str) -> list[TableRecord]:
    """Return the tables of which something is wished."""
    return [record for record in catalog.tables(source) if record.state in WISHES]


def dropped(source: str, table: TableName) -> tuple[str, str]:
    """What whoever reads a dropped table is told, and what to do about it."""
    message = f"{table} is not captured any more: it was dropped from source {source}"
    return message, f"To have it again: ALTER SOURCES {source} ADD TABLE {table};"


def ask_add(catalog: Catalog, source: str, table: str) -> None:
    """Note that a table (``schema.table``, or ``schema.table AS name``) shall be captured, too; on every shard."""
    records, choice = named_sources(catalog, source), parse_table(table)
    refuse_shard(records[0], source)
    known = {record.name: catalog.tables(record.name) for record in records}
    found = {record.shard or record.name: _addable(record, choice, known[record.name]) for record in records}
    refuse_unlike_tables(choice.table, {shard: schema.table_schema() for shard, schema in found.items()})
    local = _local_name(choice, [each for tables in known.values() for each in tables])
    wishes = [TableRecord(record.name, choice.table, local, TableState.ADDING) for record in records]
    specs = [(record.spec, _with_table(database_spec_of(record), choice).model_dump_json()) for record in records]
    catalog.wish([Wish(*each) for each in zip(wishes, specs, strict=True)])


def ask_drop(catalog: Catalog, source: str, table: str) -> None:
    """Note that a table shall not be captured any more; on every shard."""
    records = named_sources(catalog, source)
    refuse_shard(records[0], source)
    catalog.wish([_drop(catalog, record, table) for record in records])


def ask_retry(catalog: Catalog, source: str, table: str) -> None:
    """Note that a table, failed or live, shall be captured anew; on every shard, unless one is named."""
    catalog.wish([_retry(catalog, record, table) for record in named_sources(catalog, source)])


def _addable(record: SourceRecord, choice: TableChoice, known: Sequence[TableRecord]) -> CapturedTable:
    """Return a table as it is upstream; refuse it where it cannot be captured."""
    spec = database_spec_of(record)
    _refuse_known(next((each for each in known if each.upstream == choice.table), None))
    _refuse_other_schema(spec, choice.table)
    found = spec.look_again([choice.table])[choice.table]
    if isinstance(found, Finding):
        message = f"{choice.table} cannot be added to {record.name}: {found.why}"
        raise DefiniteError(message, found.hint)
    return found


def _drop(catalog: Catalog, record: SourceRecord, table: str) -> Wish:
    found, tables = named_table(catalog, record.name, table), catalog.tables(record.name)
    going = {each.upstream for each in tables if each.state is TableState.DROPPING} | {found.upstream}
    if all(captured.name in going for captured in database_instance_of(record).tables):
        message = f"{found.upstream} is the last table that source {record.known_as} captures"
        raise UsageError(message, f"Drop the source instead: penstock drop {record.known_as}")
    wish = replace(found, state=TableState.DROPPING, error=None, hint=None)
    return Wish(wish, (record.spec, _without_table(database_spec_of(record), found.upstream).model_dump_json()))


def _retry(catalog: Catalog, record: SourceRecord, table: str) -> Wish:
    found = named_table(catalog, record.name, table)
    if found.state not in _RETRIED:
        message = f"{record.name}: {found.upstream} is {found.state}"
        raise UsageError(message, "It can be captured anew when it is live or has failed; see `penstock status`.")
    _refuse_begun_together(record, found.upstream)
    return Wish(replace(found, state=TableState.RETRYING))


def _refuse_begun_together(record: SourceRecord, table: TableName) -> None:
    """Refuse what the kind of the source cannot do; a database can."""
    instance = instance_of(record)
    if not isinstance(instance, PostgresInstanceConfig):
        instance.anew([each for each in instance.produced() if each.name == table])


def _refuse_known(known: TableRecord | None) -> None:
    if known is None:
        return
    message = f"source {known.source} has the table {known.upstream} already: it is {known.state}"
    if known.state is TableState.DROPPING:
        raise UsageError(message, "Add it when it is gone; see `penstock status`.")
    raise UsageError(message, f"To copy it afresh: ALTER SOURCES {known.source} RETRY TABLE {known.upstream};")


def _refuse_other_schema(spec: PostgresSource, table: TableName) -> None:
    if spec.schemas and table.schema not in spec.schemas:
        message = f"source {spec.name} captures tables of the schemas {', '.join(spec.schemas)}, not of {table.schema}"
        raise UsageError(message, "Name a table of these schemas, or make a source of its own for the other.")


def _local_name(choice: TableChoice, known: list[TableRecord]) -> str:
    taken = {record.local.lower() for record in known}
    if choice.alias is not None and choice.alias.lower() in taken:
        message = f"there is a table {choice.alias} here already"
        raise UsageError(message, "Give it another name: ADD TABLE schema.table AS name.")
    return choice.alias or free_name(choice.table, taken)


def _with_table(spec: PostgresSource, choice: TableChoice) -> PostgresSource:
    """What was asked for, where tables were named one by one: this one, too."""
    return with_fields(spec, tables=(*spec.tables, choice_text(choice))) if spec.tables else spec


def _without_table(spec: PostgresSource, table: TableName) -> PostgresSource:
    """Leave it out where tables were named; what is excluded of it stays so, should it ever come back."""
    kept = tuple(text for text in spec.tables if parse_table(text).table != table)
    return with_fields(spec, tables=kept)
