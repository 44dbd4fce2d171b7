"""Creating, altering and dropping sinks, and the tables that a sink writes.

::

    create:  checked against the tables of the source ─▶ catalog (running) ─▶ started by the running home
    alter:   catalog: the spec ─▶ restarted by the running home
    drop:    catalog (dropping) ─▶ stopped by the running home ─▶ history released ─▶ catalog (removed)

A sink is only a record until the running home starts it: creating one connects to no broker. Dropping one keeps its
topics, their messages, and its topic of positions. Without a running home, a drop is complete at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import SecretStr

from penstock.catalog.sinks import SinkRecord
from penstock.catalog.states import SinkState, TableState
from penstock.catalog.store import Catalog, SourceRecord, TableRecord
from penstock.engine.catalog_records import instance_of
from penstock.engine.lifecycle import HALF
from penstock.engine.locks import holder
from penstock.engine.sealed_secrets import forget_unused, seal, sink_secrets
from penstock.engine.shards import reject_shard
from penstock.engine.sink_progress import remove_progress
from penstock.engine.table_names import named_sources, named_table
from penstock.errors import DefiniteError, PenstockError, UsageError
from penstock.model import TableName, TableSchema
from penstock.name_suggestions import nearest
from penstock.sinks.call_record import remove_calls
from penstock.sinks.function.registration import unregister
from penstock.sinks.function.spec import FunctionSink
from penstock.sinks.kafka.spec import KafkaSink
from penstock.sinks.kafka.topic_names import topic_name
from penstock.sinks.words import Delivery, SinkEnvelope
from penstock.sources.findings import Finding, error

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.tables.interface import TableStore

__all__ = [
    "AnySink",
    "SinkTable",
    "alter_sink",
    "check_sink",
    "complete_drop",
    "complete_drops",
    "create_sink",
    "drop_sink",
    "named_sink",
    "readable_sources",
    "resolved_sink",
    "retain_for_sink",
    "retry_sink",
    "sink_of",
    "sink_reader",
    "sink_tables",
    "spark_of",
]


_CHECK_SECONDS = 5.0
AnySink = KafkaSink | FunctionSink


@dataclass(frozen=True)
class SinkTable:
    """A table that a sink writes: its names, its schema, the columns of message keys, and the topic."""

    local: str
    upstream: TableName
    schema: TableSchema
    key: tuple[str, ...]
    """Empty for messages without keys."""
    topic: str


def sink_of(record: SinkRecord) -> AnySink:
    """Return the specification of a sink."""
    kind = FunctionSink if record.kind == FunctionSink.NAME else KafkaSink
    return kind.model_validate_json(record.spec)


def sink_reader(name: str) -> str:
    """Return the name under which a sink retains history."""
    return f"sink {name}"


def named_sink(catalog: Catalog, name: str) -> SinkRecord:
    """Return a sink; raise `UsageError` with the known names if there is none."""
    found = catalog.sinks.get(name)
    if found is None:
        names = [record.name for record in catalog.sinks.all()]
        known = f"Sinks of this home: {', '.join(names)}." if names else "This home has no sinks."
        message = f"sink {name} does not exist"
        raise UsageError(message, " ".join(filter(None, [nearest(name, names), known])))
    return found


def resolved_sink(catalog: Catalog, sink: KafkaSink) -> KafkaSink:
    """Return a sink with the local name of its table; raise `UsageError` if source, table or a column does not exist.

    Secrets are not checked, because literal ones may not be stored yet.
    """
    from penstock.sinks.columns import check_options

    records = readable_sources(catalog, sink)
    if sink.provide_transaction_metadata and len(records) > 1:
        message = (
            'option "provide_transaction_metadata" is not available for shards: their transactions are independent'
        )
        raise UsageError(message, "Remove the option.")
    if sink.table is not None:
        local = named_table(catalog, records[0].name, sink.table).local
        sink = KafkaSink.of(sink.name, sink.source, local, **_options(sink))
    tables = sink_tables(catalog, sink)
    catalog.log(records[0].name).check_readable([table.upstream for table in tables])
    _check_keys(sink, tables)
    for table in tables:
        if sink.metadata_topic == table.topic:
            message = f'the transaction topic "{table.topic}" is the topic of table {table.upstream}'
            raise UsageError(message, 'Set option "transaction_topic" to another topic.')
    keyed = {table.local: TableSchema(table.upstream, table.schema.columns, table.key) for table in tables}
    check_options(sink.column_options(), keyed)
    if sink.transform is not None:
        from penstock.sinks.named_functions import named_function

        named_function(sink.transform)
    if sink.where is not None:
        from penstock.sinks.condition import Condition

        for table in tables:
            Condition(sink.where, table.schema)
    return sink


def sink_tables(catalog: Catalog, sink: KafkaSink) -> list[SinkTable]:
    """Return the tables of a sink with their present columns; those that cannot be captured are left out.

    The shards of a source have the same tables.
    """
    record = readable_sources(catalog, sink)[0]
    schemas = _schemas(catalog, record)
    chosen = [
        table
        for table in catalog.tables(record.name)
        if table.state is not TableState.DROPPING and table.upstream in schemas and sink.table in (None, table.local)
    ]
    return [_table(sink, table, schemas[table.upstream]) for table in chosen]


def _table(sink: KafkaSink, table: TableRecord, schema: TableSchema) -> SinkTable:
    key = () if sink.envelope is SinkEnvelope.TRANSACTIONS else sink.key or schema.key
    return SinkTable(
        table.local,
        table.upstream,
        schema,
        key,
        topic_name(table.upstream, prefix=sink.topic_prefix or "", fixed=sink.topic),
    )


def spark_of(store: TableStore | None, what: str) -> SparkSession:
    """Return the Spark session of a running home; `what` needs it, for the error in a home without one."""
    try:
        if store is not None:
            return store.spark
    except UsageError:
        pass
    message = f"{what}, and this home runs without Spark"
    raise DefiniteError(message, "Run the home with `penstock run`, or with a session: home.run(spark).")


def readable_sources(catalog: Catalog, sink: AnySink) -> list[SourceRecord]:
    """Return the records of the source; raise `UsageError` if it does not exist, or is being created or dropped."""
    try:
        records = named_sources(catalog, sink.source)
    except UsageError as error:
        names = dict.fromkeys(record.known_as for record in catalog.sources())
        raise UsageError(error.message, " ".join(filter(None, [nearest(sink.source, names), error.hint]))) from None
    reject_shard(records[0], sink.source)
    if records[0].state in HALF:
        message = f"source {sink.source} is {records[0].state}"
        raise UsageError(message, "Create the sink when the source is ready; see `penstock status`.")
    return records


def _schemas(catalog: Catalog, record: SourceRecord) -> dict[TableName, TableSchema]:
    """Return the present schemas of a source's tables: those of the log, if it has one already."""
    described = {table.name: table.table_schema() for table in instance_of(record).produced()}
    with closing(catalog.log(record.name).reader()) as reader:
        logged = {name: table.schema for name, table in reader.tables().items() if any(table.since)}
    return {name: logged.get(name, schema) for name, schema in described.items()}


