"""A local server process: it can be stopped, killed and restarted, and ends with the process that started it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.errors import DefiniteError, TransientError
from penstock.testing.java_server import JavaServer
from penstock.testing.waiting import until

ROOT = Path(__file__).parents[2]

STARTER = """
import sys
from pathlib import Path
from tests.testing.test_java_server import Sleeper
server = Sleeper(Path(sys.argv[1]))
server.start()
print(server.pid, flush=True)
sys.stdin.read()
"""


class Sleeper(JavaServer):
    """A server that is not a JVM, and answers immediately."""

    NAME, LOG, READY_SECONDS = "the sleeper", "sleeper.log", 60.0
    command = "while :; do sleep 0.1; done"
    ready = True

    def _command(self) -> list[str]:
        return ["sh", "-c", self.command, str(self._folder)]

    def _answers(self) -> bool:
        return self.ready


class Mute(Sleeper):
    """A server that never answers."""

    READY_SECONDS, ready = 0.2, False


def is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_server_is_stopped_killed_and_restarted(tmp_path: Path) -> None:
    pids = []
    with Sleeper(tmp_path) as server:
        for end in (server.stop, server.kill, server.restart, lambda: None):
            server.start()
            assert server.pid is not None
            pids.append(server.pid)
            end()
    assert len(set(pids)) == 4, "each start creates a new process"
    assert all(map(is_gone, pids))
    assert server.pid is None
    server.stop()  # stopping twice is allowed


def test_server_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    command = [sys.executable, "-c", STARTER, str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), *sys.path]))}
    with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as starter:
        assert starter.stdout is not None
        pid = int(starter.stdout.readline())
        assert not is_gone(pid)
        starter.kill()
    until(lambda: is_gone(pid), "the end of the server")


def test_server_that_exits_during_startup_is_an_error(tmp_path: Path) -> None:
    server = Sleeper(tmp_path)
    server.command, server.ready = "echo no room >&2", False
    with pytest.raises(DefiniteError, match=r"the sleeper in .* exited or failed") as caught:
        server.start()
    assert "sleeper.log" in caught.value.hint
    assert (tmp_path / "sleeper.log").read_text(encoding="utf-8") == "no room\n"


def test_a_server_that_never_answers_is_killed(tmp_path: Path) -> None:
    server = Mute(tmp_path)
    with pytest.raises(TransientError, match="was not ready within"):
        server.start()
    assert server.pid is None
