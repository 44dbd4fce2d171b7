"""The executor of Penstock's SQL statements: each is one call of the home.

Files of statements (``penstock run FILE.sql``, `make_missing`) describe what a home contains; sources that are missing
are created, so the file can be given at each start. Statements that change or remove something are rejected there; use
``penstock sql``.

`explain` is ``EXPLAIN SOURCES``: what a statement would create, upstream and here, without creating it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.changelog.place import log_at
from penstock.engine.sealed_secrets import references
from penstock.engine.status import leftovers
from penstock.engine.table_names import local_names
from penstock.errors import UsageError
from penstock.layout import base_path
from penstock.sources.findings import Level
from penstock.sources.interface import InstanceConfig, Source
from penstock.sources.kinds import kind, kinds
from penstock.sql.answer import (
    Answer,
    repaired,
    show_errors,
    show_repairs,
    show_sources,
    show_tables,
    verify_answer,
)
from penstock.sql.completion import Known, candidates
from penstock.sql.errors import Beginning, error_at
from penstock.sql.grammar import parse
from penstock.sql.script import Piece, divided
from penstock.sql.statements import (
    AcceptInterference,
    AddTable,
    AlterSet,
    CreateSource,
    DropSources,
    DropTable,
    Explain,
    Repairing,
    RetryTable,
    ShowCreate,
    ShowErrors,
    ShowRepairs,
    ShowSinks,
    ShowSources,
    ShowTables,
    Statement,
    Verify,
    written_source,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from penstock.engine.as_of import AsOf
    from penstock.home import Home


__all__ = [
    "completions",
    "creates",
    "described_source",
    "explain",
    "make_missing",
    "make_source",
    "obey",
    "obey_all",
    "parsed",
    "statement_of",
]


def parsed(text: str, begins: Beginning | None = None) -> Statement | None:
    """Read a statement of ours, with the kinds that there are; None for a query."""
    return parse(text, {name: each.source for name, each in kinds().items()}, begins)


def obey_all(
    home: Home, script: str, spark: Callable[[], SparkSession], as_of: AsOf | None = None
) -> Iterator[Answer | DataFrame]:
    """Carry out the statements of a script one after the other; queries see live tables, each at its moment."""
    pieces = list(divided(script))
    if not pieces:
        message = "there is no statement"
        raise UsageError(message, "For example: SELECT 1; or SHOW SOURCES;")
    for piece in pieces:
        statement = parsed(piece.text, piece.begins)
        if statement is None:
            yield home.live(spark(), as_of).sql(piece.text)
        else:
            yield obey(home, statement, spark)


def obey(home: Home, statement: Statement, spark: Callable[[], SparkSession]) -> Answer:
    """Carry a statement out; `spark` gives the session where it needs one."""
    match statement:
        case CreateSource():
            return _create(home, statement)
        case Explain(described):
            return home.explain(described_source(described))
        case AlterSet(source, options, secrets):
            if secrets:
                message = "a secret in clear cannot be set later"
                raise UsageError(message, "Name where it is: 'env:NAME' or 'file:PATH'.")
            home.alter(source, **options)
            return _noted(home, f"{', '.join(option.replace('_', ' ') for option in options)} of {source} is set")
        case DropSources():
            return _drop(home, statement)
        case ShowSources():
            return show_sources(home.status())
        case ShowTables(source):
            if source is not None:
                home.tables(source)  # which is refused where there is none
            return show_tables(home.status(), source)
        case ShowErrors():
            return show_errors(home.status())
        case ShowRepairs():
            return show_repairs(home.repairs())
        case ShowCreate(source):
            return Answer(columns=("statement",), rows=[(home.statement(source),)])
        case ShowSinks():
            return Answer(columns=("name", "source", "state"))
        case AddTable(source, table):
            home.add_table(source, table)
            return _noted(home, f"{table} is added to {source} and copied")
        case DropTable(source, table):
            home.drop_table(source, table)
            return _noted(home, f"{table} is dropped from {source}")
        case RetryTable(source, table):
            home.retry(source, table)
            return _noted(home, f"{table} is captured anew and copied afresh")
        case AcceptInterference(source):
            home.accept_interference(source)
            return Answer(f"{source} goes on at the next penstock run, behind what others wrote there")
        case Repairing() as asked:
            return _repair(home, asked, spark)
        case Verify(source, wanted):
            home.require_database(source)  # before Spark is started
            return _verify(home, source, home.tables(source, [wanted] if wanted else ()), spark())


def creates(script: str) -> bool:
    """Say whether a statement of a script makes a source."""
    return any(isinstance(parsed(piece.text, piece.begins), CreateSource) for piece in divided(script))


def statement_of(source: Source) -> str:
    """Write the statement that makes a source like this one."""
    return written_source(source.name, source.NAME, source.sql_options(), source.with_options())


def completions(home: Home, text: str) -> list[str]:
    """Return what the word at the end of a text could become."""
    known = Known({name: home.local_names(name) for name in home.names()})
    return candidates(text, {name: each.source for name, each in kinds().items()}, known)


def make_source(home: Home, statement: CreateSource) -> str:
    """Make the source that a statement describes; secrets in clear are kept where a reference names them."""
    source = described_source(statement)
    if statement.secrets:
        named = references(home.path, statement.name, statement.secrets)
        source = source.of(source.name, **{**source.model_dump(exclude={"name"}), **named})
    return home.create_source(source, statement.secrets)


def described_source(statement: CreateSource) -> Source:
    """Return the source that a statement describes, without the secrets that it has in clear."""
    return kind(statement.kind).source.from_options(statement.name, statement.sql_options, statement.with_options)


def _create(home: Home, statement: CreateSource) -> Answer:
    if statement.if_not_exists and statement.name in home.names():
        return Answer(f"source {statement.name} is there already")
    made = make_source(home, statement)
    return Answer(f"created source {made}: DROP SOURCES {made}; removes it again, also outside")


def _drop(home: Home, asked: DropSources) -> Answer:
    if asked.if_exists and asked.name not in home.names():
        return Answer(f"there is no source {asked.name}")
    kept = home.kept(asked.name)
    left = home.drop(asked.name, force=asked.force, keep_tables=asked.keep_tables)
    told = [f"dropped {asked.name}", *(f"left there, because it is yours: {thing}" for thing in kept)]
    told += leftovers(home.status(), left)
    return Answer("\n".join(told))


def _noted(home: Home, what: str) -> Answer:
    """Say when a wish is carried out."""
    pid = home.runner()
    return Answer(f"{what}: {f'now, by the Penstock that runs (pid {pid})' if pid else 'at the next penstock run'}")


def _repair(home: Home, asked: Repairing, spark: Callable[[], SparkSession]) -> Answer:
    everything = asked.keys is None and asked.where is None
    started = None if home.is_run() else spark()
    done = home.repair(
        asked.source, asked.table, keys=asked.keys, where=asked.where, everything=everything, spark=started
    )
    return Answer(repaired(done))


def _verify(home: Home, source: str, tables: Sequence[str], spark: SparkSession) -> Answer:
    from penstock.engine.verify_report import verify_report

    with home.run_if_idle(spark):
        verdicts = home.verify(spark, source, tables)
    return verify_answer(verify_report(source, verdicts))


def make_missing(home: Home, script: str) -> list[str]:
    """Make the sources that a script describes and the home has not; return their names.

    All of it is read before anything is made. A source that is there, but described otherwise, is refused.
    """
    described = [(piece, _described(piece)) for piece in divided(script)]
    made = []
    for piece, statement in described:
        if statement.name not in home.names():
            made.append(make_source(home, statement))
        elif not statement.secrets and described_source(statement) != home.spec(statement.name):
            message = f"this home has a source {statement.name}, and it was described otherwise"
            hint = (
                f"See SHOW CREATE SOURCES {statement.name}; for what it is. Change it with ALTER SOURCES, or drop it:"
                f" penstock drop {statement.name}"
            )
            raise error_at(piece.text, 0, message, hint, piece.begins)
    return made


def _described(piece: Piece) -> CreateSource:
    statement = parsed(piece.text, piece.begins)
    if isinstance(statement, CreateSource):
        return statement
    message = "only CREATE SOURCES stands in a file that is run"
    raise error_at(piece.text, 0, message, "Use penstock sql -f FILE for other statements.", piece.begins)


_COLUMNS = ("where", "what", "note")
_Row = tuple[str, str, str]


def explain(home: Path, sources: Sequence[Source]) -> Answer:
    """Look outside, as a create does, and tell what it would make."""
    shards = [shard for source in sources for shard in source.shards().values()]
    return Answer(columns=_COLUMNS, rows=[row for shard in shards for row in _source(home, shard)])


def _source(home: Path, source: Source) -> Iterator[_Row]:
    found = source.check()
    for finding in found.findings:
        if finding.level is not Level.INFO:
            yield source.place(), f"{finding.level}: {finding.object}: {finding.why}", finding.hint
    if not found.ready:
        return
    for instance in source.create_instances(1):
        yield from _instance(home, source, instance)


def _instance(home: Path, source: Source, instance: InstanceConfig) -> Iterator[_Row]:
    there = instance.place()
    for made in instance.makes():
        yield there, made, "made, and removed with the source"
    for kept in instance.kept():
        yield there, kept, "yours: it is read, and stays"
    yield "here", f"change log {log_at(home, source.name, source.log)}", f"history is kept for {source.retain_history}"
    names = local_names(instance)
    for table in instance.produced():
        schema = table.table_schema()
        key = f"key ({', '.join(schema.key)})" if schema.key else "no key"
        local = names[table.name]
        note = f"{base_path(home, source.name, local)}: {len(schema.columns)} columns, {key}"
        yield "here", f"table {source.name}.{local} of {table.name}", note
    for name, (why, hint) in instance.left_out().items():
        yield "here", f"without {name}: {why}", hint
