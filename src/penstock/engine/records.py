"""What the catalog holds of a source, read back as the types of its kind."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.catalog.store import Debt, SourceRecord, read_instance
from penstock.errors import UsageError
from penstock.sources.interface import InstanceConfig, ProducedTable, Source
from penstock.sources.kinds import kind
from penstock.sources.postgres.captured import CapturedTable
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
    """Read what was asked for."""
    return kind(record.kind).source.model_validate_json(record.spec)


def whole_spec_of(name: str, records: Sequence[SourceRecord]) -> Source:
    """Read what was asked for under a name: of one source, or of all the shards of which it is made."""
    specs = [spec_of(record) for record in records]
    return specs[0] if records[0].name == name else type(specs[0]).whole(name, specs)


def instance_of(record: SourceRecord) -> InstanceConfig:
    """Read a source's instance config."""
    return read_instance(record.kind, record.instance)


def debt_of(debt: Debt) -> InstanceConfig:
    """Read what a debt is about."""
    return read_instance(debt.kind, debt.instance)


def database_spec_of(record: SourceRecord) -> PostgresSource:
    """Read what was asked for of a database; refuse another kind of source."""
    spec = spec_of(record)
    if not isinstance(spec, PostgresSource):
        raise _no_database(record)
    return spec


def database_instance_of(record: SourceRecord) -> PostgresInstanceConfig:
    """Read the instance config of a database's source; refuse another kind of source."""
    instance = instance_of(record)
    if not isinstance(instance, PostgresInstanceConfig):
        raise _no_database(record)
    return instance


def captured_of(table: ProducedTable) -> CapturedTable:
    """Return a table of a database's source as what it is."""
    if not isinstance(table, CapturedTable):
        raise TypeError(table)
    return table


def _no_database(record: SourceRecord) -> UsageError:
    message = f"source {record.name} is of the kind {record.kind}: this can be asked of the tables of a database alone"
    return UsageError(message, "See `penstock status` for the sources that there are.")
