"""What `check` has to say of a Postgres source: preflight, and where its slot stands, in the family's shape."""

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
from penstock.sources.postgres.slot import check_slot, find_slot
from penstock.sources.postgres.watch import PublicationWatch

__all__ = ["checked", "checked_position", "unreachable"]


def checked(found: Preflight, more: Sequence[Finding] = ()) -> Checked:
    """Tell what preflight found, and more."""
    capturable = {table.name for table in found.capturable()}
    findings = list(dict.fromkeys([*more, *found.findings()]))
    if not found.tables and not found.blocking():
        findings.append(error("database", "there is no table to capture", "Create one, or name another database."))
    ready = not more and not found.blocking() and bool(found.tables)
    return Checked(tuple((table.name, table.name in capturable) for table, _ in found.tables), tuple(findings), ready)


def checked_position(instance: PostgresInstanceConfig, durable: Lsn | None) -> list[Finding]:
    """Hold server, slot and catalogs against what is known; that somebody reads the slot is as it should be."""
    reached = Lsn(max(instance.start(), durable or Lsn.ZERO))
    with connect(instance.connection) as connection:
        try:
            check_end(connection, instance, reached)
            check_slot(find_slot(connection, instance.slot), instance.slot, instance.source, reached)
            ended = PublicationWatch(instance, reached).look(connection, reached)
        except TransientError:  # somebody reads the slot, and looks; or a standby has just started
            return []
        except DefiniteError as lost:
            return [error("source", lost.message, lost.hint)]
    return [error(each.table, each.message, each.hint) for each in ended]


def unreachable(refused: DefiniteError) -> Checked:
    """Tell that the database could not be asked at all."""
    return Checked((), (error("connection", refused.message, refused.hint),), ready=False)
