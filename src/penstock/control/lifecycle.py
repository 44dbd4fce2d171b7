"""Creating and dropping sources, so that a crash at any point leaves nothing behind that nobody knows of.

::

    create:  catalog (creating) ─▶ publication ─▶ slot ─▶ log ─▶ catalog (ready) ─▶ taken by whoever runs the home
    drop:    catalog (dropping) ─▶ let go by whoever runs it ─▶ slot ─▶ publication ─▶ log, lake ─▶ catalog (gone)

The catalog is written first and cleared last. A source found half-made is undone, one found half-dropped is finished:
by whoever runs the home, or at the next start. All of this is done by one process at a time (see `lock.making`), so
that nobody takes what is in progress for what was left; and nothing is removed of a source that somebody has in hand.

While Postgres cannot be reached, such a source waits, and the others run; dropped by force, it goes at once, and what
it left upstream stays in the catalog as a debt, which each later start tries to settle.

Base tables may stay (``KEEP TABLES``): those that are whole, as plain Delta tables. That is in the catalog, too, from
the first step on.
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
from penstock.control.lock import source_holder, take_source
from penstock.control.recorded import debt_of, instance_of
from penstock.errors import DefiniteError, NoSource, PenstockError, SourceExists, Taken, TransientError
from penstock.layout import capture_log_path, lake_path, state_path
from penstock.positions import Lsn
from penstock.sources.family import InstanceConfig, Source

__all__ = [
    "HALF",
    "TABLES",
    "create_source",
    "drop_source",
    "recover",
]


TABLES = "tables"
"""The reader that stands for the base tables: it needs what they have not taken in."""
HALF = (SourceState.CREATING, SourceState.DROPPING)
"""States of a source that is not whole: somebody is at it, or has died over it."""

_LET_GO_SECONDS = 60.0
_LEFT_ALONE_SECONDS = 1.0


def create_source(home: Path, catalog: Catalog, source: Source) -> SourceRecord:
    """Make a source: everything it needs upstream and here, or nothing at all."""
    known = catalog.source(source.name)
    if known is not None:
        message = f"there is a source {source.name} already: it is {known.state}"
        raise SourceExists(message, f"Drop it first: penstock drop {source.name}")
    _refuse_foreign_log(home, source)
    _refuse_kept_tables(home, source)
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


def _refuse_kept_tables(home: Path, source: Source) -> None:
    """Tables of an earlier source of this name may have been kept: they are the user's now."""
    lake = lake_path(home, source.name)
    if lake.exists() and any(lake.iterdir()):
        message = f"tables of an earlier source {source.name} are in {lake}"
        raise DefiniteError(message, "Move that folder away, or remove it; or name the source otherwise.")


def _undo(home: Path, catalog: Catalog, instance: InstanceConfig, error: BaseException) -> None:
    """Take back what a failed create made; while Postgres cannot be reached, the catalog keeps it for `recover`."""
    try:
        if not isinstance(error, Taken):
            instance.cleanup()
        _remove_files(home, catalog, instance.source)
    except PenstockError:
        return
    catalog.remove_source(instance.source)


def drop_source(
    home: Path, catalog: Catalog, name: str, *, force: bool = False, keep_tables: bool = False
) -> list[str]:
    """Remove a source and all that it made; return what is left upstream, as statements to run by hand."""
    record = catalog.source(name)
    if record is None:
        known = ", ".join(source.name for source in catalog.sources()) or "none"
        message = f"there is no source {name}"
        raise NoSource(message, f"The sources of this home: {known}.")
    catalog.dropping([name], keep_tables=keep_tables)
    return _drop(home, catalog, name, _LET_GO_SECONDS, force)


def _drop(home: Path, catalog: Catalog, name: str, seconds: float, force: bool = False) -> list[str]:
    """Remove a source that is marked so, when nobody has it in hand any more."""
    lock = take_source(home, name, seconds)
    if lock is None:
        raise _still_in_hand(home, name)
    try:
        left = _remove(home, catalog, name, force)
    except BaseException:
        lock.let_go()
        raise
    lock.remove()
    return left


def _still_in_hand(home: Path, name: str) -> TransientError:
    pid = source_holder(home, name)
    message = f"source {name} is not gone yet: the Penstock that runs it (pid {pid}) has it in hand"
    return TransientError(message, "It goes as soon as that is done; see `penstock status`.")


def _remove(home: Path, catalog: Catalog, name: str, force: bool) -> list[str]:
    record = catalog.source(name)
    if record is None:  # somebody else has removed it meanwhile
        return []
    instance = instance_of(record)
    left = _clean_upstream(instance, force)
    debt = (record.kind, instance.model_dump_json(), _noted_durable(catalog, record, instance)) if left else None
    _remove_files(home, catalog, name, keep_tables=record.keep_tables)
    catalog.remove_source(name, debt)
    return left


def recover(home: Path, catalog: Catalog) -> list[PenstockError]:
    """Undo what was half made, finish what was half dropped, settle debts; return what has to wait, and why.

    Upstreams that cannot be reached keep nothing else from running. Nobody else may be making anything meanwhile.
    """
    waiting: list[PenstockError] = []
    for record in catalog.sources():
        if record.state in HALF:
            catalog.dropping([record.name])
            try:
                _drop(home, catalog, record.name, _LEFT_ALONE_SECONDS)
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


def _noted_durable(catalog: Catalog, record: SourceRecord, instance: InstanceConfig) -> Lsn:
    """Return how far the slot can have been confirmed by us; noted while there is a log that tells it."""
    try:
        with closing(catalog.log(record.name).reader()) as reader:
            durable = reader.frontiers().durable
    except PenstockError:  # it was never whole, or is gone already
        return record.durable or instance.start()
    catalog.note_durable(record.name, durable)
    return durable


def _make_log(log: ChangeLog, start: Lsn) -> None:
    """Make the log, with the pin of those who follow it into the lake: nothing is removed before they say so."""
    log.create(start)
    with closing(log.reader()) as reader:
        reader.pin(TABLES, start)


def _remove_files(home: Path, catalog: Catalog, name: str, *, keep_tables: bool = False) -> None:
    catalog.log(name).remove()
    whole = {table.local for table in catalog.tables(name) if catalog.first_base(name, table.local) is not None}
    kept = whole if keep_tables else set[str]()
    lake = lake_path(home, name)
    for path in [path for path in lake.glob("*") if path.name not in kept] if kept else [lake]:
        _remove_tree(path)
    _remove_tree(state_path(home, name))
    capture_log_path(home, name).unlink(missing_ok=True)


def _remove_tree(path: Path) -> None:
    """Remove a folder, whether or not it is there; a half of it must not stay unnoticed."""
    while path.exists():
        try:
            shutil.rmtree(path)
        except FileNotFoundError:  # somebody else removes it, too
            continue
        except OSError as error:
            message = f"{path} cannot be removed: {error.strerror}"
            raise TransientError(message, "Mend that: it will be tried again.") from error
