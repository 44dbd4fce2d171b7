"""The types that a kind of source implements: describe, then execute.

::

    Source          a value: the user's options, of the two option types of its kind
      ├─ check()   reports whether it can be captured, and what prevents it
      ├─ database(instance) ─▶ Database   the rows of its tables, if it has tables to copy (`sources.database`)
      └─ create_instances(workers) ─▶ InstanceConfig   serializable; stored in the catalog before `prepare`
            ├─ prepare()  creates the external objects that it needs (slot, publication)
            ├─ cleanup()  removes them, also after a crash in the middle of `prepare`
            ├─ produced() the tables that it produces
            └─ InstanceFactory.instantiate ─▶ Instance  runs in the capture process and writes the change log

A kind of source is a set of these types (`Kind`). Built-in kinds are folders next to this module; other packages
register theirs by an entry point (see `penstock.sources.kinds`). The rest of Penstock depends on these interfaces only.

Implementations raise Penstock's errors: `DefiniteError` for a permanent error, `TransientError` for one that is
retried, `AlreadyExistsError` for an external object that exists and was not created by this source, `NotOwnedError` for
an external object that is to be removed and may belong to another owner.
"""

from __future__ import annotations

import re
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from penstock.changelog.interface import ChangeLog
from penstock.changelog.log_url import check_log_url
from penstock.errors import DefiniteError, PenstockError, UsageError
from penstock.fields import with_fields
from penstock.model import TableName, TableSchema
from penstock.name_suggestions import nearest
from penstock.positions import Lsn
from penstock.sources.database import Database
from penstock.sources.findings import Finding, error
from penstock.sources.option_names import TableChoice
from penstock.sources.produced_table import ProducedTable
from penstock.sources.upstream_status import UpstreamStatus, UpstreamWatch
from penstock.sql.syntax.values import Span
from penstock.units import parse_duration

__all__ = [
    "STATUS_SOURCE",
    "AlteredTables",
    "Checked",
    "Instance",
    "InstanceConfig",
    "InstanceFactory",
    "Kind",
    "Source",
    "SourceOptions",
    "check_name",
    "is_name",
]

STATUS_SOURCE = "penstock"
"""The name under which queries read the status; no source can have it."""
_NAME = re.compile(r"[a-z][a-z0-9_]{0,40}")


def is_name(name: str) -> bool:
    """Return whether this is a valid source name."""
    return _NAME.fullmatch(name) is not None


def check_name(name: str) -> str:
    """Return the name of a source; raise `UsageError` if it is invalid."""
    if name == STATUS_SOURCE:
        message = f'source name "{name}" is reserved: penstock.sources and others are tables of the status'
        raise UsageError(message, "Choose another name.")
    if not is_name(name):
        message = f"invalid source name {name!r}"
        raise UsageError(
            message, "Use a lower-case letter, then lower-case letters, digits and underscores, at most 41 characters."
        )
    return name


