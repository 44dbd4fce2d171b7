"""Parsing of catalog records into the types of a source's kind."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.catalog.store import Debt, SourceRecord, read_instance
from penstock.errors import UsageError
from penstock.sources.interface import InstanceConfig, ProducedTable, Source
from penstock.sources.kinds import kind
from penstock.sources.postgres.captured_table import CapturedTable
from penstock.sources.postgres.config import PostgresInstanceConfig
from penstock.sources.postgres.spec import PostgresSource

__all__ = [
    "captured_of",
    "database_instance_of",
    "database_spec_of",
    "debt_of",
    "instance_of",
    "spec_of",
    "whole_spec_of",
]


def spec_of(record: SourceRecord) -> Source:
    """Return the specification of a source."""
    return kind(record.kind).source.model_validate_json(record.spec)


def whole_spec_of(name: str, records: Sequence[SourceRecord]) -> Source:
    """Return the specification of a source by its user-given name, combined from its shards if it is sharded."""
    specs = [spec_of(record) for record in records]
    return specs[0] if records[0].name == name else type(specs[0]).whole(name, specs)


def instance_of(record: SourceRecord) -> InstanceConfig:
    """Return the instance config of a source."""
    return read_instance(record.kind, record.instance)


def debt_of(debt: Debt) -> InstanceConfig:
    """Return the instance config whose upstream objects a debt concerns."""
    return read_instance(debt.kind, debt.instance)


def database_spec_of(record: SourceRecord) -> PostgresSource:
    """Return the specification of a Postgres source; raise `UsageError` for another kind."""
    spec = spec_of(record)
    if not isinstance(spec, PostgresSource):
        raise _no_database(record)
    return spec


def database_instance_of(record: SourceRecord) -> PostgresInstanceConfig:
    """Return the instance config of a Postgres source; raise `UsageError` for another kind."""
    instance = instance_of(record)
    if not isinstance(instance, PostgresInstanceConfig):
        raise _no_database(record)
    return instance


def captured_of(table: ProducedTable) -> CapturedTable:
    """Return a table of a Postgres source, narrowed to its type."""
    if not isinstance(table, CapturedTable):
        raise TypeError(table)
    return table


def _no_database(record: SourceRecord) -> UsageError:
    message = f"source {record.name} is of kind {record.kind}: only Postgres sources support this"
    return UsageError(message, "`penstock status` lists the sources of this home.")
