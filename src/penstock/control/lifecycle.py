"""Creating and dropping sources, so that a crash at any point leaves nothing behind that nobody knows of.

::

    create:  catalog (creating) ─▶ publication ─▶ slot ─▶ log ─▶ catalog (ready)
    drop:    catalog (dropping) ─▶ slot ─▶ publication ─▶ log, lake ─▶ catalog (gone)

The catalog is written first and cleared last. A source found half-made at the next start is undone, one found
half-dropped is finished. While Postgres cannot be reached, such a source waits, and the others run; dropped by force,
it goes at once, and what it left upstream stays in the catalog as a debt, which each later start tries to settle.
"""

from __future__ import annotations

import shutil
from contextlib import closing
from pathlib import Path

from penstock.catalog.states import SourceState, TableState
from penstock.catalog.store import Catalog, Debt, SourceRecord, TableRecord
from penstock.changelog.interface import ChangeLog
from penstock.changelog.place import log_at
from penstock.control.local_names import local_names
from penstock.control.recorded import debt_of, instance_of
from penstock.errors import DefiniteError, PenstockError, Taken, TransientError
from penstock.layout import lake_path, state_path
from penstock.positions import Lsn
from penstock.sources.family import InstanceConfig, Source

__all__ = [
    "TABLES",
    "create_source",
    "drop_source",
    "recover",
]


TABLES = "tables"
"""The reader that stands for the base tables: it needs what they have not taken in."""


def create_source(home: Path, catalog: Catalog, source: Source) -> SourceRecord:
    """Make a source: everything it needs upstream and here, or nothing at all."""
    if catalog.source(source.name) is not None:
        message = f"there is a source {source.name} already"
        raise DefiniteError(message, f"Drop it first: penstock drop {source.name}")
    _refuse_foreign_log(home, source)
    instance = source.create_instances(1)[0]
    record = SourceRecord(
        source.name,
        source.NAME,
        source.model_dump_json(),
        instance.model_dump_json(),
        SourceState.CREATING,
        log=source.log,
    )
    catalog.add_source(record, _tables(instance))
    try:
        prepared = instance.prepare()
        _make_log(catalog.log(source.name), prepared.start())
    except BaseException as error:
        _undo(home, catalog, instance, error)
        raise
    catalog.set_source(source.name, SourceState.READY, instance=prepared.model_dump_json())
    return record


def _refuse_foreign_log(home: Path, source: Source) -> None:
    """A log in Kafka may be that of another home, whose writer would be fenced and whose history mixed with ours."""
    log = log_at(home, source.name, source.log)
    if log.exists():
        message = f"there is a change log of a source {source.name} already: {log}"
        raise DefiniteError(
            message, "Name the source otherwise, give another prefix in the URL of its log, or remove it."
        )


def _undo(home: Path, catalog: Catalog, instance: InstanceConfig, error: BaseException) -> None:
    """Take back what a failed create made; while Postgres cannot be reached, the catalog keeps it for `recover`."""
    try:
        if not isinstance(error, Taken):
            instance.cleanup()
    except PenstockError:
        return
    _remove_files(home, catalog, instance.source)
    catalog.remove_source(instance.source)


def drop_source(home: Path, catalog: Catalog, name: str, *, force: bool = False) -> list[str]:
    """Remove a source and all that it made; return what is left upstream, as statements to run by hand."""
    record = catalog.source(name)
    if record is None:
        known = ", ".join(source.name for source in catalog.sources()) or "none"
        message = f"there is no source {name}"
        raise DefiniteError(message, f"The sources of this home: {known}.")
    catalog.set_source(name, SourceState.DROPPING)
    instance = instance_of(record)
    left = _clean_upstream(instance, force)
    debt = (record.kind, instance.model_dump_json(), _durable(catalog, instance)) if left else None
    _remove_files(home, catalog, name)
    catalog.remove_source(name, debt)
    return left


def recover(home: Path, catalog: Catalog) -> list[PenstockError]:
    """Undo what was half made, finish what was half dropped, settle debts; return what has to wait, and why.

    Upstreams that cannot be reached keep nothing else from running. The home must be held.
    """
    waiting: list[PenstockError] = []
    for record in catalog.sources():
        if record.state in (SourceState.CREATING, SourceState.DROPPING):
            try:
                drop_source(home, catalog, record.name)
            except TransientError as error:
                catalog.set_source(record.name, SourceState.DROPPING, error=error.message, remedy=error.remedy)
                waiting.append(error)
    unsettled = [_settle(catalog, debt) for debt in catalog.debts()]
    return waiting + [left for left in unsettled if left is not None]


def _settle(catalog: Catalog, debt: Debt) -> PenstockError | None:
    """Remove what a source dropped by force left upstream; where a new source has those names, they are its own."""
    instance = debt_of(debt)
    try:
        if not any(instance.same_outside(other) for other in map(instance_of, catalog.sources())):
            instance.settle(debt.durable)
    except PenstockError as error:
        catalog.defer(debt, error.message)
        message = f"what source {debt.source} left upstream could not be removed: {error.message}"
        return TransientError(message, "\n".join(["It will be tried again; or run by hand:", *instance.by_hand()]))
    catalog.settle(debt)
    return None


def _tables(instance: InstanceConfig) -> list[TableRecord]:
    local, left_out = local_names(instance), instance.left_out()
    pending = [TableRecord(instance.source, t.name, local[t.name], TableState.PENDING) for t in instance.produced()]
    failed = [
        TableRecord(instance.source, name, local[name], TableState.FAILED, *why) for name, why in left_out.items()
    ]
    return pending + failed


def _clean_upstream(instance: InstanceConfig, force: bool) -> list[str]:
    if not instance.by_hand():  # all of it is the user's
        return []
    try:
        instance.cleanup()
    except PenstockError as error:
        if force:
            return instance.by_hand()
        message = (
            f"source {instance.source} is not gone yet, because what it made upstream could not be removed:"
            f" {error.message}"
        )
        raise TransientError(
            message,
            f"Try again when that can be reached; or: penstock drop {instance.source} --force, and by hand there:\n"
            + "\n".join(instance.by_hand()),
        ) from error
    return []


def _durable(catalog: Catalog, instance: InstanceConfig) -> Lsn:
    """How far the slot can have been confirmed by us."""
    log = catalog.log(instance.source)
    if not log.exists():
        return instance.start()
    with closing(log.reader()) as reader:
        return reader.frontiers().durable


def _make_log(log: ChangeLog, start: Lsn) -> None:
    """Make the log, with the pin of those who follow it into the lake: nothing is removed before they say so."""
    log.create(start)
    with closing(log.reader()) as reader:
        reader.pin(TABLES, start)


def _remove_files(home: Path, catalog: Catalog, name: str) -> None:
    catalog.log(name).remove()
    shutil.rmtree(lake_path(home, name), ignore_errors=True)
    shutil.rmtree(state_path(home, name), ignore_errors=True)
