"""A server written in Java that runs on this machine for tests: started, awaited, stopped, killed, started again.

::

    start ─▶ java … ─▶ answers?     what it says ─▶ folder/<log>
               └── watch (sh) ── kill -9 when this process is gone

Each kind says what is to be run and when it answers. All it keeps is in its folder, which stays: starting there again
goes on with it. It runs as whoever starts it, root included.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from abc import ABC, abstractmethod
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Self

from penstock.errors import DefiniteError, TransientError
from penstock.spark.jars import fetched_jars, read_lock
from penstock.spark.java import find_java
from penstock.testing.watch import end, watched

__all__ = ["JavaServer", "java", "of_jars"]

_SMALL = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData")
_QUIET = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"
_LOOK_SECONDS = 0.05


class JavaServer(ABC):
    """A server with its process; as a context manager it is stopped at the end."""

    NAME: ClassVar[str]
    """What it is called in errors."""
    LOG: ClassVar[str]
    """The file that what it says goes to."""
    READY_SECONDS: ClassVar[float] = 180.0

    def __init__(self, folder: Path) -> None:
        self._folder = folder.absolute()
        self._process: subprocess.Popen[bytes] | None = None
        self._watch: subprocess.Popen[bytes] | None = None

    @abstractmethod
    def _command(self) -> list[str]:
        """Prepare what it needs; return what is to be run. The folder's path is part of it."""

    @abstractmethod
    def _answers(self) -> bool:
        """Say whether it is ready."""

    @property
    def pid(self) -> int | None:
        """Its process; None while it is stopped."""
        return self._process.pid if self._process else None

    def start(self) -> None:
        """Start it, where it was stopped, and wait until it answers."""
        if self._process is not None:
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        command = self._command()
        with (self._folder / self.LOG).open("ab") as said:
            self._process = subprocess.Popen(
                command, cwd=self._folder, stdin=subprocess.DEVNULL, stdout=said, stderr=said
            )
        self._watch = watched(self._process.pid, str(self._folder))
        self._await_answer()

    def stop(self) -> None:
        """Let it end in order."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End it as a crash would: kill -9."""
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        """Stop it in order and start it again, on the same ports and data."""
        self.stop()
        self.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _ended(self) -> bool:
        return self._process is None or self._process.poll() is not None

    def _await_answer(self) -> None:
        deadline = time.monotonic() + self.READY_SECONDS
        while time.monotonic() < deadline and not self._ended():
            if self._answers():
                return
            time.sleep(_LOOK_SECONDS)
        if self._ended():
            raise self._gave_up()
        self.kill()
        message = f"{self.NAME} in {self._folder} did not come up within {self.READY_SECONDS:.0f} s"
        raise TransientError(message, self._reason())

    def _gave_up(self) -> DefiniteError:
        self.kill()
        return DefiniteError(f"{self.NAME} in {self._folder} gave up", self._reason())

    def _reason(self) -> str:
        return f"Read {self._folder / self.LOG}, which ends in its reason."

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is not None:
            end(process, self._watch, how)


def java(megabytes: int) -> list[str]:
    """Return how a small Java program begins, with so much room for its objects."""
    return [str(find_java().executable), f"-Xmx{megabytes}m", *_SMALL]


def of_jars(lock: str, megabytes: int) -> list[str]:
    """Return how a program of the jars in a lock file of ours begins; they are fetched the first time."""
    jars = fetched_jars(read_lock("penstock.testing", lock))
    return [*java(megabytes), _QUIET, "-cp", os.pathsep.join(map(str, jars))]
