"""The role of the connection and its privileges."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import psycopg

from penstock.sources.findings import Finding, error
from penstock.sources.postgres.options import Ownership, PostgresOptions
from penstock.sources.postgres.quoting import quoted

__all__ = ["Role", "find_role"]

_REPLICATING = (
    "rds_replication",
    "rds_superuser",
    "cloudsqlsuperuser",
    "cloudsqlreplica",
    "alloydbsuperuser",
    "azure_pg_admin",
    "azuresu",
)
"""Roles of cloud providers whose members may replicate, or may grant themselves that privilege."""
_ROLE = """
SELECT current_user, current_database(), rolsuper, rolsuper OR rolreplication
       OR EXISTS (SELECT 1 FROM pg_roles r WHERE r.rolname = ANY(%s) AND pg_has_role(r.oid, 'MEMBER')),
       rolsuper OR has_database_privilege(current_database(), 'CREATE'),
       EXISTS (SELECT 1 FROM pg_roles WHERE rolname = 'rds_replication')
  FROM pg_roles WHERE rolname = current_user
"""


@dataclass(frozen=True)
class Role:
    """The role of a connection: `replicates` and `creates` (schemas, publications) are its privileges."""

    name: str
    database: str
    superuser: bool
    replicates: bool
    creates: bool
    on_rds: bool

    def check(self, options: PostgresOptions) -> list[Finding]:
        """Return an error for each missing privilege."""
        found, name = [], quoted(self.name)
        if not self.replicates:
            why = f'role "{self.name}" has no REPLICATION attribute'
            fix = f"GRANT rds_replication TO {name};" if self.on_rds else f"ALTER ROLE {name} REPLICATION;"
            found.append(_as_administrator(why, fix))
        if not self.creates and options.publication_ownership is Ownership.MANAGED:
            why = f'role "{self.name}" has no privilege to create a publication in database "{self.database}"'
            found.append(_as_administrator(why, f"GRANT CREATE ON DATABASE {quoted(self.database)} TO {name};"))
        return found


def find_role(connection: psycopg.Connection[Any]) -> Role:
    """Look up the role of this connection."""
    row = connection.execute(_ROLE, (list(_REPLICATING),)).fetchone()
    if row is None:
        return Role(connection.info.user, connection.info.dbname, False, False, False, False)
    return Role(*row)


def _as_administrator(why: str, fix: str) -> Finding:
    found = error("role", why, sql=[fix])
    return Finding(found.level, found.object, why, f"As an administrator, run: {fix}", found.sql)
