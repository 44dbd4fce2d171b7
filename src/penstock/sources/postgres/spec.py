"""A Postgres source as a value, and what one running capture of it needs."""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Collection, Sequence
from typing import Any, ClassVar, Self

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from pydantic import ConfigDict, Field, ValidationError, field_validator, model_validator

from penstock.errors import DefiniteError, TransientError, UsageError
from penstock.model import TableName, TableSchema
from penstock.positions import Lsn
from penstock.sources.family import InstanceConfig, Source
from penstock.sources.postgres.captured import CapturedTable
from penstock.sources.postgres.connection import connect, connect_replication, parse_url, place
from penstock.sources.postgres.findings import Finding, error, errors_among
from penstock.sources.postgres.meta import make_meta, meta_tables, restore_meta, unmake_meta
from penstock.sources.postgres.names import TableChoice, choice_text, nearest, quoted
from penstock.sources.postgres.options import Heartbeat, Ownership, PostgresOptions, Rules, Snapshot, Watermarks
from penstock.sources.postgres.preflight import Preflight, chosen_tables, examine, examine_named
from penstock.sources.postgres.preflight.role import find_role
from penstock.sources.postgres.preflight.tables import check_table
from penstock.sources.postgres.publication import create_publication, drop_publication, repair_publication
from penstock.sources.postgres.shards import check_connections, shard_names
from penstock.sources.postgres.slot import (
    SlotFlags,
    create_slot,
    drop_slot,
    find_slot,
    identify,
    slot_problem,
    take_snapshot,
)
from penstock.sources.postgres.wal import written

__all__ = ["PostgresInstanceConfig", "PostgresSource", "source_name"]

_LONGEST_NAME = 41
_NAME = re.compile(rf"[a-z][a-z0-9_]{{0,{_LONGEST_NAME - 1}}}")
_NOT_OPTIONS = ("connection", "connections", "part_of", "shard")
_RELEASE_SECONDS = 10.0
_SETTLE_SECONDS = 3


def source_name(url: str) -> str:
    """Derive a source's name from its database's."""
    parameters = conninfo_to_dict(parse_url(url))
    database = str(parameters.get("dbname") or parameters.get("service") or parameters.get("user") or "postgres")
    name = re.sub(r"[^a-z0-9_]+", "_", database.lower()).strip("_")[:40]
    return name if _NAME.fullmatch(name) else f"db_{name}"[:41]


