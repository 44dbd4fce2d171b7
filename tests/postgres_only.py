"""Select the tests whose result may depend on the version of Postgres: only these run on other versions.

`tests.matrix` runs the tests that connect to a server. With ``--source``, it leaves out those that connect to one, but
cannot depend on its version: ``@pytest.mark.any_version("why")``.
"""

from __future__ import annotations

import pytest

__all__ = ["POSTGRES_ONLY", "VERSION_ONLY", "needs_postgres", "needs_version"]

POSTGRES_ONLY = "--postgres-only"
"""The pytest option that deselects all other tests."""

VERSION_ONLY = "--version-only"
"""The pytest option that also deselects tests with the marker `any_version`."""

_FIXTURE, _START_FUNCTION = "postgres_server", "start_postgres"


def needs_postgres(item: pytest.Item) -> bool:
    """Return whether a test uses the shared server, or its module starts servers."""
    return _FIXTURE in getattr(item, "fixturenames", ()) or hasattr(getattr(item, "module", None), _START_FUNCTION)


def needs_version(item: pytest.Item) -> bool:
    """Return whether the result of a test may depend on the version of the server."""
    return item.get_closest_marker("any_version") is None
