"""Records of Postgres sources in the catalog, parsed into the types of their kind."""

from __future__ import annotations

from penstock.catalog.store import SourceRecord
from penstock.engine.catalog_records import instance_of, spec_of
from penstock.sources.postgres.config import PostgresInstanceConfig
from penstock.sources.postgres.spec import PostgresSource

__all__ = ["postgres_instance_of", "postgres_spec_of"]


def postgres_spec_of(record: SourceRecord) -> PostgresSource:
    """Return the specification of a Postgres source."""
    spec = spec_of(record)
    assert isinstance(spec, PostgresSource)
    return spec


def postgres_instance_of(record: SourceRecord) -> PostgresInstanceConfig:
    """Return the instance config of a Postgres source."""
    instance = instance_of(record)
    assert isinstance(instance, PostgresInstanceConfig)
    return instance