class PostgresSource(Source, PostgresOptions):
    """The tables of a Postgres database that were asked for; all of them unless the options say otherwise."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    NAME: ClassVar[str] = "POSTGRES"

    connection: str = ""
    connections: tuple[str, ...] = Field(default=(), description="the databases of shards, in the place of one")
    publication: str
    slot: str

    @field_validator("name")
    @classmethod
    def _plain_name(cls, name: str) -> str:
        if not _NAME.fullmatch(name):
            message = "a source's name is a lower-case letter, then letters, digits and underscores, 41 at most"
            raise ValueError(message)
        return name

    @field_validator("connection")
    @classmethod
    def _without_a_secret(cls, connection: str) -> str:
        return parse_url(connection)

    @field_validator("connections")
    @classmethod
    def _several_databases(cls, connections: tuple[str, ...]) -> tuple[str, ...]:
        return check_connections(connections)

    @model_validator(mode="after")
    def _one_or_several(self) -> PostgresSource:
        if self.connections and self.connection:
            message = f"source {self.name} has both one database and several"
            raise UsageError(message, "Give connection, or connections.")
        return self

    @field_validator("slot")
    @classmethod
    def _name_of_a_slot(cls, slot: str) -> str:
        if not re.fullmatch(r"[a-z0-9_]{1,63}", slot):
            message = f"{slot!r} cannot name a replication slot"
            raise UsageError(message, "Use lower-case letters, digits and underscores, 63 at most.")
        return slot

    @classmethod
    def from_url(cls, url: str, name: str | None = None, **options: Any) -> Self:
        """Describe the capture of a database by its URL, and by options (the fields of `PostgresOptions`)."""
        connection, password = _split_password(parse_url(url))
        return cls._described(name or source_name(url), {"connection": connection}, password, options)

    @classmethod
    def from_urls(cls, urls: Sequence[str], name: str, **options: Any) -> Self:
        """Describe the capture of several databases with the same tables, which become one source: see `shards`."""
        connections = check_connections(tuple(parse_url(url) for url in urls))
        return cls._described(name, {"connections": connections}, None, options)

    @classmethod
    def _described(cls, name: str, where: dict[str, Any], password: str | None, options: dict[str, Any]) -> Self:
        if not _NAME.fullmatch(name):
            message = f"{name!r} cannot name a source"
            raise UsageError(
                message,
                "Use a lower-case letter, then lower-case letters, digits and underscores, 41 at most.",
            )
        given = {"publication": f"penstock_{name}", "slot": f"penstock_{name}", "password": password}
        given |= {option: value for option, value in options.items() if value is not None}
        _known_options(cls, given)
        try:
            return cls.model_validate({**given, "name": name, **where})
        except ValidationError as invalid:
            first = invalid.errors(include_input=False, include_url=False)[0]
            message = f"the option {'.'.join(map(str, first['loc'])) or name}: {first['msg']}"
            raise UsageError(message, "See the reference of the options of a Postgres source.") from None

    def shards(self) -> Sequence[Self]:
        """Return the sources of the shards, or this one alone.

        A password by reference holds for all, unless a connection has its own; so does a publication or slot of the
        user's, which has the same name everywhere. Ours are named after the shard.
        """
        found = shard_names(self.connections)
        return [self._shard(*each) for each in zip(self.connections, *found, strict=True)] if found else [self]

    def _shard(self, connection: str, shard: str, suffix: str) -> Self:
        connection, password = _split_password(connection)
        room = _LONGEST_NAME - len(suffix) - 1
        owned = {"publication": self.publication_ownership, "slot": self.slot_ownership}
        ours = [field for field, ownership in owned.items() if ownership is Ownership.MANAGED]
        return type(self).model_validate(
            {
                **self.model_dump(exclude={"connections"}),
                **{field: f"{getattr(self, field)}_{suffix}" for field in ours},
                "name": f"{self.name[:room]}_{suffix}",
                "connection": connection,
                "password": password or self.password,
                "part_of": self.name,
                "shard": shard,
            }
        )

    def conninfo(self) -> str:
        """Return the connection as `connect` takes it: the reference stands in the place of the password."""
        if self.connections:
            message = f"source {self.name} is made of {len(self.connections)} databases"
            raise UsageError(message, "Ask one of its shards.")
        return make_conninfo(self.connection, password=self.password) if self.password else self.connection

    def preflight(
        self, *, captured: Collection[TableName] | None = None, refused: Collection[TableName] = ()
    ) -> Preflight:
        """Look whether this database can be captured; or, of a source that is there, whether it can go on.

        The latter is meant when its tables are given: those that it captures, and those that were refused.
        """
        with connect(self.conninfo()) as connection:
            found = examine(connection, self.publication, self.slot, self, captured=captured, refused=refused)
        return self._with_replication(found)

    def _with_replication(self, found: Preflight) -> Preflight:
        """Catalogs may promise replication that the server then refuses: open such a connection."""
        if errors_among(found.server):
            return found
        try:
            with connect_replication(self.conninfo()) as replication:
                identify(replication)
        except DefiniteError as refused:
            finding = error("replication", refused.message, refused.remedy)
            return Preflight((finding, *found.server), found.tables, found.named)
        return found

    def tables_at(self, snapshot: str) -> dict[TableName, CapturedTable]:
        """Return the chosen tables as they are in an exported snapshot: with the columns that they had then."""
        with connect(self.conninfo()) as connection:
            take_snapshot(connection, snapshot)
            return {table.name: table.captured() for table in chosen_tables(connection, self.publication, self)}

    def look_again(self, tables: Collection[TableName]) -> dict[TableName, CapturedTable | Finding]:
        """Return these tables as they are now, whether or not they are captured; or why one cannot be."""
        named = self.model_copy(update={"tables": tuple(choice_text(TableChoice(t)) for t in tables), "schemas": ()})
        with connect(self.conninfo()) as connection:
            role = find_role(connection)
            selection, problems = examine_named(connection, self.publication, named)
        found: dict[TableName, CapturedTable | Finding] = {}
        for table in selection:
            own = [*check_table(table, role, self), *(f for f in problems if f.object == str(table.name))]
            errors = errors_among(own)
            found[table.name] = errors[0] if errors else table.captured()
        gone = error("", "it is not there upstream, or not published", "Create or publish it, then retry.")
        told = {finding.object: finding for finding in errors_among(problems)}
        return {name: found.get(name) or told.get(str(name), gone) for name in tables}

    def describe(self) -> Sequence[TableSchema]:
        """Return the schemas of the tables that can be captured."""
        return [table.captured().table_schema() for table in self.preflight().capturable()]

    def create_instances(self, workers: int) -> Sequence[PostgresInstanceConfig]:
        """Return the one instance: one slot and one connection serve all tables."""
        found = self.preflight()
        found.require()
        return [
            PostgresInstanceConfig(
                source=self.name,
                connection=self.conninfo(),
                publication=self.publication,
                slot=self.slot,
                tables=tuple(table.captured() for table in found.capturable()),
                refused={str(name): (f.why, f.remedy) for name, f in found.refused().items()},
                publication_ownership=self.publication_ownership,
                slot_ownership=self.slot_ownership,
                rules=self.rules,
                flags=SlotFlags(self.slot_temporary, self.two_phase, self.failover),
                heartbeat=self.heartbeat,
                heartbeat_interval=self.heartbeat_interval,
                retain_history=self.retain_history,
                identity=uuid.uuid4().hex,
                snapshot=self.snapshot,
                snapshot_wait=self.snapshot_wait,
                chunk_rows=self.chunk_rows,
                chunk_pause=self.chunk_pause,
                watermarks=self.watermarks,
            )
        ]


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

    def start(self) -> Lsn:
        """Return the position from which on the slot sees every commit."""
        return Lsn(self.start_lsn)

    def prepare(self) -> Self:
        """Make our tables, the publication, then the slot: a slot decodes only with publications older than itself."""
        with connect(self.connection) as connection, connect_replication(self.connection) as replication:
            system, timeline = identify(replication)
            standby = connection.execute("SELECT pg_is_in_recovery()").fetchone() == (True,)
            meta, made = self.meta_tables(), False
            claimed = make_meta(connection, meta, self.identity) if meta else Lsn.ZERO
            try:
                if self._owns_publication:
                    create_publication(connection, self.publication, self.tables, self.rules, meta)
                    made = True
                start = self._make_slot(replication) if self._owns_slot else self._take_slot(connection)
            except BaseException:
                if made:
                    drop_publication(connection, self.publication)
                unmake_meta(connection, meta, self.identity)
                raise
        known = {"start_lsn": int(start), "system": system, "timeline": timeline, "standby": standby}
        return self.model_copy(update={**known, "accepted_interference": int(claimed)})

    def meta_tables(self) -> tuple[TableName, ...]:
        """Return the tables upstream in which we mark windows and beat; none where logical messages do."""
        return meta_tables(self.watermarks, self.heartbeat)

    def accept_interference(self) -> Self:
        """Put our rows upstream right again, and take all that others wrote there so far as settled.

        For somebody who knows who that was. Capture must not run meanwhile; it goes on with the config returned.
        """
        with connect(self.connection) as connection:
            settled = restore_meta(connection, self.meta_tables(), self.identity)
        return self.model_copy(update={"accepted_interference": int(settled)})

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

    def repair(self) -> Lsn:
        """Make our publication publish exactly the tables of this config; return a position after that."""
        with connect(self.connection) as connection:
            if self._owns_publication:
                repair_publication(connection, self.publication, self.tables, self.rules, self.meta_tables())
            return written(connection)

    def cleanup(self) -> list[str]:
        """Drop slot, publication and tables that are ours; a capture that was just stopped gets a moment to let go."""
        removed = []
        with connect(self.connection) as connection:
            if self._owns_slot and _drop_released(connection, self.slot):
                removed.append(f"slot {self.slot}")
            if self._owns_publication and drop_publication(connection, self.publication):
                removed.append(f"publication {self.publication}")
            removed += unmake_meta(connection, self.meta_tables(), self.identity)
        return removed

    def settle(self, durable: Lsn) -> list[str]:
        """Clean up long after capture ended: a slot that was confirmed beyond `durable` is somebody else's by now."""
        with connect(self.connection, connect_timeout=_SETTLE_SECONDS) as connection:
            state = find_slot(connection, self.slot) if self._owns_slot else None
            if state is not None and state.confirmed > durable:
                return unmake_meta(connection, self.meta_tables(), self.identity)
        return self.cleanup()

    def by_hand(self) -> list[str]:
        """Return what to run in psql on that database."""
        slot = [f"SELECT pg_drop_replication_slot('{self.slot}');"] if self._owns_slot else []
        publication = [f"DROP PUBLICATION IF EXISTS {quoted(self.publication)};"] if self._owns_publication else []
        meta = [f"DROP TABLE IF EXISTS {table}; -- if Penstock made it" for table in self.meta_tables()]
        left = [*slot, *publication, *meta]
        return [f"-- on {place(self.connection)}", *left] if left else []

    def kept(self) -> list[str]:
        """Name what is the user's, and stays upstream."""
        slot = [] if self._owns_slot else [f"slot {self.slot}"]
        return slot + ([] if self._owns_publication else [f"publication {self.publication}"])

    @property
    def _owns_slot(self) -> bool:
        return self.slot_ownership is Ownership.MANAGED

    @property
    def _owns_publication(self) -> bool:
        return self.publication_ownership is Ownership.MANAGED


def _split_password(conninfo: str) -> tuple[str, str | None]:
    """Take the reference to the password out of a connection string."""
    parameters = conninfo_to_dict(conninfo)
    password = parameters.pop("password", None)
    return make_conninfo("", **parameters), str(password) if password else None


def _known_options(source: type[PostgresSource], given: dict[str, Any]) -> None:
    for option in given:
        if option not in source.model_fields or option in _NOT_OPTIONS:
            message = f"there is no option {option} of a Postgres source"
            raise UsageError(message, nearest(option, source.model_fields) or "See the reference of its options.")


def _drop_released(connection: psycopg.Connection[Any], slot: str) -> bool:
    deadline = time.monotonic() + _RELEASE_SECONDS
    while True:
        try:
            return drop_slot(connection, slot)
        except (TransientError, psycopg.errors.ObjectInUse):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)
