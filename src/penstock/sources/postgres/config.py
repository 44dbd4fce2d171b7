"""The configuration of one Postgres capture instance, and the objects that it creates on the server."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import psycopg
from pydantic import Field

from penstock.errors import DefiniteError, NotOwnedError, PenstockError, TransientError
from penstock.fields import with_fields
from penstock.model import TableName
from penstock.positions import Lsn
from penstock.sources.findings import Finding
from penstock.sources.interface import AlteredTables, InstanceConfig
from penstock.sources.postgres.captured_table import CapturedTable
from penstock.sources.postgres.connection import (
    connect,
    connect_replication,
    database_name,
    place,
    translate_errors,
    translate_prepare_errors,
)
from penstock.sources.postgres.options import (
    Heartbeat,
    NewTables,
    OnSchemaChange,
    Ownership,
    Rules,
    SnapshotMode,
    Watermarks,
)
from penstock.sources.postgres.quoting import quoted
from penstock.sources.postgres.replication.catalog_facts import Facts, read_facts
from penstock.sources.postgres.replication.heartbeat import silent_since
from penstock.sources.postgres.replication.meta_tables import (
    create_meta_tables,
    drop_meta_tables,
    meta_tables,
    restore_meta_tables,
)
from penstock.sources.postgres.replication.publication import (
    alter_publication,
    create_publication,
    drop_publication,
    publication_comment,
)
from penstock.sources.postgres.replication.server_status import ServerWatch, server_status
from penstock.sources.postgres.replication.slot import (
    SlotFlags,
    create_slot,
    drop_slot,
    find_slot,
    identify,
    slot_problem,
)
from penstock.sources.postgres.replication.wal import wal_insert_position
from penstock.sources.produced_table import ProducedTable
from penstock.sources.upstream_status import UpstreamStatus, UpstreamWatch

__all__ = ["PostgresInstanceConfig"]

_RELEASE_SECONDS = 10.0
_SETTLE_SECONDS = 3
_QUERY_SECONDS = 2
_COPIED_HOME = (
    "Another home may use the upstream objects: a copy of this one, or its original. To remove them, drop the source"
    " there."
)
_RENAMED = """
SELECT k.oid, n.nspname, c.relname FROM unnest(%s::bigint[], %s::text[], %s::text[]) AS k(oid, schema, name)
  JOIN pg_class c ON c.oid = k.oid::oid JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE NOT EXISTS (SELECT 1 FROM pg_class o JOIN pg_namespace s ON s.oid = o.relnamespace
                    WHERE s.nspname = k.schema AND o.relname = k.name)
