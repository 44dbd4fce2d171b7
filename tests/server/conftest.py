"""Fixtures: a home, and servers for it without Spark."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.server.clients import TOKEN, no_spark

from penstock.home import Home
from penstock.server.address import Address
from penstock.server.serving import serve

ANY_PORT = "127.0.0.1:0"


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


@pytest.fixture
def server(home: Home) -> Iterator[Address]:
    """A server on the loopback interface, without a token."""
    with serve(home, no_spark, ANY_PORT) as serving:
        yield serving.address
        serving.check()


@pytest.fixture(scope="module")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Address]:
    """The same, for tests that change nothing."""
    with serve(Home(tmp_path_factory.mktemp("open") / "home"), no_spark, ANY_PORT) as serving:
        yield serving.address
        serving.check()


@pytest.fixture(scope="module")
def token_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Address]:
    """A server that requires a token."""
    with serve(Home(tmp_path_factory.mktemp("token") / "home"), no_spark, ANY_PORT, TOKEN) as serving:
        yield serving.address
        serving.check()
