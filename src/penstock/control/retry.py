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

from dataclasses import replace

from penstock.catalog.states import TableState
from penstock.catalog.store import Catalog, SourceRecord, TableRecord
from penstock.control.lifecycle import instance_of, spec_of, upstream
from penstock.errors import DefiniteError, PenstockError, UsageError
from penstock.model import TableName
from penstock.sources.postgres.captured import CapturedTable

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
    catalog.set_table(source, record.upstream, TableState.RETRYING, error=record.error or "", remedy=record.remedy or "")
    return record.upstream


def to_retry(catalog: Catalog, source: str) -> list[TableRecord]:
    """Return the tables that shall be captured anew."""
    return [record for record in catalog.tables(source) if record.state is TableState.RETRYING]


def renew(catalog: Catalog, record: SourceRecord) -> list[str]:
    """Describe the tables that shall be captured anew, and publish them; return what there is to tell.

    Capture must not run meanwhile: it stores its config, too.
    """
    wanted = to_retry(catalog, record.name)
    spec, instance = spec_of(record), instance_of(record)
    with upstream(record.name, instance.connection):
        found = spec.preflight(captured=[table.name for table in instance.tables])
        chosen = {table.name: table.captured() for table in found.capturable()}
        refused = found.refused()
        renewed = {t.upstream: _next(chosen[t.upstream], instance.tables) for t in wanted if t.upstream in chosen}
        kept = [table for table in instance.tables if table.name not in renewed]
        config = instance.model_copy(update={"tables": (*kept, *renewed.values())})
        if renewed:
            config.repair()
    catalog.set_source(record.name, record.state, instance=config.model_dump_json())
    told = []
    for table in wanted:
        if table.upstream in renewed:
            catalog.forget_bases(record.name, table.local)
            catalog.set_table(record.name, table.upstream, TableState.PENDING)
            told.append(f"{record.name}: {table.upstream} is captured anew")
        else:
            finding = refused.get(table.upstream)
            why = finding.why if finding else "it is not there upstream"
            remedy = finding.remedy if finding else "Create it again, then retry."
            catalog.set_table(record.name, table.upstream, TableState.FAILED, error=why, remedy=remedy)
            told.append(f"{record.name}: {table.upstream} cannot be captured: {why}")
    return told


def _next(table: CapturedTable, before: tuple[CapturedTable, ...]) -> CapturedTable:
    generation = max((known.generation for known in before if known.name == table.name), default=0)
    return table.model_copy(update={"generation": generation + 1})