class InstanceConfig(BaseModel, ABC):
    """The configuration of one instance of a source: a value that can also remove its external objects."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    source: str
    retain_history: str = "1 day"

    def retained(self) -> timedelta:
        """Return the retention of history, beyond what readers need."""
        return parse_duration(self.retain_history)

    @abstractmethod
    def prepare(self) -> Self:
        """Create the external objects; return the config completed with their properties. `cleanup` undoes this."""

    @abstractmethod
    def cleanup(self) -> list[str]:
        """Remove the external objects, whether or not all of them exist; return the names of the removed ones."""

    @abstractmethod
    def cleanup_statements(self) -> list[str]:
        """Return the statements that remove the external objects manually, if the server is unreachable."""

    @abstractmethod
    def start(self) -> Lsn:
        """Return the position at which the history of this instance begins."""

    @abstractmethod
    def produced(self) -> Sequence[ProducedTable]:
        """Return the tables that it produces."""

    @abstractmethod
    def place(self) -> str:
        """Describe the origin of its data for users, without secrets."""

    def database_name(self) -> str:
        """Return the name of the upstream database, which the messages of some sinks contain; empty if it has none."""
        return ""

    def reading(self, log: ChangeLog, state: Path) -> ChangeLog:
        """Return the log for readers: a wrapper if the changes themselves are stored elsewhere.

        `state` is the folder of the source in the home, the same that its instance gets.
        """
        return log

    def left_out(self) -> Mapping[TableName, tuple[str, str]]:
        """Return the requested tables that cannot be captured, each with the reason and a hint."""
        return {}

    def makes(self) -> list[str]:
        """Return the names of the external objects that `prepare` creates."""
        return []

    def kept(self) -> list[str]:
        """Return the names of the user's external objects, which remain when the source is dropped."""
        return []

    def require_own(self, durable: Lsn | None) -> None:
        """Raise `NotOwnedError` if an external object may no longer be this source's, because the home was copied.

        The log of this home ends at `durable`; None if it cannot be read, or was never created.
        """

    def settle(self, durable: Lsn) -> list[str]:
        """Clean up long after capture ended, which confirmed at most `durable`; return the names of removed objects.

        Raise `NotOwnedError` as `require_own` does.
        """
        self.require_own(durable)
        return self.cleanup()

    def shares_external_objects(self, other: InstanceConfig) -> bool:
        """Return whether another config uses the same external objects: then they must not be removed."""
        return False

    def upstream_status(self) -> UpstreamStatus | None:
        """Query the upstream system; None if it does not answer, or cannot report anything."""
        return None

    def upstream_watch(self) -> UpstreamWatch:
        """Return what queries the upstream system repeatedly, over a connection that it keeps if there is one."""
        return _EachTime(self)

    def valid_from(self, state: Path) -> str | None:
        """Return the time from which its tables are valid, if that is later than the start of their history."""
        return None

    def waiting(self, state: Path) -> str | None:
        """Return what the instance with this folder waits for, with a likely reason; None if it does not wait."""
        return None

    def renamed_tables(self, tables: Collection[TableName]) -> Mapping[TableName, TableName]:
        """Return the new names of those of these tables that were renamed upstream, as far as that is known."""
        return {}

    def alter_tables(
        self, new: Sequence[ProducedTable], dropped: Collection[TableName], refused: Mapping[TableName, Finding]
    ) -> AlteredTables:
        """Make the upstream send the changes of `new` tables, and no longer those of `dropped` ones.

        A new table may be captured already, and restart. `refused` are requested tables that cannot be captured.
        """
        return AlteredTables(self.restarted(new) if new else self)

    def accept_interference(self) -> Self:
        """Accept foreign writes to the external objects; return the config with which capture resumes."""
        message = f'source "{self.source}" has no external objects that others could write to'
        raise UsageError(message, "`penstock status` shows why a source has stopped.")

    def restarted(self, tables: Sequence[ProducedTable]) -> Self:
        """Return this config with these tables restarted: with their present schema and a higher generation."""
        message = f'tables of source "{self.source}" cannot be captured again'
        raise UsageError(message, f"Drop the source and create it again: penstock drop {self.source}")

    def altered(self, spec: Source) -> Self:
        """Return this config with the source's altered options: those in `Source.ALTERABLE` that need no resnapshot."""
        return with_fields(self, **spec.instance_options())


@dataclass(frozen=True)
class AlteredTables:
    """The result of altering the tables of an instance."""

    config: InstanceConfig
    published: Lsn | None = None
    """A position from which on the changes of new tables arrive; None for the end of the log."""
    refused: Mapping[TableName, Finding] = field(default_factory=dict)
    """New tables that the upstream refuses to send, with the reason."""


@dataclass(frozen=True)
class _EachTime:
    """Asks an upstream system without a connection that could be kept."""

    config: InstanceConfig

    def status(self) -> UpstreamStatus | None:
        return self.config.upstream_status()

    def close(self) -> None:
        pass


