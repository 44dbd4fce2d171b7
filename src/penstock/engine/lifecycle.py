"""Creating and dropping sources, so that a crash at any point leaves no object that is not recorded.

::

    create:  catalog (creating) ─▶ publication ─▶ slot ─▶ log ─▶ catalog (ready) ─▶ started by the running home
    drop:    catalog (dropping) ─▶ stopped by the running home ─▶ slot ─▶ publication ─▶ log, files ─▶ catalog (removed)

The catalog is written first and cleared last. A source that was found half-created is removed, and one that was found
half-dropped is finished: by the running home, or at the next start. One process does this at a time (`lifecycle_lock`),
so that work in progress is never taken for leftovers. Nothing is removed of a source that another process is using.
Every step can be repeated.

The slot and publication may belong to another home: a copy of this one, or the original. Then nothing is removed, and
the source stays as it was.

While the upstream cannot be reached, such a source waits, and the others run. Dropped with force, it is removed at
once; what is left upstream stays in the catalog as a debt, which each later start tries to settle.

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
from penstock.changelog.log_url import log_at
from penstock.engine.catalog_records import debt_of, instance_of
from penstock.engine.locks import source_holder, take_source
from penstock.engine.sealed_secrets import forget_unused
from penstock.engine.shards import Part, parts_of, reject_shard, reject_taken, reject_unlike
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
from penstock.layout import capture_log_path, folder_name, lake_path, state_path
from penstock.positions import Lsn
from penstock.private_file import create_folder
from penstock.sources.interface import InstanceConfig, Source

__all__ = ["HALF", "TABLES", "create_source", "drop_source", "recover", "remove_files", "remove_source"]

TABLES = "tables"
"""The reader that represents the base tables: it needs the history that has not been applied to them."""
HALF = (SourceState.CREATING, SourceState.DROPPING)
"""States of an incomplete source: a process is creating or dropping it, or died while doing so."""

_RELEASE_SECONDS = 60.0
_RECOVERY_LOCK_SECONDS = 1.0


def create_source(home: Path, catalog: Catalog, source: Source) -> None:
    """Create a source, or all of its shards: all objects that it needs, upstream and here, or none of them."""
    names = [shard.name for shard in source.shards().values()]
    _reject_leftovers(home, catalog, source, [source.name, *names])
    parts = parts_of(source)
    _reject_leftovers(home, catalog, source, [part.instance.source for part in parts])
    reject_unlike(parts)
    instances = [part.instance for part in parts]
    catalog.add_sources([(_record(source, part), _tables(part.instance)) for part in parts])
    prepared: list[InstanceConfig] = []
    for instance in instances:
        try:
            prepared.append(_prepared(home, catalog, instance))
        except BaseException as error:
            begun = prepared if isinstance(error, AlreadyExistsError) else [*prepared, instance]
            _roll_back(home, catalog, instances, begun)
            raise
    catalog.mark_created({instance.source: instance.model_dump_json() for instance in prepared})


def _record(whole: Source, part: Part) -> SourceRecord:
    return SourceRecord(
        part.instance.source,
        part.source.NAME,
        part.source.model_dump_json(),
        part.instance.model_dump_json(),
        SourceState.CREATING,
        log=part.source.log,
        part_of=None if part.label is None else whole.name,
        shard=part.label,
    )


def _prepared(home: Path, catalog: Catalog, instance: InstanceConfig) -> InstanceConfig:
    prepared = instance.prepare()
    create_folder(lake_path(home, instance.source))  # before Spark does, which would let others read it
    _create_log(catalog.log(instance.source), prepared.start())
    return prepared


def _reject_leftovers(home: Path, catalog: Catalog, source: Source, names: Sequence[str]) -> None:
    """Reject names that sources have, or had: logs or tables of these names exist."""
    reject_taken(catalog, names)
    for name in names:
        _reject_existing_log(home, name, source.log)
        _reject_kept_tables(home, name)


def _reject_existing_log(home: Path, name: str, url: str | None) -> None:
    """Reject an existing log: in Kafka it may belong to another home, whose writer would be fenced."""
    log = log_at(home, name, url)
    if log.exists():
        message = f"a change log of source {name} already exists: {log}"
        raise DefiniteError(
            message, "Choose another name for the source or another prefix in the URL of its log, or remove the log."
        )


def _reject_kept_tables(home: Path, name: str) -> None:
    """Reject existing tables: a dropped source of this name may have kept them, and they belong to the user."""
    lake = lake_path(home, name)
    if lake.exists() and any(lake.iterdir()):
        message = f"tables of an earlier source {name} exist in {lake}"
        raise DefiniteError(message, "Move or remove that folder, or choose another name for the source.")


def _roll_back(
    home: Path, catalog: Catalog, instances: Sequence[InstanceConfig], begun: Sequence[InstanceConfig]
) -> None:
    """Roll back a failed create; the catalog keeps sources whose upstream is unreachable for `recover`."""
    touched = {instance.source for instance in begun}
    for instance in instances:
        try:
            if instance.source in touched:
                instance.cleanup()
            remove_files(home, catalog, instance.source)
        except PenstockError:
            continue
        catalog.remove_source(instance.source)


def drop_source(
    home: Path, catalog: Catalog, name: str, *, force: bool = False, keep_tables: bool = False
) -> list[str]:
    """Drop a source and the objects that it created; return statements to run by hand for objects left upstream.

    If a shard cannot be dropped, the other shards are dropped first; then its error is raised.
    """
    records = catalog.parts(name)
    if not records:
        known = ", ".join(dict.fromkeys(source.known_as for source in catalog.sources())) or "none"
        message = f"source {name} does not exist"
        raise SourceNotFoundError(message, f"Sources of this home: {known}.")
    reject_shard(records[0], name)
    _reject_sinks(catalog, name)
    catalog.begin_drop([record.name for record in records], keep_tables=keep_tables)
    left, kept = list[str](), list[PenstockError]()
    for record in records:
        try:
            left += _drop(home, catalog, record.name, _RELEASE_SECONDS, force=force)
        except NotOwnedError as error:
            if record.state not in HALF:  # nothing was removed yet
                catalog.cancel_drop(record)
            kept.append(error)
        except TransientError as error:
            kept.append(error)
    if kept:
        raise kept[0]
    return left


def _reject_sinks(catalog: Catalog, name: str) -> None:
    """Raise `DefiniteError` if sinks read the source."""
    sinks = [record.name for record in catalog.sinks.all(name)]
    if sinks:
        message = f"source {name} is not dropped: sinks read it: {', '.join(sinks)}"
        raise DefiniteError(message, f"Drop them first: {' '.join(f'DROP SINK {sink};' for sink in sinks)}")


def _drop(home: Path, catalog: Catalog, name: str, seconds: float, *, force: bool = False) -> list[str]:
    """Remove a source that is `dropping`, once no process holds its lock."""
    lock = take_source(home, name, seconds)
    if lock is None:
        raise _still_in_use(home, name)
    try:
        record = catalog.source(name)
        return [] if record is None else remove_source(home, catalog, record, force=force)
    finally:
        lock.release()


def _still_in_use(home: Path, name: str) -> TransientError:
    pid = source_holder(home, name)
    message = f"source {name} is not dropped yet: the Penstock that runs it (pid {pid}) still uses it"
    return TransientError(message, "It is dropped when that process has finished; see `penstock status`.")


def recover(home: Path, catalog: Catalog) -> list[PenstockError]:
    """Roll back unfinished creates, complete unfinished drops, settle debts; return the errors of those that wait.

    An unreachable upstream does not prevent the rest. The caller must hold the lifecycle lock.
    """
    waiting: list[PenstockError] = []
    for record in catalog.sources():
        if record.state in HALF:
            catalog.begin_drop([record.name])
            try:
                _drop(home, catalog, record.name, _RECOVERY_LOCK_SECONDS)
            except (TransientError, NotOwnedError) as error:
                catalog.set_source(record.name, SourceState.DROPPING, error=error.message, hint=error.hint)
                waiting.append(error)
    unsettled = [_settle(catalog, debt) for debt in catalog.debts()]
    forget_unused(home, catalog)
    return waiting + [left for left in unsettled if left is not None]


def _settle(catalog: Catalog, debt: Debt) -> PenstockError | None:
    """Remove the objects that a source dropped by force left upstream, unless a new source uses the same names."""
    instance = debt_of(debt)
    try:
        if not any(instance.shares_external_objects(other) for other in map(instance_of, catalog.sources())):
            instance.settle(debt.durable)
    except NotOwnedError:  # the objects belong to another source: nothing is left of this one
        pass
    except PenstockError as error:
        catalog.defer(debt, error.message)
        message = f"the upstream objects of dropped source {debt.source} could not be removed: {error.message}"
        return TransientError(
            message, "\n".join(["Penstock will retry; or run by hand:", *instance.cleanup_statements()])
        )
    catalog.settle(debt)
    return None


def _tables(instance: InstanceConfig) -> list[TableRecord]:
    local, left_out = local_names(instance), instance.left_out()
    pending = [TableRecord(instance.source, t.name, local[t.name], TableState.PENDING) for t in instance.produced()]
    failed = [
        TableRecord(instance.source, name, local[name], TableState.FAILED, *why) for name, why in left_out.items()
    ]
    return pending + failed


def _create_log(log: ChangeLog, start: Lsn) -> None:
    """Create the log, and register the base tables as its reader: no history is removed before it is applied."""
    log.create(start)
    with closing(log.reader()) as reader:
        reader.set_lease(TABLES, start)


def remove_source(home: Path, catalog: Catalog, record: SourceRecord, *, force: bool) -> list[str]:
    """Remove a source, with `force` even if its upstream is unreachable; return statements to run by hand there."""
    instance, durable = instance_of(record), _durable(catalog, record)
    left, owed = _clean_upstream(instance, record.known_as, durable, force)
    debt = (record.kind, instance.model_dump_json(), _recorded(catalog, record, instance, durable)) if owed else None
    remove_files(home, catalog, record.name, keep_tables=record.keep_tables)
    catalog.remove_source(record.name, debt)
    return left


def _clean_upstream(
    instance: InstanceConfig, known_as: str, durable: Lsn | None, force: bool
) -> tuple[list[str], bool]:
    """Remove the upstream objects; return statements to run by hand, and whether the rest is a debt to retry."""
    if not instance.cleanup_statements():  # all objects belong to the user
        return [], False
    try:
        instance.require_own(durable)
        instance.cleanup()
    except NotOwnedError as error:
        if force:
            where, *statements = instance.cleanup_statements()
            why = f"-- {error.message}; run these only if no other home uses these objects:"
            return [where, why, *(f"-- {statement}" for statement in statements)], False
        message = f"source {instance.source} is not dropped: {error.message}"
        hint = (
            f"{error.hint} To drop the source from this home only, and leave the upstream objects: penstock drop"
            f" {known_as} --force. It prints the statements that remove them."
        )
        raise NotOwnedError(message, hint) from error
    except PenstockError as error:
        if force:
            return instance.cleanup_statements(), True
        message = (
            f"source {instance.source} is not dropped yet: its upstream objects could not be removed: {error.message}"
        )
        again = "Try again when the upstream is reachable"
        if isinstance(error, InUseError):
            again = (
                "If another home reads it, a copy of this one or its original, leave it in place; otherwise try again"
            )
        raise TransientError(
            message,
            f"{again}. Or: penstock drop {known_as} --force, and upstream:\n"
            + "\n".join(instance.cleanup_statements()),
        ) from error
    return [], False


def _durable(catalog: Catalog, record: SourceRecord) -> Lsn | None:
    """Return the last position that this source can have confirmed; None if neither log nor catalog records it."""
    try:
        with closing(catalog.log(record.name).reader()) as reader:
            return reader.frontiers().durable
    except PenstockError:  # the log is incomplete, already removed, or damaged
        return record.durable or None


def _recorded(catalog: Catalog, record: SourceRecord, instance: InstanceConfig, durable: Lsn | None) -> Lsn:
    """Record that position in the catalog, before the log is removed."""
    if durable is None:
        return instance.start()
    catalog.note_durable(record.name, durable)
    return durable


def remove_files(home: Path, catalog: Catalog, name: str, *, keep_tables: bool = False) -> None:
    """Remove the change log and files of a source; `keep_tables` keeps base tables with a complete snapshot."""
    catalog.log(name).remove()
    whole = [table.local for table in catalog.tables(name) if catalog.bases.first(name, table.local) is not None]
    kept = set(map(folder_name, whole)) if keep_tables else set[str]()
    lake = lake_path(home, name)
    for path in [path for path in lake.glob("*") if path.name not in kept] if kept else [lake]:
        _remove_tree(path)
    _remove_tree(state_path(home, name))
    capture_log_path(home, name).unlink(missing_ok=True)


def _remove_tree(path: Path) -> None:
    """Remove a folder, if it exists; raise an error rather than leave a part of it."""
    while path.exists():
        try:
            shutil.rmtree(path)
        except FileNotFoundError:  # another process removes it, too
            continue
        except OSError as error:
            message = f"{path} cannot be removed: {error.strerror}"
            raise TransientError(message, "Fix the file system error; Penstock will retry.") from error
