"""The definition of a Postgres source: databases, selection of tables and options; and the report of `check`.

`check` consists of preflight, and for an existing source also of slot, publication and catalogs.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Self

from psycopg.conninfo import conninfo_to_dict, make_conninfo
from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from penstock.errors import DefiniteError, TransientError, UsageError
from penstock.fields import with_fields
from penstock.model import TableName, TableSchema
from penstock.positions import Lsn
from penstock.sources.database import Database
from penstock.sources.findings import Finding, error, errors_among
from penstock.sources.interface import Checked, InstanceConfig, Source, check_name, is_name
from penstock.sources.option_names import TableChoice, choice_text, parse_table
from penstock.sources.postgres.captured_table import CapturedTable
from penstock.sources.postgres.config import PostgresInstanceConfig
from penstock.sources.postgres.connection import (
    connect,
    connect_replication,
    parse_url,
    place,
    translate_errors,
    translate_prepare_errors,
)
from penstock.sources.postgres.options import (
    NewTables,
    OnSchemaChange,
    Ownership,
    PostgresOptions,
    PostgresSqlOptions,
    PostgresWithOptions,
    check_slot_name,
)
from penstock.sources.postgres.preflight import Preflight, check_named_tables, chosen_tables, run_preflight
from penstock.sources.postgres.preflight.role import find_role
from penstock.sources.postgres.preflight.tables import check_table
from penstock.sources.postgres.replication.continuity import check_end, verify_continuity
from penstock.sources.postgres.replication.publication_watch import PublicationWatch
from penstock.sources.postgres.replication.slot import (
    SlotFlags,
    SlotInUseError,
    check_slot,
    find_slot,
    identify,
    import_snapshot,
)
from penstock.sources.postgres.shard_labels import check_connections, shard_labels, shard_suffixes

__all__ = ["PostgresSource", "source_name"]

_LONGEST_NAME = 41


def source_name(url: str) -> str:
    """Derive the name of a source from that of its database."""
    parameters = conninfo_to_dict(parse_url(url))
    database = str(parameters.get("dbname") or parameters.get("service") or parameters.get("user") or "postgres")
    name = re.sub(r"[^a-z0-9_]+", "_", database.lower()).strip("_")[:40]
    return name if is_name(name) else f"db_{name}"[:41]


class PostgresSource(Source, PostgresOptions):
    """The captured tables of a Postgres database: all of them unless the options restrict them."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    NAME: ClassVar[str] = "POSTGRES"
    SqlOptions: ClassVar[type[PostgresSqlOptions]] = PostgresSqlOptions
    WithOptions: ClassVar[type[PostgresWithOptions]] = PostgresWithOptions
    RESNAPSHOT: ClassVar[frozenset[str]] = frozenset(("exclude_columns", "text_columns", "on_unrepresentable"))
    ALTERABLE: ClassVar[frozenset[str]] = (
        RESNAPSHOT
        | frozenset(
            (
                "retain_history",
                "new_tables",
                "on_schema_change",
                "snapshot",
                "snapshot_wait",
                "snapshot_sessions",
                "snapshot_rate",
                "chunk_rows",
                "chunk_pause",
                "heartbeat_interval",
            )
        )
        | {"connection"}
    )

    SCHEMES: ClassVar[frozenset[str]] = frozenset(("postgresql", "postgres", ""))
    KEPT: ClassVar[frozenset[str]] = frozenset(("publication", "slot", "password", "exclude_tables"))

    connection: str = ""
    connections: tuple[str, ...] = Field(default=(), description="the databases of a sharded source")
    publication: str
    slot: str

    @field_validator("connection")
    @classmethod
    def _without_a_secret(cls, connection: str) -> str:
        return parse_url(connection)

    @field_validator("slot")
    @classmethod
    def _name_of_a_slot(cls, slot: str) -> str:
        return check_slot_name(slot)

    @field_validator("connections")
    @classmethod
    def _several_databases(cls, connections: tuple[str, ...]) -> tuple[str, ...]:
        return check_connections(connections) if connections else ()

    @model_validator(mode="after")
    def _one_or_several(self) -> PostgresSource:
        if self.connections and self.connection:
            message = f"source {self.name} has both connection and connections"
            raise UsageError(message, "Use one of the two options.")
        return self

    @classmethod
    def why_fixed(cls, option: str) -> str:
        """Return why an option cannot be altered: most determine objects that were created upstream."""
        return _FIXED.get(option) or super().why_fixed(option)

    @classmethod
    def from_url(cls, url: str, name: str | None = None, **options: Any) -> Self:
        """Return the source for the URL of a database, with options (the fields of `PostgresOptions`)."""
        connection, password = _split_password(parse_url(url))
        return cls._named(name or source_name(url), {"password": password, **options}, connection=connection)

    @classmethod
    def from_urls(cls, urls: Sequence[str], name: str | None = None, **options: Any) -> Self:
        """Return a source for one database, or a sharded one for several with the same tables: see `shard_labels`."""
        if len(urls) == 1:
            return cls.from_url(urls[0], name, **options)
        if name is None:
            message = "a sharded source requires a name"
            raise UsageError(message, "Name the source (--name).")
        return cls._named(name, options, connections=check_connections(urls))

    @classmethod
    def _named(cls, name: str, options: dict[str, Any], **where: Any) -> Self:
        name = check_name(name)
        given = {"publication": f"penstock_{name}", "slot": f"penstock_{name}"}
        given |= {option: value for option, value in options.items() if value is not None}
        return cls.of(name, **{**given, **where})

    @classmethod
    def from_options(cls, name: str, sql: BaseModel, with_: BaseModel) -> Self:
        """Return the source that a statement defines, with one database or several."""
        given = {field: getattr(part, field) for part in (sql, with_) for field in part.model_fields_set}
        connection, connections = given.pop("connection", None), given.pop("connections", ())
        if connections:
            return cls._named(name, given, connections=check_connections(connections))
        return cls.from_url(connection, name, **given)

    def sql_options(self) -> PostgresSqlOptions:
        """Return the options that are written as clauses."""
        fields = {field: getattr(self, field) for field in PostgresSqlOptions.model_fields}
        return PostgresSqlOptions.model_construct(**{**fields, "connection": self.connection or None})

    def with_options(self) -> PostgresWithOptions:
        """Return the options in ``WITH``; publication and slot only if they do not have their default names."""
        fields = {field: getattr(self, field) for field in PostgresWithOptions.model_fields}
        defaults = {field: None for field in ("publication", "slot") if fields[field] == f"penstock_{self.name}"}
        return PostgresWithOptions.model_construct(**{**fields, **defaults})

    def shards(self) -> Mapping[str | None, Self]:
        """Return a source for each database of a sharded source, by label.

        A password reference applies to all shards, unless a connection has its own. A user's publication or slot has
        the same name in all shards. The names of managed ones end in the name of the shard.
        """
        if not self.connections:
            return {None: self}
        labels = shard_labels(self.connections)
        named = zip(labels, self.connections, shard_suffixes(labels), strict=True)
        return {label: self._shard(connection, suffix) for label, connection, suffix in named}

    def _shard(self, connection: str, suffix: str) -> Self:
        connection, password = _split_password(connection)
        return type(self).model_validate(
            {
                **self.model_dump(exclude={"connections"}),
                **{field: f"{getattr(self, field)}_{suffix}" for field in self._ours()},
                "name": f"{self.name[: _LONGEST_NAME - len(suffix) - 1]}_{suffix}",
                "connection": connection,
                "password": password or self.password,
            }
        )

    @classmethod
    def whole(cls, name: str, shards: Sequence[Source]) -> Source:
        """Return the sharded source that these shards form."""
        parts = [shard for shard in shards if isinstance(shard, cls)]
        passwords = {part.password for part in parts}
        shared = passwords.pop() if len(passwords) == 1 else None
        connections = [part.connection if shared == part.password else part.conninfo() for part in parts]
        suffix = shard_suffixes(shard_labels(connections))[0]
        owned = {field: getattr(parts[0], field).removesuffix(f"_{suffix}") for field in parts[0]._ours()}
        given = parts[0].model_dump(exclude={"name", "connection"})
        return cls.of(name, **{**given, **owned, "password": shared, "connections": tuple(connections)})

    def _ours(self) -> list[str]:
        """Return which of publication and slot Penstock manages."""
        owned = {"publication": self.publication_ownership, "slot": self.slot_ownership}
        return [field for field, ownership in owned.items() if ownership is Ownership.MANAGED]

    def conninfo(self) -> str:
        """Return the connection string for `connect`, with the reference in place of the password."""
        if self.connections:
            message = f"source {self.name} has {len(self.connections)} databases"
            raise UsageError(message, "Use one of its shards.")
        return make_conninfo(self.connection, password=self.password) if self.password else self.connection

    def preflight(
        self, *, captured: Collection[TableName] | None = None, refused: Collection[TableName] = ()
    ) -> Preflight:
        """Check whether this database can be captured; or whether an existing source can resume.

        For an existing source, pass the tables that it captures and those that were refused.
        """
        with connect(self.conninfo()) as connection:
            found = run_preflight(connection, self.publication, self.slot, self, captured=captured, refused=refused)
        return self._with_replication(found)

    def _with_replication(self, found: Preflight) -> Preflight:
        """Open a replication connection: the server may refuse one even if the catalogs permit it."""
        if errors_among(found.server):
            return found
        try:
            with connect_replication(self.conninfo()) as replication:
                identify(replication)
        except DefiniteError as refused:
            finding = error("replication", refused.message, refused.hint)
            return Preflight((finding, *found.server), found.tables, found.named)
        return found

    def tables_at(self, snapshot: str) -> dict[TableName, CapturedTable]:
        """Return the selected tables with the columns that they have in an exported snapshot."""
        with connect(self.conninfo()) as connection:
            import_snapshot(connection, snapshot)
            return {table.name: table.captured() for table in chosen_tables(connection, self.publication, self)}

    def redescribe(self, tables: Collection[TableName]) -> dict[TableName, CapturedTable | Finding]:
        """Return the current definition of these tables, captured or not; or the error that prevents the capture."""
        named = with_fields(
            self, tables=tuple(choice_text(TableChoice(t)) for t in tables), schemas=(), exclude_tables=()
        )
        with translate_prepare_errors(self.name, self.conninfo()), connect(self.conninfo()) as connection:
            role = find_role(connection)
            selection, problems = check_named_tables(connection, self.publication, named)
        found: dict[TableName, CapturedTable | Finding] = {}
        for table in selection:
            own = [*check_table(table, role, self), *(f for f in problems if f.object == str(table.name))]
            errors = errors_among(own)
            found[table.name] = errors[0] if errors else table.captured()
        missing = error("", "does not exist upstream, or is not published", "Create or publish it, then retry.")
        errors_by_object = {finding.object: finding for finding in errors_among(problems)}
        return {name: found.get(name) or errors_by_object.get(str(name), missing) for name in tables}

    def resnapshotted_tables(self, before: Self) -> list[TableName]:
        """Return the tables of which other columns are excluded, or captured as text; these columns must exist.

        If values are treated otherwise that the types of their columns cannot hold, return all tables.
        """
        excluded, as_text = set(self.excluded()), set(self.as_text())
        changed = (excluded ^ set(before.excluded())) | (as_text ^ set(before.as_text()))
        new = {str(column): column for column in (excluded | as_text) & changed}
        if new:
            names = sorted({choice_text(TableChoice(column.table)) for column in new.values()})
            named = with_fields(self, tables=tuple(names), schemas=(), exclude_tables=())
            with translate_errors(self.connection), connect(self.conninfo()) as connection:
                _, findings = check_named_tables(connection, self.publication, named)
            about = {*new, *(str(column.table) for column in new.values())}
            for finding in (each for each in errors_among(findings) if each.object in about):
                message = f"{finding.object}: {finding.why}"
                raise DefiniteError(message, finding.hint)
        resnapshotted = {column.table for column in changed}
        if self.on_unrepresentable is not before.on_unrepresentable:
            resnapshotted.update(before._capturable_tables())
        return sorted(resnapshotted)

    def _capturable_tables(self) -> list[TableName]:
        """Return the tables that can be captured with these options."""
        with translate_errors(self.connection), connect(self.conninfo()) as connection:
            chosen = [table.name for table in chosen_tables(connection, self.publication, self)]
        described = self.redescribe(chosen) if chosen else {}
        return [name for name, found in described.items() if isinstance(found, CapturedTable)]

    def instance_options(self) -> dict[str, Any]:
        """Return the alterable options; the connection of an instance includes the reference to the password."""
        return {**super().instance_options(), "connection": self.conninfo()}

    def require_same_upstream(self, instance: InstanceConfig, durable: Lsn) -> None:
        """Check what capture checks at each connect: the cluster, its timeline, the slot and the end of the WAL.

        A slot in use is no error: capture reads it, over the present connection. It checks again when it has moved.
        """
        assert isinstance(instance, PostgresInstanceConfig)
        try:
            with translate_errors(self.connection), connect_replication(self.conninfo()) as connection:
                verify_continuity(connection, instance, durable)
        except SlotInUseError:
            return
        except DefiniteError as refused:
            message = f"source {self.name} cannot continue at {self.place()}: {refused.message}"
            raise DefiniteError(message, _SAME_CLUSTER) from refused

    def find_new_tables(self, instance: InstanceConfig) -> dict[TableName, CapturedTable | Finding] | None:
        """Return the tables that are not captured. A renamed table is captured, by its OID, and has an error."""
        assert isinstance(instance, PostgresInstanceConfig)
        if self.tables or self.new_tables is NewTables.IGNORE:
            return None
        known = {table.oid for table in instance.tables}
        with translate_errors(self.connection), connect(self.conninfo()) as connection:
            chosen = chosen_tables(connection, self.publication, self)
        new = [table.name for table in chosen if table.upstream.oid not in known]
        new = [name for name in new if name not in {table.name for table in instance.tables}]
        return self.redescribe(new) if new else {}

    def find_changed_tables(
        self, instance: InstanceConfig, tables: Collection[TableName]
    ) -> dict[TableName, CapturedTable | Finding] | None:
        """Return the definitions of these tables; another table of the same name is not the captured one."""
        assert isinstance(instance, PostgresInstanceConfig)
        if self.on_schema_change is OnSchemaChange.STOP:
            return None
        known = {table.name: table.oid for table in instance.tables}
        found = self.redescribe(tables)
        return {
            name: table
            if isinstance(table, Finding) or table.oid == known.get(name)
            else _another_table(self.name, name)
            for name, table in found.items()
        }

    def upstream(self) -> str:
        """Return the connection string, without a password."""
        return self.connection

    def database(self, instance: InstanceConfig) -> Database:
        """Return the tables of an instance: a slot sends only changes after its creation."""
        from penstock.sources.postgres.snapshot.database import PostgresDatabase  # loads the compiled kernels

        assert isinstance(instance, PostgresInstanceConfig)
        return PostgresDatabase(instance, self.tables_at)

    def with_table(self, choice: TableChoice) -> Self:
        """Add a table to the listed ones, if the source lists its tables."""
        if self.schemas and choice.table.schema not in self.schemas:
            schemas = ", ".join(self.schemas)
            message = f"source {self.name} captures tables of the schemas {schemas}, not of {choice.table.schema}"
            raise UsageError(message, "Name a table of these schemas, or create another source for the other schema.")
        if self.tables:
            return with_fields(self, tables=(*self.tables, choice_text(choice)))
        kept = tuple(text for text in self.exclude_tables if parse_table(text).table != choice.table)
        return with_fields(self, exclude_tables=kept)

    def without_table(self, table: TableName) -> Self:
        """Remove a table, or exclude it; excluded columns stay excluded, in case the table is added again."""
        if not self.tables:
            excluded = dict.fromkeys((*self.exclude_tables, choice_text(TableChoice(table))))
            return with_fields(self, exclude_tables=tuple(excluded))
        return with_fields(self, tables=tuple(text for text in self.tables if parse_table(text).table != table))

    def describe(self) -> Sequence[TableSchema]:
        """Return the schemas of the tables that can be captured."""
        with translate_errors(self.connection):
            return [table.captured().table_schema() for table in self.preflight().capturable()]

    def check(self, instance: InstanceConfig | None = None, durable: Lsn | None = None) -> Checked:
        """Check the database; for an existing source, also that its slot still has all changes after the log's end."""
        existing = instance if isinstance(instance, PostgresInstanceConfig) else None
        try:
            with translate_errors(self.connection):
                if existing is None:
                    aliases = {choice.table: choice.alias for choice in self.choices() if choice.alias}
                    return replace(_check_report(self.preflight()), aliases=aliases)
                captured = frozenset(table.name for table in existing.tables)
                found = self.preflight(captured=captured, refused=frozenset(existing.left_out()))
                return _check_report(found, _check_position(existing, durable))
        except DefiniteError as refused:
            return _unreachable_report(refused)

    def place(self) -> str:
        """Return host, port and database; of shards, those of all of them."""
        return ", ".join(map(place, self.connections or [self.connection]))

    def create_instances(self, workers: int) -> Sequence[PostgresInstanceConfig]:
        """Return the config of the one instance: one slot and one connection serve all tables."""
        with translate_prepare_errors(self.name, self.conninfo()):
            found = self.preflight()
        found.require()
        return [
            PostgresInstanceConfig(
                source=self.name,
                connection=self.conninfo(),
                publication=self.publication,
                slot=self.slot,
                tables=tuple(table.captured() for table in found.capturable()),
                refused={str(name): (f.why, f.hint) for name, f in found.refused().items()},
                publication_ownership=self.publication_ownership,
                slot_ownership=self.slot_ownership,
                rules=self.rules,
                flags=SlotFlags(self.slot_temporary, self.two_phase, self.failover),
                new_tables=self.new_tables,
                on_schema_change=self.on_schema_change,
                heartbeat=self.heartbeat,
                heartbeat_interval=self.heartbeat_interval,
                retain_history=self.retain_history,
                identity=uuid.uuid4().hex,
                snapshot=self.snapshot,
                snapshot_wait=self.snapshot_wait,
                snapshot_sessions=self.snapshot_sessions,
                snapshot_rate=self.snapshot_rate,
                chunk_rows=self.chunk_rows,
                chunk_pause=self.chunk_pause,
                watermarks=self.watermarks,
            )
        ]


