"""``RETRY TABLE``: a table that had failed is captured anew, and copied afresh, while the others go on.

::

    retry:   catalog (table retrying)                                 by anybody
    renew:   described again ─▶ publication ─▶ catalog (instance, table pending)    by whoever runs the home
    capture: restarted; sees a new generation ─▶ log: history begins anew, error gone
    copy:    a snapshot after that ─▶ live

The new description has a higher generation than what the log holds of the table: that is how capture knows that it has
to begin anew, also when it was killed in between. The copy waits for it, so that nothing can be missed before it.
"""

from __future__ import annotations

from penstock.catalog.states import TableState
from penstock.catalog.store import Catalog, SourceRecord, TableRecord
from penstock.control.lifecycle import instance_of, spec_of, upstream
from penstock.errors import UsageError
from penstock.model import TableName
from penstock.sources.postgres.captured import CapturedTable
from penstock.sources.postgres.findings import Finding

__all__ = ["ask_retry", "renew", "to_retry"]


def ask_retry(catalog: Catalog, source: str, table: str) -> TableName:
    """Note that a failed table shall be captured anew; return its name upstream."""
    found = [record for record in catalog.tables(source) if table in (str(record.upstream), record.local)]
    if catalog.source(source) is None or not found:
        known = ", ".join(str(record.upstream) for record in catalog.tables(source)) or "none"
        message = f"source {source} has no table {table}"
        raise UsageError(message, f"Its tables are: {known}.")
    (record,) = found
    if record.state not in (TableState.FAILED, TableState.RETRYING):
        message = f"{record.upstream} is {record.state}, not failed"
        raise UsageError(message, "Only a failed table can be captured anew; see `penstock status`.")
    catalog.set_table(
        source, record.upstream, TableState.RETRYING, error=record.error or "", remedy=record.remedy or ""
    )
    return record.upstream


def to_retry(catalog: Catalog, source: str) -> list[TableRecord]:
    """Return the tables that shall be captured anew."""
    return [record for record in catalog.tables(source) if record.state is TableState.RETRYING]


def renew(catalog: Catalog, record: SourceRecord) -> list[str]:
    """Describe the tables that shall be captured anew, and publish them; return what there is to tell.

    Capture must not run meanwhile: it stores its config, too.
    """
    wanted = {table.upstream: table for table in to_retry(catalog, record.name)}
    instance = instance_of(record)
    with upstream(record.name, instance.connection):
        found = spec_of(record).look_again(wanted)
        renewed = {name: _next(t, instance.tables) for name, t in found.items() if isinstance(t, CapturedTable)}
        kept = [table for table in instance.tables if table.name not in renewed]
        config = instance.model_copy(update={"tables": (*kept, *renewed.values())})
        if renewed:
            config.repair()
    catalog.set_source(record.name, record.state, instance=config.model_dump_json())
    return [_note(catalog, table, found.get(name)) for name, table in wanted.items()]


def _note(catalog: Catalog, table: TableRecord, found: CapturedTable | Finding | None) -> str:
    """Write down what becomes of a table, and tell it."""
    if isinstance(found, CapturedTable):
        catalog.forget_bases(table.source, table.local)
        catalog.set_table(table.source, table.upstream, TableState.PENDING)
        return f"{table.source}: {table.upstream} is captured anew"
    why = found.why if found else "it is not there upstream, or not published"
    remedy = found.remedy if found else "Create or publish it again, then retry."
    catalog.set_table(table.source, table.upstream, TableState.FAILED, error=why, remedy=remedy)
    return f"{table.source}: {table.upstream} cannot be captured: {why}"


def _next(table: CapturedTable, before: tuple[CapturedTable, ...]) -> CapturedTable:
    generation = max((known.generation for known in before if known.name == table.name), default=0)
    return table.model_copy(update={"generation": generation + 1})