def create_sink(home: Path, catalog: Catalog, sink: KafkaSink, secrets: Mapping[str, SecretStr]) -> None:
    """Create a sink, and store the `secrets` that its options refer to. The caller must hold the lifecycle lock."""
    existing = catalog.sinks.get(sink.name)
    if existing is not None:
        message = f"sink {sink.name} already exists: it is {existing.state}"
        raise DefiniteError(message, f"Drop it first: DROP SINK {sink.name};")
    sink = resolved_sink(catalog, sink)
    sink.require_secrets()
    try:
        seal(home, sink_secrets(sink.name), secrets)
        catalog.sinks.add(SinkRecord(sink.name, sink.source, sink.NAME, sink.model_dump_json()))
        retain_for_sink(catalog, sink)
    finally:
        forget_unused(home, catalog)


def check_sink(catalog: Catalog, sink: KafkaSink, seconds: float = _CHECK_SECONDS) -> list[Finding]:
    """Return what would keep a sink from writing: brokers, topics, permissions, registry. This connects to them."""
    from penstock.formats.schema_registry import Registry
    from penstock.sinks.kafka.output import topic_settings
    from penstock.sinks.kafka.topics import check_topics
    from penstock.sinks.kafka.transaction_topic import transaction_topic_settings

    topics = {table.topic: topic_settings(sink) for table in sink_tables(catalog, sink)}
    if sink.metadata_topic is not None:
        topics[sink.metadata_topic] = transaction_topic_settings(topic_settings(sink))
    is_upsert = sink.envelope is SinkEnvelope.UPSERT
    settings = sink.client_settings()
    positions = sink.topic_of_positions() if sink.delivery is Delivery.EXACTLY_ONCE else None
    findings = check_topics(settings, topics, seconds, upsert=is_upsert, positions=positions)
    address = sink.registry()
    try:
        if address is not None:
            Registry(address).check()
    except PenstockError as failure:
        findings.append(error(address.url if address else "", failure.message, failure.hint))
    return findings


