"""The version of Postgres that the tests run against, for tests that need a newer one."""

from __future__ import annotations

from typing import Any

import pytest


def version_of(server: Any) -> int:
    """Return the major version of a server (or of a test's database)."""
    return int(server.execute("SELECT current_setting('server_version_num')::int / 10000")[0][0])


def needs(server: Any, version: int, what: str) -> None:
    """Skip the test on an older server, with the missing feature as the reason."""
    if version_of(server) < version:
        pytest.skip(f"Postgres {version_of(server)} has no {what}")
