"""The recordings: the golden ones, and, for `make test-deep`, those of a running Debezium."""

from __future__ import annotations

import fcntl
from pathlib import Path

import pytest
from tests.conftest import created_database
from tests.debezium.record import GOLDEN, KILLS, RECORDINGS, record
from tests.debezium.recording import Recording

DEEP = [pytest.mark.deep, pytest.mark.timeout(900 + 300 * KILLS)]
Recordings = dict[str, Recording]


@pytest.fixture(scope="session")
def golden() -> Recordings:
    """The recordings in the repository."""
    return _loaded(GOLDEN)


@pytest.fixture(scope="session")
def fresh(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Recordings:
    """Recordings taken now: once for the whole run, also with several workers."""
    folder = tmp_path_factory.getbasetemp()
    folder = folder.parent if hasattr(request.config, "workerinput") else folder
    made = folder / "fresh-recordings"
    with (folder / "fresh-recordings.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            _record(request, tmp_path_factory.mktemp("recording"), made)
    return _loaded(made)


def _record(request: pytest.FixtureRequest, scratch: Path, made: Path) -> None:
    broker, registry = request.getfixturevalue("broker"), request.getfixturevalue("registry")
    with created_database(request.getfixturevalue("postgres_server")) as database:
        found = record(scratch / "debezium", database.url, broker.bootstrap, registry.url)
    for name, recording in found.items():
        recording.save(scratch / "made" / name)
    (scratch / "made").rename(made)


def _loaded(folder: Path) -> Recordings:
    return {name: Recording.load(folder / name) for name in RECORDINGS}


@pytest.fixture(scope="session", params=["golden", pytest.param("fresh", marks=DEEP)])
def recordings(request: pytest.FixtureRequest) -> Recordings:
    """Both recordings, golden and fresh."""
    found: Recordings = request.getfixturevalue(request.param)
    return found
