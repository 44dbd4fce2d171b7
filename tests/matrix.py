"""Run the tests that need Postgres on one version after the other: ``python -m tests.matrix 14 15 16 17 18``.

With ``--source``, run only the tests of the Postgres source, as `make test-deep` does. Tests that need no server are
deselected: their result does not depend on its version. Arguments after the versions (``-x``, ``-k …``) are passed to
pytest. A table at the end shows the result for each version; the exit code is 1 if any test failed.
"""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

from penstock.testing.postgres import VERSION_VARIABLE, programs, versions
from tests.postgres_only import POSTGRES_ONLY

SOURCE = ("tests/sources/postgres",)
ALL = (*SOURCE, "tests/engine", "tests/cli", "tests/demo")


@dataclass(frozen=True)
class Outcome:
    """The result for one version: pytest's exit code and last line."""

    version: int
    code: int
    summary: str
    seconds: float

    def row(self) -> str:
        """Return one line of the table."""
        return (
            f"{self.version:>8}  {'passed' if self.code == 0 else 'FAILED':<6}  {self.seconds:5.0f} s  {self.summary}"
        )


def run(version: int, folders: Sequence[str], options: list[str]) -> Outcome:
    """Run the tests on one version, and print the output of pytest."""
    programs(version)
    command = [sys.executable, "-m", "pytest", *folders, "-q", "-m", "not deep", POSTGRES_ONLY]
    environment = {**os.environ, VERSION_VARIABLE: str(version)}
    began, last = time.monotonic(), ""
    print(f"\nPostgres {version}", flush=True)
    with subprocess.Popen([*command, *options], env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            last = line.strip(" =\n") or last
    return Outcome(version, process.returncode, re.sub(r" in [\d.]+s.*", "", last), time.monotonic() - began)


def main(arguments: list[str]) -> int:
    """Run the tests on the given versions, or on all."""
    folders = SOURCE if "--source" in arguments[:1] else ALL
    arguments = arguments[1:] if folders == SOURCE else arguments
    requested = [int(argument) for argument in itertools.takewhile(str.isdigit, arguments)]
    unknown = set(requested) - set(versions())
    if unknown:
        print(
            f"unsupported Postgres versions: {sorted(unknown)}; supported versions: {list(versions())}", file=sys.stderr
        )
        return 2
    options = arguments[len(requested) :]
    outcomes = [run(version, folders, options) for version in requested or versions()]
    print("\nPostgres  result     time  tests", *(outcome.row() for outcome in outcomes), sep="\n")
    return int(any(outcome.code != 0 for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
