"""Runs `penstock` as a user does, many times a minute.

Importing everything takes seconds, so most runs are forks of one process that has done it: own arguments, environment,
working folder and streams, the real `main`, the real exit code. `in_a_shell` starts the real program, for what a fork
cannot show.
"""

from __future__ import annotations

import multiprocessing
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

from penstock.testing.waiting import PATIENCE

STARTED_SPARK = 99
_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(["penstock.cli.main"])
_UNWANTED = ("PGPASSWORD", "PGPASSFILE", "PGUSER", "PGHOST", "PGPORT", "PGDATABASE", "PGSERVICE", "PENSTOCK_HOME")


@dataclass(frozen=True)
class Answer:
    """What a command left on the terminal."""

    code: int
    out: str
    err: str

    @property
    def said(self) -> str:
        """The message of the error, as one line."""
        return self._part("error")

    @property
    def hint(self) -> str:
        """What to do about it, as one line."""
        return self._part("to do")

    def is_an_error(self, code: int) -> Answer:
        """Hold the answer to what every error owes its reader."""
        assert self.code == code, f"exit code {self.code}\n{self.out}\n{self.err}"
        assert "Traceback" not in self.out + self.err
        assert self.err.count("error  ") == 1, self.err
        assert self.said, self.err
        assert self.hint, self.err
        return self

    def _part(self, head: str) -> str:
        found = re.search(rf"^{head}  (.*?)(?=^to do  |\Z)", self.err, re.DOTALL | re.MULTILINE)
        return " ".join(found.group(1).split()) if found else ""


def penstock(
    *arguments: str | Path, env: Mapping[str, str] | None = None, cwd: Path | None = None, file_bytes: int | None = None
) -> Answer:
    """Run a command that needs no Spark; it ends with `STARTED_SPARK` if it wants one all the same.

    No file of it can grow beyond `file_bytes`.
    """
    words = [str(argument) for argument in arguments]
    (out, to_out), (err, to_err) = _FORKS.Pipe(duplex=False), _FORKS.Pipe(duplex=False)
    with tempfile.TemporaryDirectory() as folder, out, err:
        process = _FORKS.Process(
            target=_run, args=(words, dict(env or {}), str(cwd or folder), (to_out, to_err), file_bytes)
        )
        with to_out, to_err:
            process.start()
        process.join(PATIENCE)
        if process.exitcode is None:
            process.kill()
            process.join()
            raise AssertionError(f"penstock {' '.join(words)} did not end")
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
    kept = {name: value for name, value in os.environ.items() if name not in _UNWANTED}
    return {**kept, "COLUMNS": "200", "PGPASSFILE": "no such file", **env}


def _read(end: Connection) -> str:
    """Read a pipe to its end; what commands say fits into it, so nobody waited for us."""
    with open(end.fileno(), "rb", closefd=False) as file:
        return file.read().decode()


def _run(
    words: list[str], env: dict[str, str], cwd: str, streams: tuple[Connection, Connection], file_bytes: int | None
) -> None:
    for number, stream in zip((1, 2), streams, strict=True):
        os.dup2(stream.fileno(), number)
        stream.close()
    os.chdir(cwd)
    wanted = _environment(env)
    os.environ.clear()
    os.environ.update(wanted)
    sys.argv = ["penstock", *words]
    _refuse_spark()
    if file_bytes is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes, file_bytes))
    from penstock.cli.main import main

    main()


def _refuse_spark() -> None:
    from pyspark.sql import SparkSession

    def refuse(*_: object) -> SparkSession:
        os._exit(STARTED_SPARK)

    setattr(SparkSession.Builder, "getOrCreate", refuse)  # noqa: B010 - mypy takes no assignment to a method
