"""A Postgres source as a value, and what one running capture of it needs."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from typing import ClassVar, Self

import psycopg
from psycopg.conninfo import conninfo_to_dict
from pydantic import Field, field_validator

from penstock.errors import TransientError, UsageError
from penstock.model import TableSchema
from penstock.positions import Lsn
from penstock.sources.family import InstanceConfig, Source
from penstock.sources.postgres.captured import CapturedTable
from penstock.sources.postgres.connection import connect, connect_replication, parse_url, place
from penstock.sources.postgres.preflight import Preflight, examine
from penstock.sources.postgres.publication import create_publication, drop_publication
from penstock.sources.postgres.slot import create_slot, drop_slot, identify

__all__ = ["PostgresInstanceConfig", "PostgresSource", "source_name"]

_NAME = re.compile(r"[a-z][a-z0-9_]{0,40}")
_RELEASE_SECONDS = 10.0


def source_name(url: str) -> str:
    """Derive a source's name from its database's."""
    parameters = conninfo_to_dict(parse_url(url))
    database = str(parameters.get("dbname") or parameters.get("user") or "postgres")
    name = re.sub(r"[^a-z0-9_]+", "_", database.lower()).strip("_")[:40]
    return name if _NAME.fullmatch(name) else f"db_{name}"[:41]


class PostgresSource(Source):
    """All tables of a Postgres database."""

    NAME: ClassVar[str] = "POSTGRES"

    connection: str
    publication: str
    slot: str

    @field_validator("name")
    @classmethod
    def _plain_name(cls, name: str) -> str:
        if not _NAME.fullmatch(name):
            message = "a source's name is a lower-case letter, then letters, digits and underscores, 41 at most"
            raise ValueError(message)
        return name

    @classmethod
    def from_url(cls, url: str, name: str | None = None) -> Self:
        """Describe the capture of a database by its URL."""
        conninfo = parse_url(url)
        name = name or source_name(url)
        if not _NAME.fullmatch(name):
            message = f"{name!r} cannot name a source"
            raise UsageError(
                message,
                "Use a lower-case letter, then lower-case letters, digits and underscores, 41 at most.",
            )
        return cls(name=name, connection=conninfo, publication=f"penstock_{name}", slot=f"penstock_{name}")

    def preflight(self) -> Preflight:
        """Look whether this database can be captured."""
        with connect(self.connection) as connection:
            return examine(connection, self.publication, self.slot)

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
                connection=self.connection,
                publication=self.publication,
                slot=self.slot,
                tables=tuple(table.captured() for table in found.capturable()),
                refused={str(name): (f.why, f.remedy) for name, f in found.refused().items()},
            )
        ]


class PostgresInstanceConfig(InstanceConfig):
    """What one capture process needs, and what it made upstream."""

    connection: str
    publication: str
    slot: str
    tables: tuple[CapturedTable, ...]
    refused: dict[str, tuple[str, str]] = Field(default_factory=dict)
    start_lsn: int = 0
    system: str = ""
    timeline: int = 0
    forked_at: int = 0
    """Where this timeline began; 0 for the first one, and until capture has connected."""

    def start(self) -> Lsn:
        """Return the position from which on the slot sees every commit."""
        return Lsn(self.start_lsn)

    def prepare(self) -> Self:
        """Make the publication, then the slot: a slot decodes only with publications older than itself."""
        with connect(self.connection) as connection, connect_replication(self.connection) as replication:
            system, timeline = identify(replication)
            create_publication(connection, self.publication, [table.name for table in self.tables])
            try:
                start = create_slot(replication, self.slot)
            except BaseException:
                drop_publication(connection, self.publication)
                raise
        return self.model_copy(update={"start_lsn": int(start), "system": system, "timeline": timeline})

    def cleanup(self) -> list[str]:
        """Drop slot and publication; a capture that has just been stopped gets a moment to let go of the slot."""
        removed = []
        with connect(self.connection) as connection:
            if _drop_released(connection, self.slot):
                removed.append(f"slot {self.slot}")
            if drop_publication(connection, self.publication):
                removed.append(f"publication {self.publication}")
        return removed

    def by_hand(self) -> list[str]:
        """Return what to run in psql on that database."""
        return [
            f"-- on {place(self.connection)}",
            f"SELECT pg_drop_replication_slot('{self.slot}');",
            f'DROP PUBLICATION IF EXISTS "{self.publication}";',
        ]


def _drop_released(connection: psycopg.Connection[tuple[object, ...]], slot: str) -> bool:
    deadline = time.monotonic() + _RELEASE_SECONDS
    while True:
        try:
            return drop_slot(connection, slot)
        except (TransientError, psycopg.errors.ObjectInUse):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)