"""


class PostgresInstanceConfig(InstanceConfig):
    """The configuration of one capture process, and the identity of the objects that it created upstream."""

    connection: str
    publication: str
    slot: str
    tables: tuple[CapturedTable, ...]
    refused: dict[str, tuple[str, str]] = Field(default_factory=dict)
    publication_ownership: Ownership = Ownership.MANAGED
    slot_ownership: Ownership = Ownership.MANAGED
    rules: Rules = Rules.OPEN
    flags: SlotFlags = SlotFlags()
    new_tables: NewTables = NewTables.CAPTURE
    on_schema_change: OnSchemaChange = OnSchemaChange.STOP
    heartbeat: Heartbeat | None = None
    heartbeat_interval: float = 10.0
    identity: str = ""
    """Generated with the source, and contained in every watermark and heartbeat: it distinguishes them from others."""
    snapshot: SnapshotMode = SnapshotMode.PARALLEL
    snapshot_wait: str = "1 hour"
    snapshot_sessions: int = 0
    snapshot_rate: str = ""
    chunk_rows: int = 20_000
    chunk_pause: str = "0 s"
    watermarks: Watermarks = Watermarks.MESSAGE
    accepted_interference: int = 0
    """Foreign writes to our watermark and heartbeat tables up to this position are accepted."""
    standby: bool = False
    """Whether the server was a standby when capture began."""
    start_lsn: int = 0
    system: str = ""
    timeline: int = 0
    forked_at: int = 0
    """The position at which this timeline began; 0 for the first timeline, and until capture has connected."""
    facts: Facts | None = None
    """The catalog facts of publication and tables, as of the last check."""

    def start(self) -> Lsn:
        """Return the position after which the slot decodes every commit."""
        return Lsn(self.start_lsn)

    def prepare(self) -> Self:
        """Create meta tables, publication and slot, in this order: a slot cannot decode with a newer publication."""
        with (
            translate_prepare_errors(self.source, self.connection),
            connect(self.connection) as connection,
            connect_replication(self.connection) as replication,
        ):
            system, timeline = identify(replication)
            standby = connection.execute("SELECT pg_is_in_recovery()").fetchone() == (True,)
            meta, created = self.meta_tables(), False
            claimed = create_meta_tables(connection, meta, self.identity) if meta else Lsn.ZERO
            try:
                if self._owns_publication:
                    create_publication(connection, self.publication, self.tables, meta, self._mark)
                    created = True
                start = self._create_slot(replication) if self._owns_slot else self._use_slot(connection)
                facts = read_facts(connection, self.publication, [table.oid for table in self.tables])
            except BaseException:
                if created:
                    drop_publication(connection, self.publication)
                drop_meta_tables(connection, meta, self.identity)
                raise
        known = {"start_lsn": int(start), "system": system, "timeline": timeline, "standby": standby}
        return with_fields(self, **known, accepted_interference=int(claimed), facts=facts)

    def meta_tables(self) -> tuple[TableName, ...]:
        """Return the upstream tables for watermarks and heartbeats; none if these are logical messages."""
        return meta_tables(self.watermarks, self.heartbeat)

    def accept_interference(self) -> Self:
        """Restore our rows in the meta tables, and accept all foreign writes to them so far.

        An operator calls this who knows the origin of those writes. Capture must not be running; it resumes with the
        returned config.
        """
        with translate_prepare_errors(self.source, self.connection), connect(self.connection) as connection:
            accepted = restore_meta_tables(connection, self.meta_tables(), self.identity)
        return with_fields(self, accepted_interference=int(accepted))

    def _create_slot(self, replication: psycopg.Connection[Any]) -> Lsn:
        flags = self.flags
        return create_slot(
            *(replication, self.slot), temporary=flags.temporary, two_phase=flags.two_phase, failover=flags.failover
        )

    def _use_slot(self, connection: psycopg.Connection[Any]) -> Lsn:
        """Return the position of a slot that the user manages; raise if it cannot be used."""
        state = find_slot(connection, self.slot)
        problem = f'replication slot "{self.slot}" does not exist' if state is None else slot_problem(state, self.flags)
        if state is None or problem is not None:
            raise DefiniteError(str(problem), "Create it, or name another one.")
        return state.confirmed

    def alter_tables(
        self, new: Sequence[ProducedTable], dropped: Collection[TableName], refused: Mapping[TableName, Finding]
    ) -> AlteredTables:
        """Alter the publication. A table that Postgres refuses to publish is refused alone."""
        config = self._with_tables(new, dropped, refused)
        config, published, unpublished = config.republish([table.name for table in new])
        if unpublished:
            facts, refused = config.facts, {**refused, **unpublished}
            new = [table for table in new if table.name not in unpublished]
            config = with_fields(self._with_tables(new, dropped, refused), facts=facts)
        added = {table.name for table in new}
        tables = [with_fields(t, published=int(published)) if t.name in added else t for t in config.tables]
        config = with_fields(config, tables=tuple(tables)).without_facts(added | refused.keys())
        return AlteredTables(config, published, unpublished)

    def restarted(self, tables: Sequence[ProducedTable]) -> Self:
        """Return the config with these tables, in place of those of the same names."""
        return self._with_tables(tables, (), {})

    def _with_tables(
        self, new: Sequence[ProducedTable], dropped: Collection[TableName], refused: Mapping[TableName, Finding]
    ) -> Self:
        added = [table for table in new if isinstance(table, CapturedTable)]
        replaced = {*dropped, *(table.name for table in added)}
        tables = (*(table for table in self.tables if table.name not in replaced), *added)
        settled = {str(name) for name in replaced} | {str(table.name) for table in tables}
        left_out = {**self.refused, **{str(name): (why.why, why.hint) for name, why in refused.items()}}
        return with_fields(
            self, tables=tables, refused={name: why for name, why in left_out.items() if name not in settled}
        )

    def republish(self, resnapshotted: Collection[TableName]) -> tuple[Self, Lsn, dict[TableName, Finding]]:
        """Add the `resnapshotted` tables (new or captured again) to our publication, and remove dropped ones from it.

        Return the config with the altered publication's facts, a position after the change, and an error for each table
        that Postgres refused to publish. If another session altered the publication before, the facts stay as recorded,
        so that capture detects and reports the difference.
        """
        refused: dict[TableName, Finding] = {}
        with translate_prepare_errors(self.source, self.connection), connect(self.connection) as connection:
            before = read_facts(connection, self.publication, []).publication
            if self._owns_publication:
                refused = alter_publication(
                    connection, self.publication, self.tables, resnapshotted, self.meta_tables()
                )
            after = read_facts(connection, self.publication, []).publication
            position = wal_insert_position(connection)
        if self.facts is None or self.facts.publication != before:
            return self, position, refused
        return with_fields(self, facts=with_fields(self.facts, publication=after)), position, refused

    def without_facts(self, tables: Collection[TableName]) -> Self:
        """Return the config without the facts of tables that are new or captured again."""
        if self.facts is None:
            return self
        restarted = {table.oid for table in self.tables if table.name in tables}
        kept = {oid: facts for oid, facts in self.facts.tables.items() if oid not in restarted}
        return with_fields(self, facts=with_fields(self.facts, tables=kept))

    def renamed_tables(self, tables: Collection[TableName]) -> dict[TableName, TableName]:
        """Return the current name of each of these tables that was renamed or moved, if its old name is unused.

        Tables are identified by OID.
        """
        known = {table.oid: table.name for table in self.tables if table.name in tables}
        names = list(known.values())
        parameters = (list(known), [name.schema for name in names], [name.name for name in names])
        with translate_errors(self.connection), connect(self.connection) as connection:
            found = connection.execute(_RENAMED, parameters).fetchall()
        return {known[oid]: TableName(schema, name) for oid, schema, name in found}

    def cleanup(self) -> list[str]:
        """Drop managed slot, publication and meta tables; wait some seconds for a stopping capture to release the slot.

        Raise `NotOwnedError`, and drop nothing, if the publication of this name was not created by this source.
        """
        removed = []
        with translate_errors(self.connection), connect(self.connection) as connection:
            self._require_own_publication(connection)
            if self._owns_slot and _drop_released(connection, self.slot):
                removed.append(f"slot {self.slot}")
            if self._owns_publication and drop_publication(connection, self.publication):
                removed.append(f"publication {self.publication}")
            removed += drop_meta_tables(connection, self.meta_tables(), self.identity)
        return removed

    def require_own(self, durable: Lsn | None) -> None:
        """Raise `NotOwnedError` if the slot is confirmed beyond the end of our log, or the publication is not ours.

        A copied home has everything that the original has, including its identity. Only the slot distinguishes them,
        once one of them has captured further.
        """
        with translate_errors(self.connection), connect(self.connection) as connection:
            self._require_own(connection, durable)

    def settle(self, durable: Lsn) -> list[str]:
        """Clean up long after capture ended; use a short timeout, so that an unreachable server does not delay others.

        If a source of this name was created again, only meta tables with our identity still belong to this one.
        """
        with translate_errors(self.connection), connect(self.connection, connect_timeout=_SETTLE_SECONDS) as connection:
            if self._owns_publication and publication_comment(connection, self.publication) not in (None, self._mark):
                return drop_meta_tables(connection, self.meta_tables(), self.identity)
            self._require_own(connection, durable)
        return self.cleanup()

    def _require_own(self, connection: psycopg.Connection[Any], durable: Lsn | None) -> None:
        self._require_own_publication(connection)
        state = find_slot(connection, self.slot) if self._owns_slot else None
        if state is None:
            return
        if durable is None and self.start_lsn:
            message = f'cannot verify that replication slot "{self.slot}" belongs to this home: no readable change log'
            raise NotOwnedError(message, _COPIED_HOME)
        if durable is None and self._owns_publication and publication_comment(connection, self.publication) is None:
            message = f'replication slot "{self.slot}" exists without its publication, which is created before the slot'
            raise NotOwnedError(message, _COPIED_HOME)
        if durable is not None and state.confirmed > durable:
            message = (
                f'replication slot "{self.slot}" is confirmed up to {state.confirmed}, but the change log of this home'
                f" ends at {durable}: another home reads the slot"
            )
            raise NotOwnedError(message, _COPIED_HOME)

    def _require_own_publication(self, connection: psycopg.Connection[Any]) -> None:
        comment = publication_comment(connection, self.publication) if self._owns_publication else None
        if comment in (None, self._mark):
            return
        message = f'publication "{self.publication}" was not created by this source: its comment differs'
        statement = f"COMMENT ON PUBLICATION {quoted(self.publication)} IS '{self._mark}';"
        raise NotOwnedError(message, f"If it does belong to this source, run in Postgres: {statement}")

    def cleanup_statements(self) -> list[str]:
        """Return the SQL statements that remove the managed objects, to be run in psql."""
        slot = [f"SELECT pg_drop_replication_slot('{self.slot}');"] if self._owns_slot else []
        publication = [f"DROP PUBLICATION IF EXISTS {quoted(self.publication)};"] if self._owns_publication else []
        meta = [f"DROP TABLE IF EXISTS {table}; -- if Penstock created it" for table in self.meta_tables()]
        statements = [*slot, *publication, *meta]
        return [f"-- on {place(self.connection)}", *statements] if statements else []

    def produced(self) -> Sequence[CapturedTable]:
        """Return the captured tables."""
        return self.tables

    def left_out(self) -> Mapping[TableName, tuple[str, str]]:
        """Return the tables that cannot be captured, with reason and hint."""
        return {TableName.parse(name): why for name, why in self.refused.items()}

    def place(self) -> str:
        """Return host, port and database."""
        return place(self.connection)

    def database_name(self) -> str:
        """Return the database of the connection."""
        return database_name(self.connection)

    def shares_external_objects(self, other: InstanceConfig) -> bool:
        """Return whether another source uses the same slot."""
        if not isinstance(other, PostgresInstanceConfig):
            return False
        return (self.connection, self.slot) == (other.connection, other.slot)

    def waiting(self, state: Path) -> str | None:
        """Return since when the server has not answered, if that is more than some seconds."""
        since = silent_since(state)
        return None if since is None else f"no answer from {self.place()} since {since.isoformat(timespec='seconds')}"

    def upstream_status(self) -> UpstreamStatus | None:
        """Return the end of the WAL, the clock and the slot; None if the server does not answer."""
        try:
            with connect(self.connection, connect_timeout=_QUERY_SECONDS, answers_within=_QUERY_SECONDS) as connection:
                return server_status(connection, self.slot)
        except (PenstockError, psycopg.Error):
            return None

    def upstream_watch(self) -> UpstreamWatch:
        """Return what queries the server repeatedly, over one connection."""
        seconds = _QUERY_SECONDS
        return ServerWatch(lambda: connect(self.connection, connect_timeout=seconds, answers_within=seconds), self.slot)

    def makes(self) -> list[str]:
        """Return the names of the managed objects upstream."""
        publication = [f"publication {self.publication}"] if self._owns_publication else []
        slot = [f"slot {self.slot}"] if self._owns_slot else []
        return [*(f"table {table}" for table in self.meta_tables()), *publication, *slot]

    def kept(self) -> list[str]:
        """Return the names of the user's objects, which are never dropped."""
        slot = [] if self._owns_slot else [f"slot {self.slot}"]
        return slot + ([] if self._owns_publication else [f"publication {self.publication}"])

    @property
    def _mark(self) -> str:
        """The comment on a managed publication: it identifies its source."""
        return f"Penstock source {self.source}, identity {self.identity}"

    @property
    def _owns_slot(self) -> bool:
        return self.slot_ownership is Ownership.MANAGED

    @property
    def _owns_publication(self) -> bool:
        return self.publication_ownership is Ownership.MANAGED


def _drop_released(connection: psycopg.Connection[Any], slot: str) -> bool:
    deadline = time.monotonic() + _RELEASE_SECONDS
    while True:
        try:
            return drop_slot(connection, slot)
        except (TransientError, psycopg.errors.ObjectInUse):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)
