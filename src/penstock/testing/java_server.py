"""A local Java server for tests, which can be started, stopped, killed and restarted.

::

    start ─▶ java … ─▶ ready?       its output ─▶ folder/<log>
               └── watch (sh) ── kill -9 when this process ends

Subclasses define the command and the readiness check, and find free local ports. All data is in the folder, which is
not removed: a server that is started there again continues with it. It runs as the user of this process, root included.

The watch process kills the server when this process ends, however it ends: the kernel then closes the pipe that the
watch reads from. A process id can be reused, so the watch checks that the process still has a given word on its command
line.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Self

from penstock.errors import DefiniteError, TransientError
from penstock.spark.jars import fetch_jars, read_lock
from penstock.spark.java import find_java

__all__ = ["JavaServer", "free_ports", "java", "of_jars"]

_SMALL = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData")
_QUIET = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"
_POLL_SECONDS = 0.05


class JavaServer(ABC):
    """A server process; a context manager that stops it at the end."""

    NAME: ClassVar[str]
    """The name in error messages."""
    LOG: ClassVar[str]
    """The file of its output."""
    READY_SECONDS: ClassVar[float] = 180.0

    def __init__(self, folder: Path) -> None:
        self._folder = folder.absolute()
        self._process: subprocess.Popen[bytes] | None = None
        self._watch: subprocess.Popen[bytes] | None = None

    @abstractmethod
    def _command(self) -> list[str]:
        """Prepare the folder; return the command, which must contain the path of the folder."""

    @abstractmethod
    def _answers(self) -> bool:
        """Return whether the server is ready."""

    @property
    def pid(self) -> int | None:
        """The process id; None while it is stopped."""
        return self._process.pid if self._process else None

    def start(self) -> None:
        """Start the server, if it is stopped, and wait until it is ready."""
        if self._process is not None:
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        command = self._command()
        with (self._folder / self.LOG).open("ab") as log:
            self._process = subprocess.Popen(
                command, cwd=self._folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        self._watch = _start_watch(self._process.pid, str(self._folder))
        self._await_answer()

    def stop(self) -> None:
        """Stop the server cleanly."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """Kill the server with SIGKILL, as in a crash."""
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        """Stop the server cleanly and start it again, with the same ports and data."""
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
            time.sleep(_POLL_SECONDS)
        if self._ended():
            raise self._exit_error()
        self.kill()
        message = f"{self.NAME} in {self._folder} was not ready within {self.READY_SECONDS:.0f} s"
        raise TransientError(message, self._log_hint())

    def _exit_error(self) -> DefiniteError:
        self.kill()
        return DefiniteError(f"{self.NAME} in {self._folder} exited or failed", self._log_hint())

    def _log_hint(self) -> str:
        return f"Check the end of {self._folder / self.LOG}."

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is not None:
            _stop_process(process, self._watch, how)


def java(megabytes: int) -> list[str]:
    """Return the beginning of the command of a small Java program, with this heap size."""
    return [str(find_java().executable), f"-Xmx{megabytes}m", *_SMALL]


def of_jars(locks: Sequence[str], megabytes: int) -> list[str]:
    """Return the beginning of a command with the jars of lock files, which are downloaded on first use."""
    jars = fetch_jars([jar for lock in locks for jar in read_lock("penstock.testing", lock)])
    return [*java(megabytes), _QUIET, "-cp", os.pathsep.join(map(str, jars))]


# -- watch -------------------------------------------------------------------------------------------------------------

_STOP_SECONDS = 20.0

_WATCH = """
trap '' INT TERM HUP QUIT
read -r line
if grep -qaF -- "$2" "/proc/$1/cmdline"; then kill -9 "$1"; fi
"""


def _start_watch(pid: int, word: str) -> subprocess.Popen[bytes]:
    """Start a watch for `pid`, which has `word` on its command line; close the watch's standard input to end it."""
    command = ["sh", "-c", _WATCH, "watch", str(pid), word]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True)


def _stop_process(process: subprocess.Popen[bytes], watch: subprocess.Popen[bytes] | None, how: signal.Signals) -> None:
    """Stop a server, with SIGKILL after a timeout, and then its watch."""
    process.send_signal(how)
    try:
        process.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if watch is not None:
        assert watch.stdin is not None
        watch.stdin.close()
        watch.wait()


# -- ports -------------------------------------------------------------------------------------------------------------


def free_ports() -> tuple[int, int]:
    """Return two different free ports; the caller binds them later, and again after a restart."""
    with socket.socket() as one, socket.socket() as other:
        for taken in (one, other):
            taken.bind(("127.0.0.1", 0))
        return one.getsockname()[1], other.getsockname()[1]
