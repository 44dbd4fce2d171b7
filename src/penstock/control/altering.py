"""Carrying out wishes: tables are added, dropped and captured anew while the others of their source go on.

::

    describe   the tables as they are upstream now                                         capture runs
    let go     copy and apply finish what they have in hand of these tables
    alter      publication ─▶ catalog (instance) ─▶ log: dropped tables end here            capture stands still
               ─▶ their files ─▶ catalog (table pending, failed, or gone)
    capture    restarted: begins the history of what is new or anew, after `durable`
    copy       at a snapshot after that ─▶ live

A table that comes, or comes again, is described with a higher *generation* than the log has of that name: that is how
capture knows that its history begins there, also when it was killed in between, and how an older base table is
told from the copy to be made. `published` is a position from which on its changes are sent; the copy waits for capture
to have begun the table, which is later, and its snapshot for all transactions that ran then. So nothing is missed.

Whatever breaks off in between, the wish is still in the catalog, and is carried out again from the beginning. Each
step can be done twice: a table that is published already is so, one that was described gets a higher generation again.
"""

from __future__ import annotations

import shutil
from collections.abc import Collection, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import TypeVar

from penstock.catalog.states import TableState
from penstock.catalog.store import Catalog, SourceRecord, TableRecord
from penstock.changelog.interface import ChangeLog
from penstock.control.recorded import instance_of, spec_of
from penstock.control.wishes import dropped
from penstock.errors import PenstockError, TableError
from penstock.layout import base_path
from penstock.model import TableName
from penstock.positions import Lsn
from penstock.sources.family import InstanceConfig, ProducedTable
from penstock.sources.findings import Finding
from penstock.sources.postgres.captured import CapturedTable
from penstock.sources.postgres.config import PostgresInstanceConfig

__all__ = ["Described", "alter", "describe", "give_up"]

Described = Mapping[TableName, ProducedTable | Finding]
"""Tables as they are upstream, or why they cannot be captured."""
_Table = TypeVar("_Table", bound=ProducedTable)


def describe(record: SourceRecord, wishes: Sequence[TableRecord]) -> Described:
    """Look at the tables that shall come, or come again."""
    wanted = [wish.upstream for wish in wishes if wish.state is not TableState.DROPPING]
    return spec_of(record).look_again(wanted) if wanted else {}


def alter(
    home: Path, catalog: Catalog, record: SourceRecord, wishes: Sequence[TableRecord], found: Described
) -> list[str]:
    """Carry wishes out; return what there is to tell. Capture must not run meanwhile: it stores its config, too."""
    instance, log = instance_of(record), catalog.log(record.name)
    of = _of_a_database if isinstance(instance, PostgresInstanceConfig) else _of_another_kind
    config, published = of(instance, wishes, found, log)
    told = (record.error or "", record.remedy or "")
    catalog.set_source(record.name, record.state, instance=config.model_dump_json(), error=told[0], remedy=told[1])
    _end(catalog.log(record.name), record, [wish for wish in wishes if wish.state is TableState.DROPPING])
    return [_settle(home, catalog, wish, found, published) for wish in wishes]


def give_up(catalog: Catalog, wishes: Sequence[TableRecord], error: PenstockError) -> None:
    """Note a definite error that is in the way: the tables have failed until somebody acts."""
    for wish in wishes:
        catalog.grant(wish, TableState.FAILED, error=error.message, remedy=error.remedy)


def _of_a_database(
    instance: InstanceConfig, wishes: Sequence[TableRecord], found: Described, log: ChangeLog
) -> tuple[InstanceConfig, Lsn]:
    """Let a database publish what is captured from now on."""
    assert isinstance(instance, PostgresInstanceConfig)
    config = _altered(instance, wishes, found, _generations(log))
    published = config.repair()
    tables = [t.model_copy(update={"published": int(published)}) if t.name in found else t for t in config.tables]
    return config.model_copy(update={"tables": tuple(tables)}), published


def _of_another_kind(
    instance: InstanceConfig, wishes: Sequence[TableRecord], found: Described, log: ChangeLog
) -> tuple[InstanceConfig, Lsn]:
    """Let tables begin again; elsewhere nothing needs to be done for that."""
    tables, generations = [table for table in found.values() if isinstance(table, ProducedTable)], _generations(log)
    with closing(log.reader()) as reader:
        durable = reader.frontiers().durable
    anew = [_next(table, instance.produced(), generations) for table in tables]
    return (instance.anew(anew) if anew else instance), durable


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
    refused = {str(name): (why.why, why.remedy) for name, why in found.items() if isinstance(why, Finding)}
    refused = {**instance.refused, **refused}
    left_out = {name: why for name, why in refused.items() if not _any(name, gone | captured)}
    return instance.model_copy(update={"tables": (*kept, *new), "refused": left_out})


def _any(name: str, tables: Collection[TableName]) -> bool:
    return any(name == str(table) for table in tables)


def _next(table: _Table, before: Sequence[ProducedTable], generations: Mapping[TableName, int]) -> _Table:
    known = max((each.generation for each in before if each.name == table.name), default=0)
    return table.model_copy(update={"generation": 1 + max(known, generations.get(table.name, 0))})


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
        catalog.grant(wish, TableState.FAILED, error=table.why, remedy=table.remedy)
        return f"{wish.source}: {wish.upstream} cannot be captured: {table.why}"
    catalog.grant(wish, TableState.PENDING)
    how = "captured anew" if wish.state is TableState.RETRYING else "added"
    return f"{wish.source}: {wish.upstream} is {how}, published from {published} on"