def _another_table(source: str, name: TableName) -> Finding:
    hint = f"To capture the new table: ALTER SOURCES {source} RETRY TABLE {name};"
    return error(str(name), "it was dropped and created again upstream", hint)


_UPSTREAM = "it determines objects that were created upstream with the source"
_SAME_CLUSTER = (
    "Nothing was changed. Name a server of the same cluster that has the replication slot: the primary, or a promoted"
    " standby that had synchronized the slot. To capture another database, create another source."
)
_TABLES = "use ALTER SOURCES … ADD TABLE and DROP TABLE instead"
_FIXED = {
    **dict.fromkeys(
        ("publication", "slot", "publication_ownership", "slot_ownership", "rules", "partitions"), _UPSTREAM
    ),
    **dict.fromkeys(("slot_temporary", "two_phase", "failover"), "the slot was created with it"),
    **dict.fromkeys(("heartbeat", "watermarks"), "the tables that it needs were created upstream with the source"),
    **dict.fromkeys(("tables", "schemas", "exclude_tables"), _TABLES),
    "connections": "the history of each shard belongs to its database",
    "password": "it is a reference: change the password that it refers to; capture uses it at the next connect",
}
"""Why options cannot be altered."""


def _split_password(conninfo: str) -> tuple[str, str | None]:
    """Split a connection string into the rest and the reference to the password."""
    parameters = conninfo_to_dict(conninfo)
    password = parameters.pop("password", None)
    return make_conninfo("", **parameters), str(password) if password else None


