"""Asking for a repair, and waiting for it: by anybody, in any process."""

from __future__ import annotations

import getpass
import time
from collections.abc import Callable, Sequence
from typing import Any

from penstock.catalog.repairs import Repair, Repairs, RepairState
from penstock.catalog.states import TableState
from penstock.catalog.store import Catalog, TableRecord
from penstock.control.named import named_source, named_table
from penstock.control.recorded import database_instance_of
from penstock.errors import DefiniteError, TransientError, UsageError
from penstock.sources.postgres.keys import key_of

__all__ = ["ask_repair", "wait_for_repair"]

_LOOK_SECONDS = 0.2


def ask_repair(
    catalog: Catalog, source: str, table: str, keys: Sequence[Any] | None, where: str | None, *, everything: bool
) -> Repair:
    """Note that rows of a table shall be put right: with these keys, those for which a condition holds, or all."""
    record = _readable_table(catalog, source, table)
    if (keys is not None) + (where is not None) + everything != 1:
        message = "which rows shall be repaired is not said, or said twice"
        raise UsageError(message, "Give keys, or a condition, or say that all are meant: one of the three.")
    names = _key(catalog, record)
    chosen: dict[str, Any] = {"all": True} if everything else {"where": where}
    if keys is not None:
        chosen = {"keys": [key_of(key, names) for key in keys]}
    return Repairs(catalog).ask(source, record.upstream, chosen, _who())


def wait_for_repair(catalog: Catalog, repair: Repair, is_running: Callable[[], bool]) -> Repair:
    """Wait until it is done; raise the reason why it cannot be."""
    while True:
        running = is_running()
        found = Repairs(catalog).get(repair.id)
        if found.state is RepairState.DONE:
            return found
        if found.state is RepairState.FAILED:
            raise DefiniteError(found.error or "the repair failed", found.remedy or "")
        if not running:
            message = f"nobody runs this home any more; the repair of {repair.table} waits"
            raise TransientError(message, "It is done when the home runs again: penstock run")
        time.sleep(_LOOK_SECONDS)


def _readable_table(catalog: Catalog, source: str, table: str) -> TableRecord:
    record = named_table(catalog, source, table)
    if record.state not in (TableState.LIVE, TableState.FAILED):
        message = f"{record.upstream} is {record.state}, so its rows cannot be repaired"
        raise UsageError(message, "Try again when `penstock status` shows it as live.")
    return record


def _key(catalog: Catalog, table: TableRecord) -> tuple[str, ...]:
    tables = database_instance_of(named_source(catalog, table.source)).tables
    key = next((captured.key for captured in tables if captured.name == table.upstream), ())
    if not key:
        message = f"{table.upstream} has no key by which rows could be repaired"
        raise UsageError(message, f"Copy it afresh: ALTER SOURCES {table.source} RETRY TABLE {table.upstream};")
    return key


def _who() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "unknown"
