"""Statements of ours, carried out: each is one call of the home."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from penstock.control.answer import Answer, repaired, show_errors, show_repairs, show_sources, show_tables
from penstock.control.sealing import references
from penstock.errors import UsageError
from penstock.sources.family import Source
from penstock.sources.kinds import kind, kinds
from penstock.sql.completion import Known, candidates
from penstock.sql.excerpt import Beginning
from penstock.sql.grammar import parse
from penstock.sql.rendering import written_source
from penstock.sql.script import divided
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
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from penstock.control.home import Home
    from penstock.control.moment import AsOf

__all__ = ["completions", "creates", "described_source", "make_source", "obey", "obey_all", "parsed", "statement_of"]


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
    if left:
        told += ["could not be removed; each later start tries again, or run by hand:", *left]
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
    from penstock.control.verify_report import verify_answer, verify_report

    with home.run_if_idle(spark):
        verdicts = home.verify(spark, source, tables)
    return verify_answer(verify_report(source, verdicts))
