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

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from penstock.catalog.states import SourceState, TableState
from penstock.catalog.store import Catalog, Debt, SourceRecord, TableRecord
from penstock.changelog.interface import ChangeLog
from penstock.changelog.place import log_at
from penstock.control.local_names import local_names
from penstock.control.lock import source_holder, take_source
from penstock.control.recorded import debt_of, instance_of
from penstock.control.removal import remove_files, remove_source
from penstock.control.sealing import forget_unused
from penstock.control.shards import refuse_shard, refuse_taken, refuse_unlike
from penstock.errors import DefiniteError, NoSource, PenstockError, Taken, TransientError
from penstock.layout import lake_path
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
            begun = prepared if isinstance(error, Taken) else [*prepared, instance]
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
        raise NoSource(message, f"The sources of this home: {known}.")
    refuse_shard(records[0], name)
    catalog.dropping([record.name for record in records], keep_tables=keep_tables)
    left, kept = list[str](), list[TransientError]()
    for record in records:
        try:
            left += _drop(home, catalog, record.name, _LET_GO_SECONDS, force=force)
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
            except TransientError as error:
                catalog.set_source(record.name, SourceState.DROPPING, error=error.message, remedy=error.remedy)
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
