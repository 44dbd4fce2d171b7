"""Parsing of catalog records into the types of a source's kind."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.catalog.store import Debt, SourceRecord, read_instance
from penstock.errors import UsageError
from penstock.sources.database import Database
from penstock.sources.interface import InstanceConfig, Source
from penstock.sources.kinds import kind

__all__ = ["database_of", "debt_of", "instance_of", "require_database", "spec_of", "whole_spec_of"]


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


def database_of(record: SourceRecord) -> Database | None:
    """Return the upstream tables of a source; None if it needs no copies of them."""
    return spec_of(record).database(instance_of(record))


def require_database(record: SourceRecord) -> Database:
    """Return the upstream tables of a source; raise `UsageError` if its kind has no access to them."""
    found = database_of(record)
    if found is None:
        message = f"source {record.name} is of kind {record.kind}: only sources of database tables support this"
        raise UsageError(message, "`penstock status` lists the sources of this home.")
    return found