# -- check -------------------------------------------------------------------------------------------------------------


def _check_report(found: Preflight, more: Sequence[Finding] = ()) -> Checked:
    """Return the report of `check`: the findings of preflight, and `more`."""
    capturable = {table.name for table in found.capturable()}
    findings = list(dict.fromkeys([*more, *found.findings()]))
    if not found.tables and not found.blocking():
        findings.append(error("database", "has no table to capture", "Create one, or name another database."))
    ready = not more and not found.blocking() and bool(found.tables)
    return Checked(tuple((table.name, table.name in capturable) for table, _ in found.tables), tuple(findings), ready)


def _check_position(instance: PostgresInstanceConfig, durable: Lsn | None) -> list[Finding]:
    """Compare server, slot and catalogs with the recorded state; a slot in use by the running capture is no error."""
    reached = Lsn(max(instance.start(), durable or Lsn.ZERO))
    with connect(instance.connection) as connection:
        try:
            check_end(connection, instance, reached)
            check_slot(find_slot(connection, instance.slot), instance.slot, instance.source, reached)
            ended = PublicationWatch(instance, reached).check(connection, reached)
        except TransientError:
            # The running capture reads the slot and does these checks; or a standby has just started.
            return []
        except DefiniteError as lost:
            return [error("source", lost.message, lost.hint)]
    return [error(each.table, each.message, each.hint) for each in ended]


def _unreachable_report(refused: DefiniteError) -> Checked:
    """Return the report for a database that cannot be reached."""
    return Checked((), (error("connection", refused.message, refused.hint),), ready=False)
