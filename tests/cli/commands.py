"""Runs `penstock` commands as a user does, without the start-up time.

The imports take seconds, so most runs are forks of one process that has done them (`tests.forks`), each with its own
arguments, environment, working folder and streams, the real `main` and the real exit code. `in_a_shell` starts the
installed program, for tests that need it.
"""

from __future__ import annotations

import os
import re
import resource
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

from tests.forks import FORKS

from penstock.testing.waiting import PATIENCE

STARTED_SPARK = 99
_REMOVED_VARIABLES = (
    "PGPASSWORD",
    "PGPASSFILE",
    "PGUSER",
    "PGHOST",
    "PGPORT",
    "PGDATABASE",
    "PGSERVICE",
    "PENSTOCK_HOME",
)


@dataclass(frozen=True)
class Answer:
    """Exit code and output of a command."""

    code: int
    out: str
    err: str

    @property
    def error(self) -> str:
        """The error message, as one line."""
        return self._section("error")

    @property
    def hint(self) -> str:
        """The hint, as one line."""
        return self._section("hint")

    def assert_error(self, code: int) -> Answer:
        """Assert the exit code, one error message with a hint, and no traceback."""
        assert self.code == code, f"exit code {self.code}\n{self.out}\n{self.err}"
        assert "Traceback" not in self.out + self.err
        assert len(re.findall("^error: ", self.err, re.MULTILINE)) == 1, self.err
        assert self.error, self.err
        assert self.hint, self.err
        return self

    def _section(self, label: str) -> str:
        found = re.search(rf"^{label}: (.*?)(?=^hint: |\Z)", self.err, re.DOTALL | re.MULTILINE)
        return " ".join(found.group(1).split()) if found else ""


def penstock(
    *arguments: str | Path, env: Mapping[str, str] | None = None, cwd: Path | None = None, file_bytes: int | None = None
) -> Answer:
    """Run a command that needs no Spark; its exit code is `STARTED_SPARK` if it starts Spark nevertheless.

    `file_bytes` limits the size of the files that it writes.
    """
    argv = [str(argument) for argument in arguments]
    (out, to_out), (err, to_err) = FORKS.Pipe(duplex=False), FORKS.Pipe(duplex=False)
    with tempfile.TemporaryDirectory() as folder, out, err:
        process = FORKS.Process(
            target=_run, args=(argv, dict(env or {}), str(cwd or folder), (to_out, to_err), file_bytes)
        )
        with to_out, to_err:
            process.start()
        process.join(PATIENCE)
        if process.exitcode is None:
            process.kill()
            process.join()
            raise AssertionError(f"penstock {' '.join(argv)} did not end")
        return Answer(process.exitcode, _read(out), _read(err))


def in_a_shell(*arguments: str | Path, env: Mapping[str, str] | None = None) -> Answer:
    """Start the installed program."""
    program = Path(sys.executable).with_name("penstock")
    done = subprocess.run(
        [program, *arguments],
        capture_output=True,
        text=True,
        env=_environment(env or {}),
        timeout=PATIENCE,
        check=False,
    )
    return Answer(done.returncode, done.stdout, done.stderr)


def _environment(env: Mapping[str, str]) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in _REMOVED_VARIABLES}
    return {**kept, "COLUMNS": "200", "PGPASSFILE": "no such file", **env}


def _read(end: Connection) -> str:
    """Read a pipe to its end; the output of commands fits into its buffer, so they do not block."""
    with open(end.fileno(), "rb", closefd=False) as file:
        return file.read().decode()


def _run(
    argv: list[str], env: dict[str, str], cwd: str, streams: tuple[Connection, Connection], file_bytes: int | None
) -> None:
    for number, stream in zip((1, 2), streams, strict=True):
        os.dup2(stream.fileno(), number)
        stream.close()
    os.chdir(cwd)
    environment = _environment(env)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = ["penstock", *argv]
    _forbid_spark()
    if file_bytes is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes, file_bytes))
    from penstock.cli.main import main

    main()


def _forbid_spark() -> None:
    from pyspark.sql import SparkSession

    def exit_process(*_: object) -> SparkSession:
        os._exit(STARTED_SPARK)

    import penstock.engine.supervisor

    setattr(penstock.engine.supervisor, "Supervisor", exit_process)  # noqa: B010 - of `penstock run`, before capture
    setattr(SparkSession.Builder, "getOrCreate", exit_process)  # noqa: B010 - mypy takes no assignment to a method
