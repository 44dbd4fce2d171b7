"""What goes with a source: what it made upstream, its change log, its base tables, what the catalog knows of it.

Each step can be done twice; the catalog is cleared last, so that whoever comes after a crash finds what is left.
"""

from __future__ import annotations

import shutil
from contextlib import closing
from pathlib import Path

from penstock.catalog.store import Catalog, SourceRecord
from penstock.control.recorded import instance_of
from penstock.errors import PenstockError, TransientError
from penstock.layout import capture_log_path, lake_path, state_path
from penstock.positions import Lsn
from penstock.sources.family import InstanceConfig

__all__ = ["remove_files", "remove_source"]


def remove_source(home: Path, catalog: Catalog, record: SourceRecord, *, force: bool) -> list[str]:
    """Remove all of a source; by force, also where the outside cannot be reached: return what is left there to do."""
    instance = instance_of(record)
    left = _clean_upstream(instance, record.known_as, force)
    debt = (record.kind, instance.model_dump_json(), _noted_durable(catalog, record, instance)) if left else None
    remove_files(home, catalog, record.name, keep_tables=record.keep_tables)
    catalog.remove_source(record.name, debt)
    return left


def _clean_upstream(instance: InstanceConfig, known_as: str, force: bool) -> list[str]:
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
            f"Try again when that can be reached; or: penstock drop {known_as} --force, and by hand there:\n"
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
