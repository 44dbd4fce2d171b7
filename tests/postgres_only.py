"""Select the tests that connect to a Postgres server: only these run on other Postgres versions (`tests.matrix`)."""

from __future__ import annotations

import pytest

__all__ = ["POSTGRES_ONLY", "needs_postgres"]

POSTGRES_ONLY = "--postgres-only"
"""The pytest option that deselects all other tests."""

_FIXTURE, _START_FUNCTION = "postgres_server", "start_postgres"


def needs_postgres(item: pytest.Item) -> bool:
    """Return whether a test uses the shared server, or its module starts servers."""
    return _FIXTURE in getattr(item, "fixturenames", ()) or hasattr(getattr(item, "module", None), _START_FUNCTION)
