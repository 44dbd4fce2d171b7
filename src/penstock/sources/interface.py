"""The family of types that makes a source: describe, then execute.

::

    Source          a value: what the user asked for, of its kind's two option types
      ├─ check()   could it work, and what is in the way
      └─ create_instances(workers) ─▶ InstanceConfig   serialisable; in the catalog before anything is made outside
            ├─ prepare()  makes what it needs outside (slot, publication)
            ├─ cleanup()  removes it again, also after a crash half-way
            ├─ produced() the tables that it makes
            └─ InstanceFactory.instantiate ─▶ Instance  runs in the capture process and writes the change log

A kind of source is these types together (`Kind`), in a module of its own: ours beside `postgres`, those of others in
packages that say so (see `penstock.sources.kinds`). All the rest of the system knows nothing but what is here.

These types raise Penstock's own errors: `DefiniteError` for what stays until an operator acts, `TransientError` for
what may pass, `AlreadyExistsError` for an object that exists and is not ours, `NotOwnedError` for an object that was to
be removed and may not be ours.
"""

from __future__ import annotations

import re
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from penstock.changelog.interface import ChangeLog
from penstock.changelog.place import check_log_url
from penstock.errors import DefiniteError, PenstockError, UsageError
from penstock.fields import with_fields
from penstock.model import TableName, TableSchema
from penstock.nearest import nearest
from penstock.positions import Lsn
from penstock.sources.findings import Finding, error
from penstock.sources.syntax import Span
from penstock.units import parse_duration

__all__ = [
    "Checked",
    "Instance",
    "InstanceConfig",
    "InstanceFactory",
    "Kind",
    "ProducedTable",
    "Source",
    "SourceOptions",
    "check_name",
    "is_name",
]

_NAME = re.compile(r"[a-z][a-z0-9_]{0,40}")


def is_name(name: str) -> bool:
    """Say whether a source can be called so."""
    return _NAME.fullmatch(name) is not None


def check_name(name: str) -> str:
    """Return the name of a source; refuse what cannot be one."""
    if not is_name(name):
        message = f"{name!r} cannot name a source"
        raise UsageError(
            message, "Use a lower-case letter, then lower-case letters, digits and underscores, 41 at most."
        )
    return name


