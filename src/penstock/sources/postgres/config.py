"""What one running capture of a Postgres database needs, and what it makes there."""

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
from penstock.sources.interface import InstanceConfig
from penstock.sources.postgres.captured import CapturedTable
from penstock.sources.postgres.connection import connect, connect_replication, place
from penstock.sources.postgres.facts import Facts, read_facts
from penstock.sources.postgres.heartbeat import silent_since
from penstock.sources.postgres.meta_tables import make_meta, meta_tables, restore_meta, unmake_meta
from penstock.sources.postgres.names import quoted
from penstock.sources.postgres.options import Heartbeat, Ownership, Rules, Snapshot, Watermarks
from penstock.sources.postgres.publication import (
    alter_publication,
    create_publication,
    drop_publication,
    publication_comment,
)
from penstock.sources.postgres.query_errors import asking, preparing
from penstock.sources.postgres.slot import SlotFlags, create_slot, drop_slot, find_slot, identify, slot_problem
from penstock.sources.postgres.wal import flushed, written

__all__ = ["PostgresInstanceConfig"]

_RELEASE_SECONDS = 10.0
_SETTLE_SECONDS = 3
_ASK_SECONDS = 2
_COPIED = (
    "It may be a copy of this home, or the one of which this is a copy: drop the source there, if it shall go at all."
)
_CALLED = """
SELECT k.oid, n.nspname, c.relname FROM unnest(%s::bigint[], %s::text[], %s::text[]) AS k(oid, schema, name)
  JOIN pg_class c ON c.oid = k.oid::oid JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE NOT EXISTS (SELECT 1 FROM pg_class o JOIN pg_namespace s ON s.oid = o.relnamespace
                    WHERE s.nspname = k.schema AND o.relname = k.name)
"""


