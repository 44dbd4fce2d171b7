"""Divide tests among workers: one lane for tests that need Spark, one for tests that start a Spark, one per other file.

::

    spark   every test with the fixture `spark` ──▶ one worker, one session, one JVM
    jvm     tests of `OWN_JVM` without it       ──▶ one worker: no two of them start their JVMs at the same time
    a file  all other tests of a file, together ──▶ any idle worker

A Spark session takes ten seconds to start and minutes to warm up, and on two cores two sessions are slower than one.
The Spark lane is therefore scheduled first, while the other workers run the other files. Files in `LONGEST` come first
among them: a long file that starts last would keep one worker busy while the others are idle.

The deep tier (``-m deep``) has other lanes, because nearly all of its tests need Spark and would leave a core idle in
one lane: the tests of `END_TO_END`, each of which starts several JVMs, are one lane, and come first; every other file
runs on any idle worker, and each worker has its own session.

Only workers know the fixtures of a test, and the controller schedules tests by name. Before a worker reports its
collection, it writes the names of the Spark lane into a file whose path it got from the controller.

This applies to runs with ``--dist loadfile`` (`make test`). A run in one process keeps the order of the folders.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler.loadscope import LoadScopeScheduling

__all__ = ["JVM", "LANE", "LONGEST", "OWN_JVM", "SPARK", "LaneNames", "Lanes", "divide"]

SPARK = "spark"
"""The fixture that puts a test into the lane of the same name."""
LANE = pytest.mark.lane(SPARK)
"""The marker of a test that requests the fixture at run time."""

DEEP = "deep"
"""The marker of the tests of the deep tier."""

JVM = "jvm"
END_TO_END = "tests/end_to_end/"
OWN_JVM: tuple[str, ...] = (
    END_TO_END,
    "tests/cli/test_verify.py",
    "tests/server/page/test_running_home.py",
    "tests/sources/kafka/test_spark.py",
    "tests/spark/test_connect.py",
    "tests/spark/test_session.py",
    "tests/test_bench.py",
)
"""Folders and files whose tests start processes with a Spark of their own."""

LONGEST: tuple[str, ...] = (
    "tests/server/page/test_page.py",
    "tests/sources/postgres/types/test_nested_against_postgres.py",
    "tests/embedded/test_postgres.py",
    "tests/engine/test_sink_errors.py",
    "tests/engine/test_capture_process.py",
    "tests/sources/kafka/transactions/test_instance.py",
    "tests/engine/test_unexpected_errors.py",
    "tests/sources/postgres/types/test_codec.py",
    "tests/sources/postgres/test_publication_watch.py",
    "tests/engine/test_sink_faults.py",
    "tests/test_kernel_bounds.py",
)
"""Files without Spark that take half a minute or longer, longest first; `make test` prints the slowest files last."""


class LaneNames:
    """Controller plugin: the names of the tests that need Spark, as reported by the workers."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="penstock-lanes-")
        self.file = Path(self._folder.name, "spark.json")

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Pass the path of the file to an xdist worker before it starts."""
        node.workerinput["lanes"] = str(self.file)

    def pytest_unconfigure(self) -> None:
        """Remove the file."""
        self._folder.cleanup()

    def read(self) -> frozenset[str]:
        """Return the names. Every worker writes the same names before scheduling begins."""
        return frozenset(json.loads(self.file.read_text(encoding="utf-8")))


class Lanes(LoadScopeScheduling):  # type: ignore[misc]
    """Schedules whole lanes instead of single tests."""

    def __init__(self, config: pytest.Config, log: Any, names: LaneNames) -> None:
        super().__init__(config, log)
        self._names = names
        self._spark: frozenset[str] | None = None
        self._is_deep = config.getoption("markexpr") == DEEP

    def _split_scope(self, nodeid: str) -> str:
        if self._is_deep:
            return JVM if nodeid.startswith(END_TO_END) else nodeid.partition("::")[0]
        if self._spark is None:
            self._spark = self._names.read()
        if nodeid in self._spark:
            return SPARK
        return JVM if nodeid.startswith(OWN_JVM) else nodeid.partition("::")[0]


def divide(items: list[pytest.Item], file: Path) -> None:
    """Sort tests in place by the order in which lanes are scheduled; write the names of the Spark lane."""
    rank = {name: number for number, name in enumerate(LONGEST)}

    def order(item: pytest.Item) -> tuple[bool, bool, int]:
        own_jvm, is_deep = item.nodeid.startswith(OWN_JVM), item.get_closest_marker(DEEP) is not None
        first = item.nodeid.startswith(END_TO_END) if is_deep else _needs_spark(item)
        return not first, not own_jvm, rank.get(item.nodeid.partition("::")[0], len(rank))

    items.sort(key=order)
    written = file.with_suffix(f".{id(items)}")
    written.write_text(json.dumps([item.nodeid for item in items if _needs_spark(item)]), encoding="utf-8")
    written.replace(file)


def _needs_spark(item: pytest.Item) -> bool:
    return SPARK in getattr(item, "fixturenames", ()) or item.get_closest_marker("lane") is not None
