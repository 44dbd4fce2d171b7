"""The tests that face Postgres, on one version after the other: ``python -m tests.matrix 14 15 16 17 18``.

Spark is not started. Arguments after the versions (``-x``, ``-k …``) go to pytest. At the end a table says what passed
where, and the exit code is 1 if anything failed anywhere.
"""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
import time
from dataclasses import dataclass

from penstock.testing.postgres import VERSION_VARIABLE, programs, versions

FACING_POSTGRES = ("tests/sources/postgres", "tests/control", "tests/cli", "tests/demo")
NEEDS_SPARK = ("tests/cli/test_sql.py",)


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


def run(version: int, options: list[str]) -> Outcome:
    """Run the tests on one version, showing what pytest shows."""
    programs(version)
    command = [sys.executable, "-m", "pytest", *FACING_POSTGRES, *(f"--ignore={path}" for path in NEEDS_SPARK), "-q"]
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
    asked = [int(argument) for argument in itertools.takewhile(str.isdigit, arguments)]
    unknown = set(asked) - set(versions())
    if unknown:
        print(f"there is no Postgres {sorted(unknown)} to test on; name some of {list(versions())}", file=sys.stderr)
        return 2
    options = arguments[len(asked) :]
    outcomes = [run(version, options) for version in asked or versions()]
    print("\nPostgres  result     time  tests", *(outcome.row() for outcome in outcomes), sep="\n")
    return int(any(outcome.code != 0 for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
