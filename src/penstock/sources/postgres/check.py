"""`check` for a Postgres source: preflight, and for an existing source also slot, publication and catalogs."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.errors import DefiniteError, TransientError
from penstock.positions import Lsn
from penstock.sources.findings import Finding, error
from penstock.sources.interface import Checked
from penstock.sources.postgres.config import PostgresInstanceConfig
from penstock.sources.postgres.connection import connect
from penstock.sources.postgres.continuity import check_end
from penstock.sources.postgres.preflight import Preflight
from penstock.sources.postgres.publication_watch import PublicationWatch
from penstock.sources.postgres.slot import check_slot, find_slot

__all__ = ["check_position", "check_report", "unreachable_report"]


def check_report(found: Preflight, more: Sequence[Finding] = ()) -> Checked:
    """Return the report of `check`: the findings of preflight, and `more`."""
    capturable = {table.name for table in found.capturable()}
    findings = list(dict.fromkeys([*more, *found.findings()]))
    if not found.tables and not found.blocking():
        findings.append(error("database", "has no table to capture", "Create one, or name another database."))
    ready = not more and not found.blocking() and bool(found.tables)
    return Checked(tuple((table.name, table.name in capturable) for table, _ in found.tables), tuple(findings), ready)


def check_position(instance: PostgresInstanceConfig, durable: Lsn | None) -> list[Finding]:
    """Compare server, slot and catalogs with the recorded state; a slot in use by the running capture is no error."""
    reached = Lsn(max(instance.start(), durable or Lsn.ZERO))
    with connect(instance.connection) as connection:
        try:
            check_end(connection, instance, reached)
            check_slot(find_slot(connection, instance.slot), instance.slot, instance.source, reached)
            ended = PublicationWatch(instance, reached).check(connection, reached)
        except (
            TransientError
        ):  # the running capture reads the slot and does these checks; or a standby has just started
            return []
        except DefiniteError as lost:
            return [error("source", lost.message, lost.hint)]
    return [error(each.table, each.message, each.hint) for each in ended]


def unreachable_report(refused: DefiniteError) -> Checked:
    """Return the report for a database that cannot be reached."""
    return Checked((), (error("connection", refused.message, refused.hint),), ready=False)
