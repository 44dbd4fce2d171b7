"""The tests that talk to Postgres, on one version after the other: ``python -m tests.matrix 14 15 16 17 18``.

With ``--source``, those of the Postgres source alone, as `make test-deep` runs them. Tests that need no server are
left out: their result does not depend on its version. Arguments after the versions (``-x``, ``-k …``) go to pytest. At
the end a table says what passed where, and the exit code is 1 if anything failed anywhere.
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
from tests.facing_postgres import FACING_POSTGRES

SOURCE = ("tests/sources/postgres",)
ALL = (*SOURCE, "tests/engine", "tests/cli", "tests/demo")


@dataclass(frozen=True)
class Outcome:
    """How a version did: pytest's exit code and last line."""

    version: int
    code: int
    summary: str
    seconds: float

    def row(self) -> str:
        """One line of the table."""
        return (
            f"{self.version:>8}  {'passed' if self.code == 0 else 'FAILED':<6}  {self.seconds:5.0f} s  {self.summary}"
        )


def run(version: int, folders: Sequence[str], options: list[str]) -> Outcome:
    """Run the tests on one version, showing what pytest shows."""
    programs(version)
    command = [sys.executable, "-m", "pytest", *folders, "-q", "-m", "not deep", FACING_POSTGRES]
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
    """Run the versions that were named, or all."""
    folders = SOURCE if "--source" in arguments[:1] else ALL
    arguments = arguments[1:] if folders == SOURCE else arguments
    asked = [int(argument) for argument in itertools.takewhile(str.isdigit, arguments)]
    unknown = set(asked) - set(versions())
    if unknown:
        print(f"there is no Postgres {sorted(unknown)} to test on; name some of {list(versions())}", file=sys.stderr)
        return 2
    options = arguments[len(asked) :]
    outcomes = [run(version, folders, options) for version in asked or versions()]
    print("\nPostgres  result     time  tests", *(outcome.row() for outcome in outcomes), sep="\n")
    return int(any(outcome.code != 0 for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