class ProducedTable(BaseModel, ABC):
    """A table that an instance produces. Kinds may know more of theirs, in a class of their own."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: TableName
    generation: int = 0
    """How often it was captured anew: its history in the log begins with the last time."""
    comment: str | None = None
    alias: str | None = None
    """The name that it shall have here; None for the one that it has outside."""

    @abstractmethod
    def table_schema(self) -> TableSchema:
        """Return its columns and its key, as they are when the capture begins."""

    def comments(self) -> dict[str, str]:
        """Return the comments of its columns."""
        return {}

    def remembers(self) -> bool:
        """Say whether its commits hold more than rows: what is to be known of changes so far to take the next ones."""
        return False

    def refuses(self) -> bool:
        """Say whether it may refuse a part of what its log holds: to put that aside, or to end there by itself.

        What it put aside can be read as a table. One that ended can be tried again with other options.
        """
        return False


class InstanceConfig(BaseModel, ABC):
    """All that one running piece of a source needs. A value; knows how to clean up what it made outside."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    source: str
    retain_history: str = "1 day"

    def retained(self) -> timedelta:
        """Return how long history is kept, beyond what readers need."""
        return parse_duration(self.retain_history)

    @abstractmethod
    def prepare(self) -> Self:
        """Make what is needed outside; return the config with what became known. Undone by `cleanup`."""

    @abstractmethod
    def cleanup(self) -> list[str]:
        """Remove what was made outside, whether or not all of it is there; return the names of what was removed."""

    @abstractmethod
    def by_hand(self) -> list[str]:
        """Return the statements that remove it by hand, for when the outside cannot be reached; empty: nothing to."""

    @abstractmethod
    def start(self) -> Lsn:
        """Return the position at which this instance's history begins."""

    @abstractmethod
    def produced(self) -> Sequence[ProducedTable]:
        """Return the tables that it produces."""

    @abstractmethod
    def place(self) -> str:
        """Name for people where its data comes from; without a secret."""

    def reading(self, log: ChangeLog, state: Path) -> ChangeLog:
        """Return the log as others read it: more than itself, where its changes lie elsewhere.

        `state` is the folder of the source in the home, as its instance has it.
        """
        return log

    def left_out(self) -> Mapping[TableName, tuple[str, str]]:
        """Return the tables that were asked for and cannot be had: why, and what to do about it."""
        return {}

    def makes(self) -> list[str]:
        """Name what `prepare` makes outside."""
        return []

    def kept(self) -> list[str]:
        """Name what is the user's outside, and stays there when the source is dropped."""
        return []

    def copies(self) -> bool:
        """Say whether tables are copied first: there are rows outside that the stream does not bring."""
        return False

    def require_own(self, durable: Lsn | None) -> None:
        """Raise `NotOwnedError` where an external object may no longer be this source's: the home was copied.

        The log of this home ends at `durable`; None where it cannot be read, or was never made.
        """

    def settle(self, durable: Lsn) -> list[str]:
        """Clean up long after capture ended, which had confirmed no more than `durable`; return what was removed.

        Raise `NotOwnedError` as `require_own` does.
        """
        self.require_own(durable)
        return self.cleanup()

    def same_outside(self, other: InstanceConfig) -> bool:
        """Say whether what this one made outside is what another one uses now: then it is not to be removed."""
        return False

    def behind(self, durable: Lsn) -> int | None:
        """Ask the outside how much there is beyond a position, in bytes; None where it cannot say."""
        return None

    def valid_from(self, state: Path) -> str | None:
        """Say from which moment on its tables are valid, where that is later than their history begins; else None."""
        return None

    def waiting(self, state: Path) -> str | None:
        """Say for what the instance whose folder this is waits, and why that may be; None where it does not wait."""
        return None

    def anew(self, tables: Sequence[ProducedTable]) -> Self:
        """Return this config with tables that begin again: as they are outside now, of a higher generation."""
        message = f"no table of source {self.source} can be captured anew"
        raise UsageError(message, f"Drop the source and create it again: penstock drop {self.source}")

    def altered(self, spec: Source) -> Self:
        """Return this config as the source's altered options (those in `Source.ALTERABLE`) want it."""
        wished = {option: getattr(spec, option) for option in spec.ALTERABLE}
        return with_fields(self, **wished)