class SourceOptions(BaseModel):
    """The options that every kind of source has; the `WithOptions` of a kind extend them."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    log: str | None = Field(
        default=None, description="location of the change log: kafka://broker:9092; by default a file in the home"
    )
    retain_history: Annotated[str, Span()] = Field(
        default="1 day", description="how long history is retained, beyond what readers need"
    )

    @field_validator("log")
    @classmethod
    def _names_a_log(cls, url: str | None) -> str | None:
        return None if url is None else check_log_url(url)

    @field_validator("retain_history")
    @classmethod
    def _is_a_duration(cls, text: str) -> str:
        parse_duration(text)
        return text


@dataclass(frozen=True)
class Checked:
    """The result of a check: the requested tables, whether each can be captured, and all findings."""

    tables: tuple[tuple[TableName, bool], ...]
    findings: tuple[Finding, ...]
    ready: bool
    """Whether capture can start, or resume."""
    aliases: Mapping[TableName, str] = field(default_factory=dict)
    """The local names that the user chose."""


class Source(SourceOptions, ABC):
    """The description of a source by its name and options, stored in the catalog; validated on creation.

    Its fields are the name and the fields of the two option types of its kind.
    """

    NAME: ClassVar[str]
    """The words after FROM in ``CREATE SOURCES``."""
    SqlOptions: ClassVar[type[BaseModel]]
    """The options that are written as clauses."""
    WithOptions: ClassVar[type[SourceOptions]]
    """The options that are written in ``WITH (…)``."""
    ALTERABLE: ClassVar[frozenset[str]] = frozenset({"retain_history"})
    """Options that ``ALTER SOURCES … SET`` can change; each is a field of the instance config, or in `RESNAPSHOT`."""
    RESNAPSHOT: ClassVar[frozenset[str]] = frozenset()
    """Those of them that take effect by capturing the tables again that `resnapshotted_tables` returns."""
    SCHEMES: ClassVar[frozenset[str]] = frozenset()
    """The schemes of URLs that `from_urls` accepts; the empty one stands for texts that are not URLs."""
    KEPT: ClassVar[frozenset[str]] = frozenset()
    """Options that keep their value when the same URL is given again without them."""

    name: str

    @field_validator("name")
    @classmethod
    def _plain_name(cls, name: str) -> str:
        return check_name(name)

    @classmethod
    def of(cls, name: str, **options: Any) -> Self:
        """Return a source with this name and the options of both types."""
        for option in options:
            if option not in cls.model_fields:
                message = f'unrecognized option "{option}" for a {cls.NAME} source'
                raise UsageError(message, nearest(option, cls.model_fields) or "See the source options reference.")
        try:
            return cls.model_validate({**options, "name": name})
        except ValidationError as invalid:
            first = invalid.errors(include_input=False, include_url=False)[0]
            message = f"invalid value for {'.'.join(map(str, first['loc'])) or name}: {first['msg']}"
            raise UsageError(message, f"See the reference documentation of {cls.NAME} sources.") from None

    @classmethod
    def from_urls(cls, urls: Sequence[str], name: str | None = None, **options: Any) -> Self:
        """Return the source for one URL, or a sharded source for several, with options."""
        message = f"a {cls.NAME} source cannot be created from a URL"
        raise UsageError(message, f"Use SQL: CREATE SOURCES name FROM {cls.NAME} …;")

    @classmethod
    def why_fixed(cls, option: str) -> str:
        """Return the reason why an option that is not in `ALTERABLE` cannot be changed."""
        return (
            "the change log holds the source's history" if option == "log" else "it is fixed when the source is created"
        )

    @classmethod
    def from_options(cls, name: str, sql: BaseModel, with_: BaseModel) -> Self:
        """Return the source that a statement's options describe."""
        return cls.of(name, **_given(sql), **_given(with_))

    def sql_options(self) -> BaseModel:
        """Return the options that are written as clauses."""
        return self._part(self.SqlOptions)

    def with_options(self) -> BaseModel:
        """Return the options that are written in ``WITH (…)``."""
        return self._part(self.WithOptions)

    def _part(self, options: type[BaseModel]) -> BaseModel:
        return options.model_construct(None, **{field: getattr(self, field) for field in options.model_fields})

    def shards(self) -> Mapping[str | None, Self]:
        """Return the shards of this source, by the value that distinguishes the rows of each.

        Each shard has its own instance, log and frontier. An unsharded source is its only shard, under None.
        """
        return {None: self}

    @classmethod
    def whole(cls, name: str, shards: Sequence[Source]) -> Source:
        """Return the source that has these `shards`."""
        return shards[0]

    def upstream(self) -> str | None:
        """Return what identifies the upstream system, to find a source that captures it already; None if nothing."""
        return None

    def database(self, instance: InstanceConfig) -> Database | None:
        """Return the tables of an instance, whose existing rows have to be copied; None if the stream has all rows."""
        return None

    def with_table(self, choice: TableChoice) -> Self:
        """Return the source with one more table; raise `UsageError` if it cannot have this one."""
        raise self._fixed_tables()

    def without_table(self, table: TableName) -> Self:
        """Return the source without one of its tables."""
        raise self._fixed_tables()

    def _fixed_tables(self) -> UsageError:
        message = f"source {self.name} is of kind {self.NAME}: its tables cannot be added or dropped"
        return UsageError(message, f"Drop the source and create it again: penstock drop {self.name}")

    @abstractmethod
    def create_instances(self, workers: int) -> Sequence[InstanceConfig]:
        """Return the configs of at most `workers` instances. This may query the upstream, but creates nothing there.

        Usually there is one, with the name of the source. A source that divides its work returns several, each with a
        name of its own: they are started, supervised and cleaned up separately, and queried as one.
        """

    def describe(self) -> Sequence[TableSchema]:
        """Return the schemas that this source will produce."""
        return [table.table_schema() for made in self.create_instances(1) for table in made.produced()]

    def redescribe(self, tables: Collection[TableName]) -> Mapping[TableName, ProducedTable | Finding]:
        """Return the present definitions of these tables, for a resnapshot, or the finding that prevents it."""
        gone = error("", "the table no longer exists upstream", "Recreate it upstream, then retry.")
        try:
            found = {table.name: table for made in self.create_instances(1) for table in made.produced()}
        except (DefiniteError, UsageError) as refused:
            found, gone = {}, error("", refused.message, refused.hint)
        return {name: found.get(name, gone) for name in tables}

    def resnapshotted_tables(self, before: Self) -> Collection[TableName]:
        """Return the tables that contain something else than `before`, because options in `RESNAPSHOT` differ.

        Raise `DefiniteError` if these options do not fit the tables upstream.
        """
        return ()

    def find_changed_tables(
        self, instance: InstanceConfig, tables: Collection[TableName]
    ) -> Mapping[TableName, ProducedTable | Finding] | None:
        """Return the present definitions of tables that stopped because their definition changed upstream.

        A finding says why a table cannot be captured as it is now. None: such tables wait for a request of a user.
        """
        return None

    def instance_options(self) -> dict[str, Any]:
        """Return the alterable options as fields of the instance config."""
        return {option: getattr(self, option) for option in self.ALTERABLE - self.RESNAPSHOT}

    def require_same_upstream(self, instance: InstanceConfig, durable: Lsn) -> None:
        """Raise `DefiniteError` unless `instance`, which reaches the upstream in another way, resumes at `durable`."""

    def find_new_tables(self, instance: InstanceConfig) -> Mapping[TableName, ProducedTable | Finding] | None:
        """Return the tables upstream that this source covers and `instance` does not capture.

        Each as it is now, or with the reason why it cannot be captured; None if the source does not capture tables
        that are created later.
        """
        return None

    def check(self, instance: InstanceConfig | None = None, durable: Lsn | None = None) -> Checked:
        """Check whether this source can be created; with `instance`, whether its capture can resume at `durable`."""
        try:
            schemas = self.describe()
        except PenstockError as refused:
            return Checked((), (error(self.place(), refused.message, refused.hint),), ready=False)
        return Checked(tuple((schema.table, True) for schema in schemas), (), ready=True)

    def place(self) -> str:
        """Describe the origin of its data for users, without secrets."""
        return self.upstream() or self.NAME


