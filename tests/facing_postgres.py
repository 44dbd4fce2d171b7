"""Which tests talk to a Postgres server: those alone are run on other versions of it (`tests.matrix`)."""

from __future__ import annotations

import pytest

__all__ = ["FACING_POSTGRES", "faces_postgres"]

FACING_POSTGRES = "--facing-postgres"
"""The option of pytest that leaves out all others."""

_FIXTURE, _STARTS = "postgres_server", "start_postgres"


def faces_postgres(item: pytest.Item) -> bool:
    """Whether a test uses the shared server, or its module starts servers of its own."""
    return _FIXTURE in getattr(item, "fixturenames", ()) or hasattr(getattr(item, "module", None), _STARTS)
