"""``FROM POSTGRES``: the types of a Postgres source together."""

from __future__ import annotations

from penstock.sources.interface import InstanceFactory, Kind
from penstock.sources.postgres.config import PostgresInstanceConfig
from penstock.sources.postgres.spec import PostgresSource

__all__ = ["KIND"]


def _factory() -> InstanceFactory:
    """Capture needs compiled kernels: they are loaded where it runs, and not by whoever only asks for the kind."""
    from penstock.sources.postgres.instance import PostgresInstanceFactory

    return PostgresInstanceFactory()


KIND = Kind(PostgresSource, PostgresInstanceConfig, _factory)