class PostgresInstanceConfig(InstanceConfig):
    """What one capture process needs, and what it made upstream."""

    connection: str
    publication: str
    slot: str
    tables: tuple[CapturedTable, ...]
    refused: dict[str, tuple[str, str]] = Field(default_factory=dict)
    publication_ownership: Ownership = Ownership.MANAGED
    slot_ownership: Ownership = Ownership.MANAGED
    rules: Rules = Rules.OPEN
    flags: SlotFlags = SlotFlags()
    heartbeat: Heartbeat | None = None
    heartbeat_interval: float = 10.0
    identity: str = ""
    """Made with the source, and in every watermark: what tells ours from those of others."""
    snapshot: Snapshot = Snapshot.PARALLEL
    snapshot_wait: str = "1 hour"
    chunk_rows: int = 20_000
    chunk_pause: str = "0 s"
    watermarks: Watermarks = Watermarks.MESSAGE
    accepted_interference: int = 0
    """Up to here, what others wrote in the place of our watermarks and heartbeats is settled."""
    standby: bool = False
    """Whether it was a standby from which capture began."""
    start_lsn: int = 0
    system: str = ""
    timeline: int = 0
    forked_at: int = 0
    """Where this timeline began; 0 for the first one, and until capture has connected."""
    facts: Facts | None = None
    """What the catalogs upstream said of all that is captured, when it was last looked at."""

    def start(self) -> Lsn:
        """Return the position from which on the slot sees every commit."""
        return Lsn(self.start_lsn)

    def prepare(self) -> Self:
        """Make our tables, the publication, then the slot: a slot decodes only with publications older than itself."""
        with (
            preparing(self.source, self.connection),
            connect(self.connection) as connection,
            connect_replication(self.connection) as replication,
        ):
            system, timeline = identify(replication)
            standby = connection.execute("SELECT pg_is_in_recovery()").fetchone() == (True,)
            meta, made = self.meta_tables(), False
            claimed = make_meta(connection, meta, self.identity) if meta else Lsn.ZERO
            try:
                if self._owns_publication:
                    create_publication(connection, self.publication, self.tables, meta, self._mark)
                    made = True
                start = self._make_slot(replication) if self._owns_slot else self._take_slot(connection)
                facts = read_facts(connection, self.publication, [table.oid for table in self.tables])
            except BaseException:
                if made:
                    drop_publication(connection, self.publication)
                unmake_meta(connection, meta, self.identity)
                raise
        known = {"start_lsn": int(start), "system": system, "timeline": timeline, "standby": standby}
        return with_fields(self, **known, accepted_interference=int(claimed), facts=facts)

    def meta_tables(self) -> tuple[TableName, ...]:
        """Return the tables upstream in which we mark windows and beat; none where logical messages do."""
        return meta_tables(self.watermarks, self.heartbeat)

    def accept_interference(self) -> Self:
        """Put our rows upstream right again, and take all that others wrote there so far as settled.

        For somebody who knows who that was. Capture must not run meanwhile; it goes on with the config returned.
        """
        with preparing(self.source, self.connection), connect(self.connection) as connection:
            settled = restore_meta(connection, self.meta_tables(), self.identity)
        return with_fields(self, accepted_interference=int(settled))

    def _make_slot(self, replication: psycopg.Connection[Any]) -> Lsn:
        flags = self.flags
        return create_slot(
            *(replication, self.slot), temporary=flags.temporary, two_phase=flags.two_phase, failover=flags.failover
        )

    def _take_slot(self, connection: psycopg.Connection[Any]) -> Lsn:
        """Begin where a slot of the user's stands."""
        state = find_slot(connection, self.slot)
        problem = f"there is no replication slot {self.slot}" if state is None else slot_problem(state, self.flags)
        if state is None or problem is not None:
            raise DefiniteError(str(problem), "Make it, or name another one.")
        return state.confirmed

    def repair(self, anew: Collection[TableName]) -> tuple[Self, Lsn, dict[TableName, Finding]]:
        """Have our publication publish the tables of this config that come or begin `anew`, and none that went.

        Return the config with the publication as it is then, a position after that, and why what could not be published
        could not. A publication that somebody else had altered before is not taken for ours: capture will say so.
        """
        refused: dict[TableName, Finding] = {}
        with preparing(self.source, self.connection), connect(self.connection) as connection:
            before = read_facts(connection, self.publication, []).publication
            if self._owns_publication:
                refused = alter_publication(connection, self.publication, self.tables, anew, self.meta_tables())
            after = read_facts(connection, self.publication, []).publication
            position = written(connection)
        if self.facts is None or self.facts.publication != before:
            return self, position, refused
        return with_fields(self, facts=with_fields(self.facts, publication=after)), position, refused

    def begun_anew(self, tables: Collection[TableName]) -> Self:
        """Return the config without what was known of tables before they came, or came again."""
        if self.facts is None:
            return self
        again = {table.oid for table in self.tables if table.name in tables}
        kept = {oid: facts for oid, facts in self.facts.tables.items() if oid not in again}
        return with_fields(self, facts=with_fields(self.facts, tables=kept))

    def called_now(self, tables: Collection[TableName]) -> dict[TableName, TableName]:
        """Return what those of these tables are called upstream now that were renamed or moved; none took their place.

        They are known by their OIDs.
        """
        known = {table.oid: table.name for table in self.tables if table.name in tables}
        names = list(known.values())
        asked = (list(known), [name.schema for name in names], [name.name for name in names])
        with asking(self.connection), connect(self.connection) as connection:
            found = connection.execute(_CALLED, asked).fetchall()
        return {known[oid]: TableName(schema, name) for oid, schema, name in found}

    def cleanup(self) -> list[str]:
        """Drop slot, publication and tables that are ours; a capture that was just stopped gets a moment to let go.

        A publication of this name that somebody else made is left, and so is all that goes with it: `NotOwnedError`.
        """
        removed = []
        with asking(self.connection), connect(self.connection) as connection:
            self._require_own_publication(connection)
            if self._owns_slot and _drop_released(connection, self.slot):
                removed.append(f"slot {self.slot}")
            if self._owns_publication and drop_publication(connection, self.publication):
                removed.append(f"publication {self.publication}")
            removed += unmake_meta(connection, self.meta_tables(), self.identity)
        return removed

    def require_own(self, durable: Lsn | None) -> None:
        """Refuse a slot that was confirmed beyond the end of our log, and a publication without our comment.

        A copy of a home has all that the original has, its identity too; only the slot tells, once one of them went on.
        """
        with asking(self.connection), connect(self.connection) as connection:
            self._require_own(connection, durable)

    def settle(self, durable: Lsn) -> list[str]:
        """Clean up long after capture ended; who is away does not hold up others for long.

        Where somebody made a source of this name anew, nothing is ours any more but tables that have our identity.
        """
        with asking(self.connection), connect(self.connection, connect_timeout=_SETTLE_SECONDS) as connection:
            if self._owns_publication and publication_comment(connection, self.publication) not in (None, self._mark):
                return unmake_meta(connection, self.meta_tables(), self.identity)
            self._require_own(connection, durable)
        return self.cleanup()

    def _require_own(self, connection: psycopg.Connection[Any], durable: Lsn | None) -> None:
        self._require_own_publication(connection)
        state = find_slot(connection, self.slot) if self._owns_slot else None
        if state is None:
            return
        if durable is None and self.start_lsn:
            message = (
                f"the change log cannot be read, so nobody can tell whether the slot {self.slot} is that of this home"
            )
            raise NotOwnedError(message, _COPIED)
        if durable is None and self._owns_publication and publication_comment(connection, self.publication) is None:
            message = f"the slot {self.slot} is there without the publication that is made before it"
            raise NotOwnedError(message, _COPIED)
        if durable is not None and state.confirmed > durable:
            message = (
                f"the slot {self.slot} was confirmed up to {state.confirmed}, and the change log of this home ends at"
                f" {durable}: another home reads it"
            )
            raise NotOwnedError(message, _COPIED)

    def _require_own_publication(self, connection: psycopg.Connection[Any]) -> None:
        comment = publication_comment(connection, self.publication) if self._owns_publication else None
        if comment in (None, self._mark):
            return
        message = f"the publication {self.publication} is not the one that this source made: its comment is another one"
        said = f"COMMENT ON PUBLICATION {quoted(self.publication)} IS '{self._mark}';"
        raise NotOwnedError(message, f"If it is that one all the same, say so in Postgres: {said}")

    def by_hand(self) -> list[str]:
        """Return what to run in psql on that database."""
        slot = [f"SELECT pg_drop_replication_slot('{self.slot}');"] if self._owns_slot else []
        publication = [f"DROP PUBLICATION IF EXISTS {quoted(self.publication)};"] if self._owns_publication else []
        meta = [f"DROP TABLE IF EXISTS {table}; -- if Penstock made it" for table in self.meta_tables()]
        left = [*slot, *publication, *meta]
        return [f"-- on {place(self.connection)}", *left] if left else []

    def produced(self) -> Sequence[CapturedTable]:
        """Return the tables that are captured."""
        return self.tables

    def left_out(self) -> Mapping[TableName, tuple[str, str]]:
        """Return the tables that cannot be captured."""
        return {TableName.parse(name): why for name, why in self.refused.items()}

    def copies(self) -> bool:
        """A slot shows what happens from now on; the rest is copied."""
        return True

    def place(self) -> str:
        """Name host, port and database."""
        return place(self.connection)

    def same_outside(self, other: InstanceConfig) -> bool:
        """Say whether another source has this slot by now."""
        if not isinstance(other, PostgresInstanceConfig):
            return False
        return (self.connection, self.slot) == (other.connection, other.slot)

    def waiting(self, state: Path) -> str | None:
        """Say since when the server has not answered, if it has not for some seconds."""
        since = silent_since(state)
        return None if since is None else f"no answer from {self.place()} since {since.isoformat(timespec='seconds')}"

    def behind(self, durable: Lsn) -> int | None:
        """Ask how much WAL there is beyond a position."""
        try:
            with connect(self.connection, connect_timeout=_ASK_SECONDS, answers_within=_ASK_SECONDS) as connection:
                return max(0, flushed(connection) - durable)
        except (PenstockError, psycopg.Error):
            return None

    def makes(self) -> list[str]:
        """Name what is ours upstream."""
        publication = [f"publication {self.publication}"] if self._owns_publication else []
        slot = [f"slot {self.slot}"] if self._owns_slot else []
        return [*(f"table {table}" for table in self.meta_tables()), *publication, *slot]

    def kept(self) -> list[str]:
        """Name what is the user's, and stays upstream."""
        slot = [] if self._owns_slot else [f"slot {self.slot}"]
        return slot + ([] if self._owns_publication else [f"publication {self.publication}"])

    @property
    def _mark(self) -> str:
        """What the comment on a publication of ours says."""
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