def retain_for_sink(catalog: Catalog, sink: AnySink) -> None:
    """Retain history from now on, so that a sink without a snapshot has all changes after its creation."""
    for source in catalog.parts(sink.source):
        log = catalog.log(source.name)
        if log.exists():
            with closing(log.reader()) as reader:
                reader.set_lease(sink_reader(sink.name), reader.frontiers().durable)


def alter_sink(catalog: Catalog, name: str, options: Mapping[str, Any]) -> None:
    """Change options of a sink; raise `UsageError` for options that are fixed or invalid."""
    record = named_sink(catalog, name)
    if record.state is SinkState.DROPPING:
        message = f"sink {name} is being dropped"
        raise UsageError(message, "Create it again under another name.")
    sink = sink_of(record)
    for option in options:
        _reject_fixed(sink, option)
    altered = type(sink).of(sink.name, sink.source, sink.table, **{**_options(sink), **options})
    if isinstance(altered, KafkaSink):
        altered.require_secrets()
    catalog.sinks.alter(name, record.spec, altered.model_dump_json())


def retry_sink(catalog: Catalog, name: str) -> None:
    """Start a sink again that has failed; raise `UsageError` for one that has not."""
    record = named_sink(catalog, name)
    if record.state is not SinkState.FAILED:
        message = f"sink {name} is {record.state}"
        raise UsageError(message, "RETRY requires a sink that has failed; see `penstock status`.")
    catalog.sinks.set_state(name, SinkState.RUNNING)


def drop_sink(home: Path, catalog: Catalog, name: str) -> None:
    """Drop a sink: at once, or as soon as the running home has stopped it. The caller must hold the lifecycle lock."""
    named_sink(catalog, name)
    catalog.sinks.set_state(name, SinkState.DROPPING)
    if holder(home) is None:
        complete_drops(home, catalog)


def complete_drops(home: Path, catalog: Catalog) -> None:
    """Remove the sinks that are being dropped. No process may run them."""
    for record in catalog.sinks.all():
        if record.state is SinkState.DROPPING:
            complete_drop(home, catalog, record)


def complete_drop(home: Path, catalog: Catalog, record: SinkRecord) -> None:
    """Release the history that a stopped sink retains, and remove the sink and its secrets."""
    for source in catalog.parts(record.source):
        remove_progress(home, record.name, source.name)
        log = catalog.log(source.name)
        if log.exists():
            with closing(log.reader()) as reader:
                if sink_reader(record.name) in (lease.reader for lease in reader.leases()):
                    reader.set_lease(sink_reader(record.name), None)
    remove_calls(home, record.name)
    unregister(home, record.name)
    catalog.sinks.remove(record.name)
    forget_unused(home, catalog)


def _options(sink: AnySink) -> dict[str, Any]:
    """Return all options of a sink; those of the catalog contain no literal secrets."""
    fields = type(sink).model_fields.keys() - {"name", "source", "table"}
    return {field: getattr(sink, field) for field in sorted(fields)}


def _reject_fixed(sink: AnySink, option: str) -> None:
    if option in sink.ALTERABLE:
        return
    changeable = f"Options that can be changed: {', '.join(sorted(sink.ALTERABLE))}."
    if option not in _options(sink):
        message = f"unknown option {option} of a {sink.NAME} sink"
        raise UsageError(message, " ".join(filter(None, [nearest(option, sink.ALTERABLE), changeable])))
    message = f"option {option} of sink {sink.name} cannot be changed: {sink.why_fixed(option)}"
    raise UsageError(message, f"{changeable} For others, drop the sink and create it again.")


# -- columns -----------------------------------------------------------------------------------------------------------


def _check_keys(sink: KafkaSink, tables: Sequence[SinkTable]) -> None:
    """Raise `UsageError` for a column of KEY that does not exist, or a table without a key that needs one."""
    known = dict.fromkeys(name for table in tables for name in table.schema.columns.names)
    for column in sink.key:
        if column not in known:
            message = f'column "{column}" in KEY does not exist in table {sink.source}.{sink.table}'
            columns = f"Columns: {', '.join(known)}."
            raise UsageError(message, " ".join(filter(None, [nearest(column, known, '"'), columns])))
    for table in tables:
        if not table.key and sink.envelope is SinkEnvelope.UPSERT:
            message = f"table {table.upstream} has no key, and ENVELOPE UPSERT requires one"
            raise UsageError(message, "Use KEY (column, …) with a sink of this table alone, or another envelope.")
