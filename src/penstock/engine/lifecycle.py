"""Creating and dropping sources, so that a crash at any point leaves nothing behind that is not recorded.

::

    create:  catalog (creating) ─▶ publication ─▶ slot ─▶ log ─▶ catalog (ready) ─▶ started by the running home
    drop:    catalog (dropping) ─▶ stopped by the running home ─▶ slot ─▶ publication ─▶ log, files ─▶ catalog (removed)

The catalog is written first and cleared last. A source that was found half-created is removed, and one that was found
half-dropped is finished: by the running home, or at the next start. One process does this at a time (`locks.making`),
so that work in progress is never taken for leftovers. Nothing is removed of a source that another process is using.
Every step can be repeated.

The slot and publication may belong to another home: a copy of this one, or the original. Then nothing is removed, and
the source stays as it was.

While Postgres cannot be reached, such a source waits, and the others run. Dropped with force, it is removed at once;
what is left upstream stays in the catalog as a debt, which each later start tries to settle.

Base tables may be kept (``KEEP TABLES``): those with a complete snapshot, as plain Delta tables. That, too, is recorded
in the catalog from the first step on.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from penstock.catalog.states import SourceState, TableState
from penstock.catalog.store import Catalog, Debt, SourceRecord, TableRecord
from penstock.changelog.interface import ChangeLog
from penstock.changelog.place import log_at
from penstock.engine.locks import source_holder, take_source
from penstock.engine.records import debt_of, instance_of
from penstock.engine.sealed_secrets import forget_unused
from penstock.engine.shards import refuse_shard, refuse_taken, refuse_unlike
from penstock.engine.table_names import local_names
from penstock.errors import (
    AlreadyExistsError,
    DefiniteError,
    InUseError,
    NotOwnedError,
    PenstockError,
    SourceNotFoundError,
    TransientError,
)
from penstock.layout import capture_log_path, lake_path, state_path
from penstock.positions import Lsn
from penstock.sources.interface import InstanceConfig, Source

__all__ = ["HALF", "TABLES", "create_source", "drop_source", "recover", "remove_files", "remove_source"]

TABLES = "tables"
"""The reader that stands for the base tables: it needs what they have not taken in."""
HALF = (SourceState.CREATING, SourceState.DROPPING)
"""States of a source that is not whole: somebody is at it, or has died over it."""

_LET_GO_SECONDS = 60.0
_LEFT_ALONE_SECONDS = 1.0


def create_source(home: Path, catalog: Catalog, source: Source) -> None:
    """Make a source, or all of its shards: everything that is needed upstream and here, or nothing at all."""
    shards = source.shards()
    refuse_taken(catalog, source, list(shards.values()))
    for shard in shards.values():
        _refuse_foreign_log(home, shard)
        _refuse_kept_tables(home, shard)
    instances = {word: shard.create_instances(1)[0] for word, shard in shards.items()}
    refuse_unlike(instances)
    records = [_record(source, shards[word], instances[word], word) for word in shards]
    catalog.add_sources(list(zip(records, map(_tables, instances.values()), strict=True)))
    prepared: list[InstanceConfig] = []
    for instance in instances.values():
        try:
            prepared.append(_prepared(catalog, instance))
        except BaseException as error:
            begun = prepared if isinstance(error, AlreadyExistsError) else [*prepared, instance]
            _undo(home, catalog, list(instances.values()), begun)
            raise
    catalog.made({instance.source: instance.model_dump_json() for instance in prepared})


def _record(whole: Source, source: Source, instance: InstanceConfig, shard: str | None) -> SourceRecord:
    return SourceRecord(
        source.name,
        source.NAME,
        source.model_dump_json(),
        instance.model_dump_json(),
        SourceState.CREATING,
        log=source.log,
        part_of=None if shard is None else whole.name,
        shard=shard,
    )


def _prepared(catalog: Catalog, instance: InstanceConfig) -> InstanceConfig:
    prepared = instance.prepare()
    _make_log(catalog.log(instance.source), prepared.start())
    return prepared


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


def _undo(home: Path, catalog: Catalog, instances: Sequence[InstanceConfig], begun: Sequence[InstanceConfig]) -> None:
    """Take back what a failed create made; what cannot be reached right now, the catalog keeps for `recover`."""
    ours = {instance.source for instance in begun}
    for instance in instances:
        try:
            if instance.source in ours:
                instance.cleanup()
            remove_files(home, catalog, instance.source)
        except PenstockError:
            continue
        catalog.remove_source(instance.source)


def drop_source(
    home: Path, catalog: Catalog, name: str, *, force: bool = False, keep_tables: bool = False
) -> list[str]:
    """Remove a source and all that it made; return what is left upstream, as statements to run by hand.

    Of shards, those go that can; what keeps one of them is raised after that.
    """
    records = catalog.parts(name)
    if not records:
        known = ", ".join(dict.fromkeys(source.known_as for source in catalog.sources())) or "none"
        message = f"there is no source {name}"
        raise SourceNotFoundError(message, f"The sources of this home: {known}.")
    refuse_shard(records[0], name)
    catalog.dropping([record.name for record in records], keep_tables=keep_tables)
    left, kept = list[str](), list[PenstockError]()
    for record in records:
        try:
            left += _drop(home, catalog, record.name, _LET_GO_SECONDS, force=force)
        except NotOwnedError as error:
            if record.state not in HALF:  # nothing of it was touched
                catalog.not_dropping(record)
            kept.append(error)
        except TransientError as error:
            kept.append(error)
    if kept:
        raise kept[0]
    return left


def _drop(home: Path, catalog: Catalog, name: str, seconds: float, *, force: bool = False) -> list[str]:
    """Remove a source that is marked so, when nobody has it in hand any more."""
    lock = take_source(home, name, seconds)
    if lock is None:
        raise _still_in_hand(home, name)
    try:
        record = catalog.source(name)
        return [] if record is None else remove_source(home, catalog, record, force=force)
    finally:
        lock.let_go()


def _still_in_hand(home: Path, name: str) -> TransientError:
    pid = source_holder(home, name)
    message = f"source {name} is not gone yet: the Penstock that runs it (pid {pid}) has it in hand"
    return TransientError(message, "It goes as soon as that is done; see `penstock status`.")


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
            except (TransientError, NotOwnedError) as error:
                catalog.set_source(record.name, SourceState.DROPPING, error=error.message, hint=error.hint)
                waiting.append(error)
    unsettled = [_settle(catalog, debt) for debt in catalog.debts()]
    forget_unused(home, catalog)
    return waiting + [left for left in unsettled if left is not None]


def _settle(catalog: Catalog, debt: Debt) -> PenstockError | None:
    """Remove what a source dropped by force left upstream; where a new source has those names, they are its own."""
    instance = debt_of(debt)
    try:
        if not any(instance.same_outside(other) for other in map(instance_of, catalog.sources())):
            instance.settle(debt.durable)
    except NotOwnedError:  # then there is nothing left of it
        pass
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


def _make_log(log: ChangeLog, start: Lsn) -> None:
    """Make the log, with the pin of those who follow it into the lake: nothing is removed before they say so."""
    log.create(start)
    with closing(log.reader()) as reader:
        reader.pin(TABLES, start)


def remove_source(home: Path, catalog: Catalog, record: SourceRecord, *, force: bool) -> list[str]:
    """Remove all of a source; by force, also where the outside cannot be reached: return what is left there to do."""
    instance, durable = instance_of(record), _durable(catalog, record)
    left, owed = _clean_upstream(instance, record.known_as, durable, force)
    debt = (record.kind, instance.model_dump_json(), _noted(catalog, record, instance, durable)) if owed else None
    remove_files(home, catalog, record.name, keep_tables=record.keep_tables)
    catalog.remove_source(record.name, debt)
    return left


def _clean_upstream(
    instance: InstanceConfig, known_as: str, durable: Lsn | None, force: bool
) -> tuple[list[str], bool]:
    """Remove what was made outside; return what is left there to do, and whether that is ours to try again."""
    if not instance.by_hand():  # all of it is the user's
        return [], False
    try:
        instance.require_own(durable)
        instance.cleanup()
    except NotOwnedError as error:
        if force:
            where, *statements = instance.by_hand()
            why = f"-- {error.message}; only where nobody uses it any more:"
            return [where, why, *(f"-- {statement}" for statement in statements)], False
        message = f"source {instance.source} is not dropped: {error.message}"
        hint = (
            f"{error.hint} To remove the source here alone, and leave all that is outside: penstock drop {known_as}"
            " --force. It prints what to run by hand where nobody uses it any more."
        )
        raise NotOwnedError(message, hint) from error
    except PenstockError as error:
        if force:
            return instance.by_hand(), True
        message = (
            f"source {instance.source} is not gone yet, because what it made upstream could not be removed:"
            f" {error.message}"
        )
        again = "Try again when that can be reached"
        if isinstance(error, InUseError):
            again = (
                "If another home reads it, a copy of this one or that of which this is a copy, leave it; else try again"
            )
        raise TransientError(
            message,
            f"{again}; or: penstock drop {known_as} --force, and by hand there:\n" + "\n".join(instance.by_hand()),
        ) from error
    return [], False


def _durable(catalog: Catalog, record: SourceRecord) -> Lsn | None:
    """Return how far the slot can have been confirmed by us; None where no log tells it and nothing was noted."""
    try:
        with closing(catalog.log(record.name).reader()) as reader:
            return reader.frontiers().durable
    except PenstockError:  # it was never whole, is gone already, or is damaged
        return record.durable or None


def _noted(catalog: Catalog, record: SourceRecord, instance: InstanceConfig, durable: Lsn | None) -> Lsn:
    """Note that, while there is a log that tells it."""
    if durable is None:
        return instance.start()
    catalog.note_durable(record.name, durable)
    return durable


def remove_files(home: Path, catalog: Catalog, name: str, *, keep_tables: bool = False) -> None:
    """Remove the change log of a source and what is in the home of it; of kept tables those stay that are whole."""
    catalog.log(name).remove()
    whole = {table.local for table in catalog.tables(name) if catalog.bases.first(name, table.local) is not None}
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
