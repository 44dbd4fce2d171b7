"""Shared servers: started once for all workers, and stopped at the end of the run."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from penstock.errors import DefiniteError
from penstock.testing.java_server import JavaServer
from tests.servers import ServerClient, ServerOwner, SharedBroker, SharedRegistry, Start
from tests.testing.test_java_server import Sleeper, is_gone

ROOT = Path(__file__).parent.parent

CONFTEST = """
from tests.servers import PLUGIN, ServerClient, ServerOwner
from tests.test_servers import start_sleeper

def pytest_configure(config):
    workerinput = getattr(config, "workerinput", None)
    plugin = ServerOwner({"sleeper": start_sleeper}) if workerinput is None else ServerClient(*workerinput["servers"])
    config.pluginmanager.register(plugin, PLUGIN)
"""
WORKER_TEST = """
from pathlib import Path
from tests.servers import PLUGIN

def test_it(pytestconfig, tmp_path, worker_id):
    pid = pytestconfig.pluginmanager.get_plugin(PLUGIN).handle("sleeper", tmp_path)
    (Path(__file__).parent / f"{worker_id}.pid").write_text(str(pid))
"""


def start_sleeper(folder: Path) -> tuple[JavaServer, int | None]:
    server = Sleeper(folder)
    server.start()
    return server, server.pid


@contextmanager
def owner(**servers: Start) -> Iterator[ServerOwner]:
    created = ServerOwner(servers)
    try:
        yield created
    finally:
        created.stop()


def test_all_workers_share_the_server_started_by_the_first_request(tmp_path: Path) -> None:
    with owner(sleeper=start_sleeper) as owning, ThreadPoolExecutor(4) as workers:
        clients = [ServerClient(*owning.address()) for _ in range(4)]
        folders = [tmp_path / str(number) for number in range(4)]
        pids = list(workers.map(lambda client, folder: client.handle("sleeper", folder), clients, folders))
        assert len(set(pids)) == 1
        assert not is_gone(pids[0])
        assert owning.handle("sleeper", tmp_path) == pids[0]
        assert len(list(tmp_path.iterdir())) == 1, "only one folder was used"
    assert is_gone(pids[0])


def test_failed_start_is_reported_to_every_request_without_a_retry(tmp_path: Path) -> None:
    tried = []

    def start(folder: Path) -> tuple[JavaServer, object]:
        tried.append(folder)
        message = "the port is taken"
        raise DefiniteError(message, "Free it.")

    def fail(folder: Path) -> tuple[JavaServer, object]:
        raise type("Unpicklable", (Exception,), {})("odd")

    with owner(one=start, other=fail) as owning:
        client = ServerClient(*owning.address())
        for _ in range(2):
            with pytest.raises(DefiniteError, match="the port is taken") as caught:
                client.handle("one", tmp_path)
            assert caught.value.hint == "Free it."
        with pytest.raises(DefiniteError, match="the port is taken"):
            owning.handle("one", tmp_path)
        with pytest.raises(RuntimeError, match="Unpicklable: odd"):
            client.handle("other", tmp_path)
        with pytest.raises(KeyError):
            client.handle("third", tmp_path)
    assert len(tried) == 1


def test_starting_server_does_not_delay_another_server(tmp_path: Path) -> None:
    begun, released = threading.Event(), threading.Event()

    def start_slowly(folder: Path) -> tuple[JavaServer, int | None]:
        begun.set()
        assert released.wait(60)
        return start_sleeper(folder)

    with owner(slow=start_slowly, quick=start_sleeper) as owning, ThreadPoolExecutor(1) as waiting:
        client = ServerClient(*owning.address())
        slow = waiting.submit(client.handle, "slow", tmp_path / "slow")
        assert begun.wait(60)
        assert client.handle("quick", tmp_path / "quick") is not None
        assert not slow.done()
        released.set()
        assert slow.result(60) is not None


@pytest.mark.deep
def test_workers_share_a_server_that_stops_with_the_run(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST, encoding="utf-8")
    for number in range(2):
        (tmp_path / f"test_{number}.py").write_text(WORKER_TEST, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-n2", "--dist=loadfile", "-pno:cacheprovider", "--rootdir=."]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)])}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    pids = {path.name: int(path.read_text(encoding="utf-8")) for path in tmp_path.glob("*.pid")}
    assert pids.keys() == {"gw0.pid", "gw1.pid"}
    assert len(set(pids.values())) == 1
    assert is_gone(pids["gw0.pid"])


@pytest.mark.parametrize("name", ["stop", "kill", "restart", "start"])
def test_shared_servers_have_no_methods_to_stop_them(name: str) -> None:
    assert not hasattr(SharedBroker, name)
    assert not hasattr(SharedRegistry, name)
