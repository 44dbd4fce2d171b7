"""The source kind ``FROM POSTGRES``."""

from __future__ import annotations

from penstock.sources.interface import InstanceFactory, Kind
from penstock.sources.postgres.config import PostgresInstanceConfig
from penstock.sources.postgres.spec import PostgresSource

__all__ = ["KIND"]


def _factory() -> InstanceFactory:
    """Return the instance factory; import it here, so that only capture processes load the compiled kernels."""
    from penstock.sources.postgres.instance import PostgresInstanceFactory

    return PostgresInstanceFactory()


def _warm() -> None:
    """Compile the kernels."""
    from penstock.sources.postgres.warm import warm

    warm()


KIND = Kind(PostgresSource, PostgresInstanceConfig, _factory, _warm)
