"""Run the tests that need Postgres on several versions: ``python -m tests.matrix 14 15 16 17 18``.

With ``--source``, run only the tests of the Postgres source whose result may depend on the version, as `make test-deep`
does. Tests that need no server are deselected: their result does not depend on its version. Arguments after the
versions (``-x``, ``-k …``) are passed to pytest.

With ``--source``, two versions run at the same time: tests wait for servers, and need no Spark. The output of each
version is printed when it has ended. A table at the end shows the result for each version; the exit code is 1 if any
test failed.
"""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

from penstock.testing.postgres import VERSION_VARIABLE, programs, versions
from tests.postgres_only import POSTGRES_ONLY, VERSION_ONLY

SOURCE = ("tests/sources/postgres", VERSION_ONLY)
ALL = ("tests/sources/postgres", "tests/engine", "tests/cli", "tests/demo")


@dataclass(frozen=True)
class Outcome:
    """The result for one version: pytest's exit code, output and last line."""

    version: int
    code: int
    output: str
    seconds: float

    def row(self) -> str:
        """Return one line of the table."""
        result = "passed" if self.code == 0 else "FAILED"
        return f"{self.version:>8}  {result}  {self.seconds:5.0f} s  {self.summary}"

    @property
    def summary(self) -> str:
        """The last line of the output, without the time."""
        lines = [line.strip(" =") for line in self.output.splitlines() if line.strip(" =")]
        return re.sub(r" in [\d.]+s.*", "", lines[-1]) if lines else ""


def run(selection: Sequence[str], options: list[str], version: int) -> Outcome:
    """Run the tests on one version."""
    command = [sys.executable, "-m", "pytest", *selection, "-q", "-m", "not deep", POSTGRES_ONLY, *options]
    began = time.monotonic()
    done = subprocess.run(
        command,
        env={**os.environ, VERSION_VARIABLE: str(version)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return Outcome(version, done.returncode, done.stdout, time.monotonic() - began)


def run_all(selection: Sequence[str], options: list[str], wanted: Sequence[int]) -> list[Outcome]:
    """Run the tests on each version, and print the output of pytest in the order of the versions."""
    for version in wanted:
        programs(version)  # not at the same time: it may download them
    outcomes = []
    with ThreadPoolExecutor(2 if selection == SOURCE else 1) as pool:
        for outcome in pool.map(partial(run, selection, options), wanted):
            print(f"\nPostgres {outcome.version}\n{outcome.output}", flush=True)
            outcomes.append(outcome)
    return outcomes


def main(arguments: list[str]) -> int:
    """Run the tests on the given versions, or on all."""
    selection = SOURCE if "--source" in arguments[:1] else ALL
    arguments = arguments[1:] if selection == SOURCE else arguments
    requested = [int(argument) for argument in itertools.takewhile(str.isdigit, arguments)]
    unknown = set(requested) - set(versions())
    if unknown:
        print(
            f"unsupported Postgres versions: {sorted(unknown)}; supported versions: {list(versions())}", file=sys.stderr
        )
        return 2
    outcomes = run_all(selection, arguments[len(requested) :], requested or list(versions()))
    print("\nPostgres  result     time  tests", *(outcome.row() for outcome in outcomes), sep="\n")
    return int(any(outcome.code != 0 for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
