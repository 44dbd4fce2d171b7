"""The executor of Penstock's SQL statements: each is one call of the home.

A file of statements (``penstock run FILE.sql``, `create_missing`) describes the contents of a home: missing sources and
sinks are created, so the file can be given at each start. Statements that change or remove objects are rejected there;
use ``penstock sql``.

`explain` is ``EXPLAIN SOURCES``: it lists the objects that a statement would create, upstream and here. `explain_sink`
lists the tables of a sink, with their topics, keys and subjects.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.changelog.log_url import log_at
from penstock.engine.sealed_secrets import references, sink_secrets
from penstock.engine.shards import parts_of
from penstock.engine.sinks import AnySink
from penstock.engine.status import leftovers
from penstock.engine.table_names import local_names
from penstock.engine.transaction_tail import transaction_json
from penstock.errors import TableError, UsageError, with_hint
from penstock.layout import base_path
from penstock.sinks.kafka.spec import KafkaSink
from penstock.sinks.words import SinkEnvelope
from penstock.sources.findings import Level
from penstock.sources.interface import STATUS_SOURCE, InstanceConfig, Source
from penstock.sources.kinds import kind, kinds
from penstock.sql.completion import KnownNames, candidates
from penstock.sql.errors import StartPosition, error_at
from penstock.sql.grammar import parse
from penstock.sql.script import Piece, split_statements
from penstock.sql.show_statements import (
    STATUS_TABLES,
    Answer,
    matching,
    repair_summary,
    show_errors,
    show_readers,
    show_repairs,
    show_sinks,
    show_sources,
    show_tables,
    verify_answer,
)
from penstock.sql.statements import (
    AcceptInterference,
    AddTable,
    AlterSet,
    AlterSink,
    CreateSink,
    CreateSource,
    DropSink,
    DropSources,
    DropTable,
    Explain,
    ExplainSink,
    RepairRows,
    RetrySink,
    RetryTable,
    ShowCreate,
    ShowCreateSink,
    ShowErrors,
    ShowReaders,
    ShowRepairs,
    ShowSinks,
    ShowSources,
    ShowTables,
    Statement,
    Subscribe,
    Verify,
    written_sink,
    written_source,
)
from penstock.sql.syntax.option_parser import in_sql

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from penstock.changelog.transactions import Transaction
    from penstock.engine.as_of import AsOf
    from penstock.home_operations import HomeOperations
    from penstock.live import Live
    from penstock.tables.interface import TableStore


__all__ = [
    "READ_ONLY",
    "Query",
    "Subscription",
    "completions",
    "create_described_sink",
    "create_described_source",
    "create_missing",
    "creates",
    "described_sink",
    "described_source",
    "execute",
    "execute_all",
    "explain",
    "explain_sink",
    "parsed",
    "sink_statement",
    "statement_of",
]


def parsed(text: str, begins: StartPosition | None = None) -> Statement | None:
    """Parse a Penstock statement, with the installed kinds of sources; return None for a Spark SQL query."""
    return parse(text, {name: each.source for name, each in kinds().items()}, begins)


@dataclass(frozen=True)
class Query:
    """A query: the live view that it reads, which retains the history that its rows need, and its rows."""

    view: Live
    rows: DataFrame

    def close(self) -> None:
        """Release the history: all rows are read.

        A statement without columns may have left a view or a cache in its session, which still needs the history.
        """
        if self.rows.columns:
            self.view.close()


@dataclass(frozen=True)
class Subscription:
    """The transactions of a source, or of one of its tables, as they commit."""

    home: HomeOperations
    source: str
    table: str | None

    def transactions(self, stop: Callable[[], bool]) -> Iterator[str | TableError]:
        """Yield transactions as JSON, until `stop` returns True; and errors of tables that are skipped.

        The transactions are those that commit after this call, however late the first one is consumed.
        """
        return self._messages(self.home.subscribe(self.source, self.table, stop))

    def _messages(self, subscribed: Generator[Transaction | TableError, None, None]) -> Iterator[str | TableError]:
        with closing(subscribed):
            for each in subscribed:
                yield each if isinstance(each, TableError) else transaction_json(self.source, each)


READ_ONLY = (
    *(ShowSources, ShowTables, ShowSinks, ShowErrors, ShowReaders, ShowRepairs, ShowCreate, ShowCreateSink),
    Subscribe,
)
"""The statements that neither change anything nor connect to a server."""


def execute_all(
    home: HomeOperations,
    script: str,
    spark: Callable[[], SparkSession | TableStore],
    as_of: AsOf | None = None,
    *,
    read_only: bool = False,
) -> Iterator[Answer | Query | Subscription]:
    """Execute the statements of a script in order; each query reads a new live view, or one `as_of` a position.

    With `read_only`, only queries and `READ_ONLY` statements are executed.
    """
    pieces = list(split_statements(script))
    if not pieces:
        message = "the script contains no statement"
        raise UsageError(message, "Write, for example: SELECT 1; or SHOW SOURCES;")
    for piece in pieces:
        statement = parsed(piece.text, piece.begins)
        if statement is None:
            view = home.live(spark(), as_of)
            yield Query(view, view.sql(piece.text, read_only=read_only))
        else:
            if read_only:
                _require_read_only(statement, piece)
            yield (
                _subscription(home, statement) if isinstance(statement, Subscribe) else execute(home, statement, spark)
            )


def _subscription(home: HomeOperations, statement: Subscribe) -> Subscription:
    home.tables(statement.source, [statement.table] if statement.table else ())  # raises if there is no such table
    return Subscription(home, statement.source, statement.table)


def _require_read_only(statement: Statement, piece: Piece) -> None:
    """Raise an error for a statement that changes the home, or that connects to a server which it names."""
    if not isinstance(statement, READ_ONLY):
        message = "only queries and SHOW statements are allowed here"
        hint = "Use `penstock sql` on the machine of the home, or send the token of the server."
        raise error_at(piece.text, 0, message, hint, piece.begins)


def execute(home: HomeOperations, statement: Statement, spark: Callable[[], SparkSession | TableStore]) -> Answer:
    """Execute a statement; `spark` returns the session if the statement needs one."""
    match statement:
        case CreateSource():
            return _create(home, statement)
        case Explain(described):
            return explain(home.path, [described_source(described)])
        case AlterSet():
            return _alter(home, statement)
        case DropSources():
            return _drop(home, statement)
        case ShowSources(like):
            return matching(show_sources(home.status()), like)
        case ShowTables(source, like):
            _require_source(home, source)
            return matching(show_tables(home.status(), source), like)
        case ShowErrors(like):
            return matching(show_errors(home.status()), like)
        case ShowReaders(source, like):
            _require_source(home, source)
            return matching(show_readers(home.status(), source), like)
        case ShowRepairs():
            return show_repairs(home.repairs())
        case ShowCreate(source):
            return Answer(columns=("statement",), rows=[(statement_of(home.spec(source)),)])
        case CreateSink():
            return _create_sink(home, statement)
        case ExplainSink(described):
            return explain_sink(home, described_sink(described))
        case AlterSink():
            return _alter_sink(home, statement)
        case RetrySink(sink):
            home.retry_sink(sink)
            return _requested(home, f"start sink {sink} again")
        case DropSink():
            return _drop_sink(home, statement)
        case ShowSinks(like):
            return matching(show_sinks(home.status()), like)
        case ShowCreateSink(sink):
            return Answer(columns=("statement",), rows=[(sink_statement(home.sink_spec(sink)),)])
        case AddTable(source, table):
            home.add_table(source, table)
            return _requested(home, f"add {table} to {source}, with an initial snapshot")
        case DropTable(source, table):
            home.drop_table(source, table)
            return _requested(home, f"drop {table} from {source}")
        case RetryTable(source, table):
            home.retry(source, table)
            return _requested(home, f"resnapshot {table}")
        case AcceptInterference(source):
            home.accept_interference(source)
            return Answer(
                f'interference accepted; "{source}" resumes after the foreign writes at the next `penstock run`'
            )
        case RepairRows() as statement:
            return _repair(home, statement, spark)
        case Subscribe(source):
            message = "SUBSCRIBE returns transactions, not an answer"
            raise UsageError(message, f"In Python, use home.tail({source!r}).")
        case Verify(source, wanted):
            home.require_database(source)  # before Spark is started
            return _verify(home, source, home.tables(source, [wanted] if wanted else ()), spark())


def _require_source(home: HomeOperations, source: str | None) -> None:
    if source is not None:
        home.tables(source)  # raises if there is no such source


def creates(script: str) -> bool:
    """Return whether a script contains a CREATE SOURCES statement."""
    return any(isinstance(parsed(piece.text, piece.begins), CreateSource) for piece in split_statements(script))


def statement_of(source: Source) -> str:
    """Return the CREATE SOURCES statement that describes a source."""
    return written_source(source.name, source.NAME, source.sql_options(), source.with_options())


def sink_statement(sink: AnySink) -> str:
    """Return the CREATE SINK statement that describes a sink; for a sink into a function, the call in Python."""
    if not isinstance(sink, KafkaSink):
        return sink.statement()
    return written_sink(sink.name, sink.source, sink.table, sink.NAME, sink.sql_options(), sink.with_options())


def completions(home: HomeOperations, text: str) -> list[str]:
    """Return the completions of the last word of a text."""
    tables = {name: home.local_names(name) for name in home.names()}
    known = KnownNames(tables, home.sinks(), {STATUS_SOURCE: STATUS_TABLES})
    return candidates(text, {name: each.source for name, each in kinds().items()}, known)


def create_described_source(home: HomeOperations, statement: CreateSource) -> str:
    """Create the source that a statement describes; plaintext secrets are stored, and replaced by references."""
    source = described_source(statement)
    if statement.secrets:
        named = references(home.path, statement.name, statement.secrets)
        source = source.of(source.name, **{**source.model_dump(exclude={"name"}), **named})
    return home.create_source(source, statement.secrets)


def described_source(statement: CreateSource) -> Source:
    """Return the source that a statement describes, without its plaintext secrets."""
    return kind(statement.kind).source.from_options(statement.name, statement.sql_options, statement.with_options)


def _create(home: HomeOperations, statement: CreateSource) -> Answer:
    if statement.if_not_exists and statement.name in home.names():
        return Answer(f"source {statement.name} already exists, skipping")
    made = create_described_source(home, statement)
    return Answer(f"created source {made}; to remove it, here and upstream: DROP SOURCES {made};")


def _alter(home: HomeOperations, statement: AlterSet) -> Answer:
    _reject_literals(statement, "ALTER SOURCES")
    try:
        home.alter(statement.source, **statement.options)
    except UsageError as error:
        located = _located(statement, error, lambda: type(home.spec(statement.source)).model_fields)
        if located is None:
            raise
        raise located from error
    return _requested(home, f"set {', '.join(map(_sql_name, statement.options))} of {statement.source}")


def _reject_literals(statement: AlterSet | AlterSink, what: str) -> None:
    for secret in statement.secrets:
        message = f'{what} does not accept a literal secret for option "{_sql_name(secret)}"'
        raise statement.positions[secret].error(message, "Use a reference: { 'env:NAME' | 'file:PATH' }.")


def _located(
    statement: AlterSet | AlterSink, error: UsageError, fields: Callable[[], Container[str]]
) -> UsageError | None:
    """Return an error of an option at its position in the statement; None for any other error."""
    named = [option for option in statement.positions if re.search(rf"\b{option}\b", error.message)]
    if not named:
        return None
    message, hint = (in_sql(text, fields()) for text in error.args[:2])
    return statement.positions[named[0]].error(message, hint)


def _sql_name(option: str) -> str:
    return option.replace("_", " ")


def _drop(home: HomeOperations, statement: DropSources) -> Answer:
    if statement.if_exists and statement.name not in home.names():
        return Answer(f"source {statement.name} does not exist, skipping")
    kept = home.kept(statement.name)
    left = home.drop(statement.name, force=statement.force, keep_tables=statement.keep_tables)
    lines = [f"dropped {statement.name}", *(f"kept, because Penstock did not create it: {thing}" for thing in kept)]
    lines += leftovers(home.status(), left)
    return Answer("\n".join(lines))


def _requested(home: HomeOperations, what: str) -> Answer:
    """Return the answer to a recorded request: which process executes it, and when."""
    pid = home.runner()
    return Answer(
        f"{what}: {f'requested from the running Penstock (pid {pid})' if pid else 'at the next `penstock run`'}"
    )


def _repair(home: HomeOperations, statement: RepairRows, spark: Callable[[], SparkSession | TableStore]) -> Answer:
    everything = statement.keys is None and statement.where is None
    started = None if home.is_running() else spark()
    done = home.repair(
        statement.source,
        statement.table,
        keys=statement.keys,
        where=statement.where,
        everything=everything,
        spark=started,
    )
    return Answer(repair_summary(done))


def _verify(home: HomeOperations, source: str, tables: Sequence[str], spark: SparkSession | TableStore) -> Answer:
    from penstock.engine.verify import verify_report

    with home.run_if_idle(spark):
        verdicts = home.verify(spark, source, tables)
    return verify_answer(verify_report(source, verdicts))


# -- sinks -------------------------------------------------------------------------------------------------------------


def create_described_sink(home: HomeOperations, statement: CreateSink) -> str:
    """Create the sink that a statement describes; plaintext secrets are stored, and replaced by references."""
    sink = described_sink(statement)
    if statement.secrets:
        named = references(home.path, sink_secrets(statement.name), statement.secrets)
        given = {**sink.model_dump(exclude={"name", "source", "table"}), **named}
        sink = KafkaSink.of(sink.name, sink.source, sink.table, **given)
    return home.add_sink(sink, statement.secrets)


def described_sink(statement: CreateSink) -> KafkaSink:
    """Return the sink that a statement describes, without its plaintext secrets."""
    halves = (statement.sql_options, statement.with_options)
    return KafkaSink.from_options(statement.name, statement.source, statement.table, *halves)


def _create_sink(home: HomeOperations, statement: CreateSink) -> Answer:
    if statement.if_not_exists and statement.name in home.sinks():
        return Answer(f"sink {statement.name} already exists, skipping")
    made, pid = create_described_sink(home, statement), home.runner()
    starts = f"the running Penstock (pid {pid}) starts it" if pid else "it starts at the next `penstock run`"
    return Answer(f"created sink {made}; {starts}")


def _alter_sink(home: HomeOperations, statement: AlterSink) -> Answer:
    _reject_literals(statement, "ALTER SINK")
    try:
        home.alter_sink(statement.sink, **statement.options)
    except UsageError as error:
        located = _located(statement, error, lambda: KafkaSink.model_fields)
        if located is None:
            raise
        raise located from error
    return _requested(home, f"set {', '.join(map(_sql_name, statement.options))} of sink {statement.sink}")


def _drop_sink(home: HomeOperations, statement: DropSink) -> Answer:
    if statement.if_exists and statement.name not in home.sinks():
        return Answer(f"sink {statement.name} does not exist, skipping")
    kept = "its topics are kept" if isinstance(home.sink_spec(statement.name), KafkaSink) else "its output is kept"
    home.drop_sink(statement.name)
    pid = home.runner()
    done = f"sink {statement.name} is being dropped by the running Penstock (pid {pid})"
    return Answer(f"{done if pid else f'dropped sink {statement.name}'}; {kept}")


def explain_sink(home: HomeOperations, sink: KafkaSink) -> Answer:
    """Check a sink as CREATE SINK does, and its brokers and registry; list tables with topics, keys and subjects."""
    resolved = home.resolved_sink(sink)
    notes: dict[str, list[str]] = {}
    for finding in home.check_sink(resolved):
        if finding.level is not Level.INFO:
            notes.setdefault(finding.object, []).append(with_hint(f"{finding.level}: {finding.why}", finding.hint))
    rows: list[tuple[str | None, ...]] = []
    for table in home.sink_tables(resolved):
        key = f"({', '.join(table.key)})" if table.key else "none"
        key = "position" if resolved.envelope is SinkEnvelope.TRANSACTIONS else key
        subjects = ", ".join(resolved.subjects(table.topic, table.upstream, has_key=bool(table.key))) or None
        note = "\n".join(notes.pop(table.topic, ())) or None
        rows.append((f"{sink.source}.{table.local}", table.topic, key, resolved.format.value, subjects, note))
    if (topic := resolved.metadata_topic) is not None:
        note, subjects = "\n".join(notes.pop(topic, ())) or None, ", ".join(resolved.metadata_subjects()) or None
        rows.append((None, topic, "transaction", resolved.format.value, subjects, note))
    rows += [(None, place, None, None, None, "\n".join(found)) for place, found in notes.items()]
    return Answer(columns=("table", "topic", "key", "format", "subjects", "note"), rows=rows)


# -- files of statements -----------------------------------------------------------------------------------------------


def create_missing(home: HomeOperations, script: str) -> list[tuple[str, str]]:
    """Create the sources and sinks that a script describes and the home lacks; return the kind and name of each.

    The whole script is parsed before anything is created. Raise an error for a source or sink that exists with another
    definition.
    """
    described = [(piece, _described(piece)) for piece in split_statements(script)]
    made = []
    for piece, statement in described:
        if isinstance(statement, CreateSource):
            made += _missing_source(home, piece, statement)
        else:
            made += _missing_sink(home, piece, statement)
    return made


def _missing_source(home: HomeOperations, piece: Piece, statement: CreateSource) -> list[tuple[str, str]]:
    if statement.name not in home.names():
        return [("source", create_described_source(home, statement))]
    if not statement.secrets and described_source(statement) != home.spec(statement.name):
        message = f"source {statement.name} already exists with another definition"
        hint = (
            f"SHOW CREATE SOURCES {statement.name}; prints its definition. Change it with ALTER SOURCES, or drop"
            f" it: penstock drop {statement.name}"
        )
        raise error_at(piece.text, 0, message, hint, piece.begins)
    return []


def _missing_sink(home: HomeOperations, piece: Piece, statement: CreateSink) -> list[tuple[str, str]]:
    if statement.name not in home.sinks():
        return [("sink", create_described_sink(home, statement))]
    if not statement.secrets and home.resolved_sink(described_sink(statement)) != home.sink_spec(statement.name):
        message = f"sink {statement.name} already exists with another definition"
        hint = (
            f"SHOW CREATE SINK {statement.name}; prints its definition. Change it with ALTER SINK, or drop it: DROP"
            f" SINK {statement.name};"
        )
        raise error_at(piece.text, 0, message, hint, piece.begins)
    return []


def _described(piece: Piece) -> CreateSource | CreateSink:
    statement = parsed(piece.text, piece.begins)
    if isinstance(statement, CreateSource | CreateSink):
        return statement
    message = "`penstock run` accepts only CREATE SOURCES and CREATE SINK statements"
    raise error_at(piece.text, 0, message, "For other statements, use: penstock sql -f FILE", piece.begins)


# -- EXPLAIN SOURCES ---------------------------------------------------------------------------------------------------

_COLUMNS = ("where", "what", "note")
_Row = tuple[str, str, str]


def explain(home: Path, sources: Sequence[Source]) -> Answer:
    """Check the upstream as CREATE SOURCES does, and list the objects that it would create."""
    return Answer(columns=_COLUMNS, rows=[row for source in sources for row in _source(home, source)])


def _source(home: Path, source: Source) -> Iterator[_Row]:
    ready = True
    for shard in source.shards().values():
        found = shard.check()
        ready = ready and found.ready
        for finding in found.findings:
            if finding.level is not Level.INFO:
                yield shard.place(), f"{finding.level}: {finding.object}: {finding.why}", finding.hint
    if ready:
        for part in parts_of(source):
            yield from _instance(home, part.source, part.instance)


def _instance(home: Path, source: Source, instance: InstanceConfig) -> Iterator[_Row]:
    there = instance.place()
    for made in instance.makes():
        yield there, made, "created, and removed with the source"
    for kept in instance.kept():
        yield there, kept, "exists: it is read, and never removed"
    yield (
        "here",
        f"change log {log_at(home, instance.source, source.log)}",
        f"retains history for {source.retain_history}",
    )
    names = local_names(instance)
    for table in instance.produced():
        schema = table.table_schema()
        key = f"key ({', '.join(schema.key)})" if schema.key else "no key"
        local = names[table.name]
        note = f"{base_path(home, instance.source, local)}: {len(schema.columns)} columns, {key}"
        yield "here", f"table {instance.source}.{local} of {table.name}", note
    for name, (why, hint) in instance.left_out().items():
        yield "here", f"without {name}: {why}", hint
