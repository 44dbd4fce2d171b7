"""Forks of tests start with their imports done, whichever files a run collects."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.forks import FORKS

_SLOW = ("pyspark.sql", "numba", "psycopg", "penstock.cli.run", "penstock.engine.supervisor", "tests.engine.actions")


def exit_with_missing_modules() -> None:
    sys.exit(sum(name not in sys.modules for name in _SLOW))


def test_imports_are_done_before_a_fork() -> None:
    process = FORKS.Process(target=exit_with_missing_modules)
    process.start()
    process.join()
    assert process.exitcode == 0


def test_no_other_file_replaces_the_list_of_imports() -> None:
    call = "set_forkserver_" + "preload"
    tests = Path(__file__).parent
    assert [str(file.relative_to(tests)) for file in tests.rglob("*.py") if call in file.read_text()] == ["forks.py"]
