"""How tests are divided among workers: one lane for all that needs Spark, and a lane for each other file.

::

    spark   every test with the fixture `spark` ──▶ one worker, one session, one JVM
    a file  all other tests of a file, together ──▶ whichever worker is free

A session of Spark takes ten seconds to start and warms up over minutes, and two of them are slower on two cores than
one. The lane of Spark is therefore handed out first, and the other files keep the other workers busy meanwhile; files
in `LONGEST` come first among them, since a long file that is begun last keeps one worker busy while the others wait.

Only workers know which fixtures a test has, and the controller hands out tests by their names: a worker writes the
names of the lane of Spark into a file, which the controller has named to it, before it reports what it has collected.

Runs with ``--dist loadfile`` are divided so (`make test`). A run in one process keeps the order of the folders.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler.loadscope import LoadScopeScheduling

__all__ = ["LANE", "LONGEST", "SPARK", "LaneNames", "Lanes", "divide"]

SPARK = "spark"
"""The fixture that puts a test into the lane of the same name."""
LANE = pytest.mark.lane(SPARK)
"""The marker of a test that asks for the fixture when it runs."""

LONGEST: tuple[str, ...] = (
    "tests/cli/test_bad_input.py",
    "tests/embedded/test_postgres.py",
    "tests/sources/kafka/transactions/test_following.py",
)
"""Files without Spark that take longer than a minute, the longest first: see the end of a run of `make test`."""


class LaneNames:
    """The names of the tests that need Spark, as workers tell them to the controller; a plugin of the controller."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="penstock-lanes-")
        self.file = Path(self._folder.name, "spark.json")

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Name the file to a worker of xdist, before it starts."""
        node.workerinput["lanes"] = str(self.file)

    def pytest_unconfigure(self) -> None:
        """Remove the file."""
        self._folder.cleanup()

    def read(self) -> frozenset[str]:
        """Return the names; all workers have written the same ones by the time that tests are handed out."""
        return frozenset(json.loads(self.file.read_text(encoding="utf-8")))


class Lanes(LoadScopeScheduling):  # type: ignore[misc]
    """Hands out lanes, not tests."""

    def __init__(self, config: pytest.Config, log: Any, names: LaneNames) -> None:
        super().__init__(config, log)
        self._names = names
        self._spark: frozenset[str] | None = None

    def _split_scope(self, nodeid: str) -> str:
        if self._spark is None:
            self._spark = self._names.read()
        return SPARK if nodeid in self._spark else nodeid.partition("::")[0]


def divide(items: list[pytest.Item], file: Path) -> None:
    """Bring tests into the order in which lanes are handed out, in place; write the names of the lane of Spark."""
    rank = {name: number for number, name in enumerate(LONGEST)}
    items.sort(key=lambda item: (not _needs_spark(item), rank.get(item.nodeid.partition("::")[0], len(rank))))
    written = file.with_suffix(f".{id(items)}")
    written.write_text(json.dumps([item.nodeid for item in items if _needs_spark(item)]), encoding="utf-8")
    written.replace(file)


def _needs_spark(item: pytest.Item) -> bool:
    return SPARK in getattr(item, "fixturenames", ()) or item.get_closest_marker("lane") is not None