class SourceOptions(BaseModel):
    """The options that every kind of source has: its `WithOptions` are these, and its own."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    log: str | None = Field(default=None, description="where the change log is: kafka://broker:9092; else in the home")
    retain_history: Annotated[str, Span()] = Field(
        default="1 day", description="how long history is kept, beyond what readers need"
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
    """What a look at the outside found: the tables that were asked for, whether each can be had, and all findings."""

    tables: tuple[tuple[TableName, bool], ...]
    findings: tuple[Finding, ...]
    ready: bool
    """Whether capture could start, or go on."""


class Source(SourceOptions, ABC):
    """What the user asked for: to and from the catalog; validated where it is made.

    Its fields are the name and those of the two option types of its kind.
    """

    NAME: ClassVar[str]
    """What stands behind FROM in ``CREATE SOURCES``."""
    SqlOptions: ClassVar[type[BaseModel]]
    """What is written in keywords of their own."""
    WithOptions: ClassVar[type[SourceOptions]]
    """What is written in ``WITH (…)``."""
    ALTERABLE: ClassVar[frozenset[str]] = frozenset({"retain_history"})
    """Options of ``WITH`` that can be changed later, by ``ALTER SOURCES … SET``: fields of the instance config, too."""

    name: str

    @field_validator("name")
    @classmethod
    def _plain_name(cls, name: str) -> str:
        return check_name(name)

    @classmethod
    def of(cls, name: str, **options: Any) -> Self:
        """Make it of its name and its options, those of both types together."""
        for option in options:
            if option not in cls.model_fields:
                message = f"there is no option {option} of a source {cls.NAME}"
                raise UsageError(message, nearest(option, cls.model_fields) or "See the reference of its options.")
        try:
            return cls.model_validate({**options, "name": name})
        except ValidationError as invalid:
            first = invalid.errors(include_input=False, include_url=False)[0]
            message = f"the option {'.'.join(map(str, first['loc'])) or name}: {first['msg']}"
            raise UsageError(message, f"See the reference of the options of a source {cls.NAME}.") from None

    @classmethod
    def why_fixed(cls, option: str) -> str:
        """Say why an option that is not in `ALTERABLE` cannot be changed later."""
        return "the history of the source is there" if option == "log" else "the source was made with it"

    @classmethod
    def from_options(cls, name: str, sql: BaseModel, with_: BaseModel) -> Self:
        """Make it of what a statement says."""
        return cls.of(name, **_given(sql), **_given(with_))

    def sql_options(self) -> BaseModel:
        """Return what is written in keywords."""
        return self._part(self.SqlOptions)

    def with_options(self) -> BaseModel:
        """Return what is written in ``WITH (…)``."""
        return self._part(self.WithOptions)

    def _part(self, options: type[BaseModel]) -> BaseModel:
        return options.model_construct(None, **{field: getattr(self, field) for field in options.model_fields})

    def shards(self) -> Mapping[str | None, Self]:
        """Return the sources of which this one is made, by what tells the rows of each from those of the others.

        Each has instance, log and frontier of its own. A source that is no such thing is there alone, under None.
        """
        return {None: self}

    @classmethod
    def whole(cls, name: str, shards: Sequence[Source]) -> Source:
        """Return the source whose `shards` these are."""
        return shards[0]

    @abstractmethod
    def create_instances(self, workers: int) -> Sequence[InstanceConfig]:
        """Return at most `workers` configs. Looks outside, but makes nothing there."""

    def describe(self) -> Sequence[TableSchema]:
        """Return the schemas that this source will produce."""
        return [table.table_schema() for made in self.create_instances(1) for table in made.produced()]

    def look_again(self, tables: Collection[TableName]) -> Mapping[TableName, ProducedTable | Finding]:
        """Return these tables as they are outside now, to be captured anew; or why one cannot be."""
        gone = error("", "it is not there any more", "Bring it back outside, then retry.")
        try:
            found = {table.name: table for made in self.create_instances(1) for table in made.produced()}
        except (DefiniteError, UsageError) as refused:
            found, gone = {}, error("", refused.message, refused.hint)
        return {name: found.get(name, gone) for name in tables}

    def check(self, instance: InstanceConfig | None = None, durable: Lsn | None = None) -> Checked:
        """Look whether this source could be made; or whether one that is there, and captured so far, can go on."""
        try:
            schemas = self.describe()
        except PenstockError as refused:
            return Checked((), (error(self.place(), refused.message, refused.hint),), ready=False)
        return Checked(tuple((schema.table, True) for schema in schemas), (), ready=True)

    @abstractmethod
    def place(self) -> str:
        """Name for people where its data comes from; without a secret."""


def _given(options: BaseModel) -> dict[str, Any]:
    return {field: getattr(options, field) for field in options.model_fields_set}


class Instance(ABC):
    """One running piece of a source: the only writer of its change log."""

    @abstractmethod
    def run(self, stop: threading.Event, connected: Callable[[], None]) -> None:
        """Write changes to the log until told to stop; say when the source is reached, and `config` is to be stored.

        Raises `TransientError` when it is worth being run again.
        """

    @abstractmethod
    def config(self) -> InstanceConfig:
        """Return the config as it is by now: a source may move, like a database to the standby that was promoted.

        Nothing that was captured under a changed config is in the log before `connected` has been called.
        """

    @abstractmethod
    def valid_frontier(self) -> Lsn | None:
        """Return the position after which history can be read exactly; None where there is no such notion."""

    @abstractmethod
    def durable_frontier(self) -> Lsn | None:
        """Return the position up to which a restart will give the same data; None where nothing is durable."""


class InstanceFactory(ABC):
    """One per process; holds only what may be lost, like shared connections."""

    @abstractmethod
    def instantiate(self, config: InstanceConfig, log: ChangeLog, state: Path) -> Instance:
        """Make an instance that writes to this log; `state` is a folder of its own in the home, gone with the source.

        What it keeps there must be reconcilable with the log: the two are not written in one step.
        """


@dataclass(frozen=True)
class Kind:
    """A kind of source: its types together."""

    source: type[Source]
    config: type[InstanceConfig]
    factory: Callable[[], InstanceFactory]
    """Called once in the process in which instances run."""

    @property
    def name(self) -> str:
        """What stands behind FROM."""
        return self.source.NAME
