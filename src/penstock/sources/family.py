"""The family of types that makes a source: describe, then execute.

::

    Source          a value: what the user asked for
      └─ create_instances(workers) ─▶ InstanceConfig   serialisable; in the catalog before anything is made outside
            ├─ prepare()  makes what it needs outside (slot, publication)
            ├─ cleanup()  removes it again, also after a crash half-way
            └─ InstanceFactory.instantiate ─▶ Instance  runs in the capture process and writes the change log

A new kind of source is one folder beside `postgres` that implements these four.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import ClassVar, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator

from penstock.changelog.interface import ChangeLog
from penstock.changelog.place import check_log_url
from penstock.durations import parse_duration
from penstock.model import TableSchema
from penstock.positions import Lsn

__all__ = ["Instance", "InstanceConfig", "InstanceFactory", "Source"]


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
        """Return the statements that remove it by hand, for when the outside cannot be reached."""

    @abstractmethod
    def start(self) -> Lsn:
        """Return the position at which this instance's history begins."""


class Source(BaseModel, ABC):
    """What the user asked for: to and from the catalog; validated where it is made."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    NAME: ClassVar[str]

    name: str
    log: str | None = Field(default=None, description="where the change log is: kafka://broker:9092; else in the home")
    retain_history: str = Field(default="1 day", description="how long history is kept, beyond what readers need")
    part_of: str | None = Field(default=None, description="of a shard, the name that the user gave to all of them")
    shard: str | None = Field(default=None, description="of a shard, what tells its rows from those of the others")

    @field_validator("log")
    @classmethod
    def _names_a_log(cls, url: str | None) -> str | None:
        return None if url is None else check_log_url(url)

    @field_validator("retain_history")
    @classmethod
    def _is_a_duration(cls, text: str) -> str:
        parse_duration(text)
        return text

    def shards(self) -> Sequence[Self]:
        """Return the sources of which this one is made, each with instance, log and frontier of its own."""
        return [self]

    @abstractmethod
    def create_instances(self, workers: int) -> Sequence[InstanceConfig]:
        """Return at most `workers` configs. Looks outside, but makes nothing there."""

    @abstractmethod
    def describe(self) -> Sequence[TableSchema]:
        """Return the schemas that this source will produce."""


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
    def instantiate(self, config: InstanceConfig, log: ChangeLog) -> Instance:
        """Make an instance that writes to this log."""