def _given(options: BaseModel) -> dict[str, Any]:
    return {field: getattr(options, field) for field in options.model_fields_set}


class Instance(ABC):
    """A running instance of a source: the only writer of its change log."""

    @abstractmethod
    def run(self, stop: threading.Event, connected: Callable[[], None]) -> None:
        """Write changes to the log until `stop` is set.

        Call `connected` when the source is reached and `config` is to be stored. Raise `TransientError` for an error
        after which the caller should run the instance again.
        """

    @abstractmethod
    def config(self) -> InstanceConfig:
        """Return the present config: a source may move, for example to a promoted standby.

        The log contains nothing that was captured under a changed config before `connected` was called.
        """

    @abstractmethod
    def valid_frontier(self) -> Lsn | None:
        """Return the position after which history can be read exactly; None if the source has no such position."""

    @abstractmethod
    def durable_frontier(self) -> Lsn | None:
        """Return the position up to which a restart returns the same data; None if nothing is durable."""


class InstanceFactory(ABC):
    """Creates instances. There is one factory per process; it holds only disposable state, like shared connections."""

    @abstractmethod
    def instantiate(self, config: InstanceConfig, log: ChangeLog, state: Path) -> Instance:
        """Return an instance that writes to this log; `state` is its folder in the home, removed with the source.

        The log and the folder are not written atomically: the instance must be able to reconcile them.
        """


@dataclass(frozen=True)
class Kind:
    """A kind of source: the set of its types."""

    source: type[Source]
    config: type[InstanceConfig]
    factory: Callable[[], InstanceFactory]
    """Called once per capture process."""
    warm: Callable[[], None] | None = None
    """Compiles the kernels of this kind ahead of time, for `penstock setup`; a function of a module."""

    @property
    def name(self) -> str:
        """The words after FROM."""
        return self.source.NAME
