"""Starting and stopping the server: ports, the Unix socket, the address file, and clients that are still connected."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import BaseRoute, Route
from tests.server.clients import TOKEN, events, no_spark, over_tcp, over_unix

from penstock.errors import DefiniteError, UsageError
from penstock.home import Home
from penstock.server import address as address_module
from penstock.server import app
from penstock.server.address import check_listen, listening, running_server
from penstock.server.context import ServerContext
from penstock.server.serving import serve
from penstock.testing.waiting import PATIENCE, until

ANY_PORT = "127.0.0.1:0"


def taken_port() -> socket.socket:
    return socket.create_server(("127.0.0.1", 0))


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


# -- addresses --------------------------------------------------------------------------------------------------------


def test_default_port_or_the_next_free_one(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    with taken_port() as taken:
        port = taken.getsockname()[1]
        monkeypatch.setattr(address_module, "_PORT", port)
        with serve(home, no_spark) as serving, over_tcp(serving.address) as client:
            assert client.get("/healthz").status_code == 200
            assert int(serving.address.url.rpartition(":")[2]) in range(port + 1, port + 100)


def test_all_default_ports_taken(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    with taken_port() as taken:
        monkeypatch.setattr(address_module, "_PORT", taken.getsockname()[1])
        monkeypatch.setattr(address_module, "_PORTS", 1)
        with pytest.raises(DefiniteError, match="in use") as caught, serve(home, no_spark):
            pass
    assert "--listen" in caught.value.hint


def test_explicit_port_in_use_is_an_error(home: Home) -> None:
    with taken_port() as taken:
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        with (
            pytest.raises(DefiniteError, match="another process uses this port") as caught,
            serve(home, no_spark, listen),
        ):
            pass
    assert "another port" in caught.value.hint
    assert running_server(home.path) is None
    with serve(home, no_spark, listen) as serving:
        assert serving.address.url == f"http://{listen}"


@pytest.mark.parametrize("listen", ["0.0.0.0:0", "[::]:0", "192.0.2.1:7878", "8.8.8.8:7878"])
def test_other_addresses_need_a_token(listen: str) -> None:
    with pytest.raises(UsageError, match="requires a token") as caught:
        check_listen(listen, has_token=False)
    assert f"penstock run --listen {listen} --token-file token" in caught.value.hint
    check_listen(listen, has_token=True)


@pytest.mark.parametrize("listen", ["127.0.0.1:0", "localhost:0", "[::1]:0", "127.8.7.6:0"])
def test_loopback_addresses_need_no_token(listen: str) -> None:
    check_listen(listen, has_token=False)


@pytest.mark.parametrize(
    "listen", ["", "7878", ":7878", "127.0.0.1", "127.0.0.1:", "127.0.0.1:port", "127.0.0.1:65536", "::1:7878", "a b:1"]
)
def test_invalid_address(listen: str) -> None:
    with pytest.raises(UsageError, match="invalid address") as caught:
        check_listen(listen, has_token=True)
    assert "HOST:PORT" in caught.value.hint


def test_unknown_host_and_foreign_address(home: Home) -> None:
    with pytest.raises(UsageError, match="cannot listen"):
        check_listen("no.such.host.invalid:7878", has_token=True)
    with pytest.raises(DefiniteError, match="cannot listen"), serve(home, no_spark, "192.0.2.1:7878", TOKEN):
        pass


def test_url_of_all_interfaces_works_on_this_machine(home: Home) -> None:
    with serve(home, no_spark, "0.0.0.0:0", TOKEN) as serving, over_tcp(serving.address) as client:
        assert serving.address.url.startswith("http://127.0.0.1:")
        assert client.get("/healthz").status_code == 200
        assert client.get("/api/status").status_code == 401


def test_responses_are_sent_without_delay(home: Home) -> None:
    """Headers and body are two packets; without TCP_NODELAY the second waits 40 ms for the client to acknowledge."""
    with listening(home.path, ANY_PORT, has_token=False) as listener, socket.socket() as client:
        client.connect(listener.tcp.getsockname())
        accepted, _ = listener.tcp.accept()
        with accepted:
            assert accepted.proto == socket.IPPROTO_TCP, "asyncio sets TCP_NODELAY on such sockets only"


# -- the Unix socket and the address file -----------------------------------------------------------------------------


def test_files_are_private_and_removed_at_the_end(home: Home) -> None:
    assert running_server(home.path) is None
    with serve(home, no_spark, ANY_PORT) as serving:
        path = Path(serving.address.socket)
        assert path == home.path / "run" / "server.sock"
        assert stat.S_ISSOCK(path.stat().st_mode)
        assert mode(path) == 0o600
        assert mode(home.path / "run" / "server.json") == 0o600
        found = running_server(home.path)
        assert found == serving.address
        assert found.pid == os.getpid()
    assert not path.exists()
    assert not (home.path / "run" / "server.json").exists()
    assert running_server(home.path) is None


def test_path_too_long_for_a_socket(tmp_path: Path) -> None:
    home = Home(tmp_path / ("a" * 100) / "home")
    with serve(home, no_spark, ANY_PORT) as serving, over_unix(serving.address) as client:
        path = Path(serving.address.socket)
        assert len(str(path)) < 108
        assert mode(path.parent) == 0o700
        assert mode(path) == 0o600
        assert client.get("/api/status").json()["home"] == str(home.path)
        assert running_server(home.path) == serving.address
    assert not path.parent.exists()


PROGRAM = """
import sys
from pathlib import Path
from penstock.home import Home
from penstock.server.serving import serve
with serve(Home(Path(sys.argv[1])), lambda: None, "127.0.0.1:0") as serving:
    print(serving.address.url, flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize("folder", ["short", "a" * 100], ids=["short", "long"])
def test_what_a_killed_process_left_is_replaced(tmp_path: Path, folder: str) -> None:
    home = Home(tmp_path / folder)
    command = [sys.executable, "-c", PROGRAM, str(home.path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        found = running_server(home.path)
        assert found is not None and (found.url, found.pid) == (url, process.pid)
        with pytest.raises(DefiniteError, match=f"pid {process.pid}"), serve(home, no_spark, ANY_PORT):
            pass
        assert httpx.get(f"{url}/healthz", trust_env=False).status_code == 200, "the failed start changed nothing"
        process.kill()
    assert (home.path / "run" / "server.json").exists()
    assert running_server(home.path) is None
    with serve(home, no_spark, ANY_PORT) as serving, over_unix(serving.address) as client:
        assert client.get("/healthz").status_code == 200
    assert not Path(found.socket).exists()
    assert folder == "short" or not Path(found.socket).parent.exists()


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"pid": "x"}', "\x00", '{"pid": 1, "url": "u"}'])
def test_damaged_address_file(home: Home, text: str) -> None:
    (home.path / "run").mkdir()
    (home.path / "run" / "server.json").write_text(text)
    assert running_server(home.path) is None
    with serve(home, no_spark, ANY_PORT) as serving:
        assert running_server(home.path) == serving.address


def test_address_file_that_names_another_file(home: Home, tmp_path: Path) -> None:
    (home.path / "run").mkdir()
    (tmp_path / "precious").touch()
    document = {"pid": 1, "url": "http://127.0.0.1:1", "socket": str(tmp_path / "precious")}
    (home.path / "run" / "server.json").write_text(json.dumps(document))
    assert running_server(home.path) is None
    with serve(home, no_spark, ANY_PORT):
        assert (tmp_path / "precious").exists()


# -- stopping ---------------------------------------------------------------------------------------------------------


def test_event_streams_end_when_the_server_stops(home: Home) -> None:
    with serve(home, no_spark, ANY_PORT) as serving:
        received: list[int] = []
        started = threading.Barrier(4)

        def follow() -> None:
            with over_tcp(serving.address) as client, client.stream("GET", "/api/events") as response:
                stream = events(response)
                next(stream)
                started.wait(PATIENCE)
                received.append(sum(1 for _ in stream))  # ends without an error

        threads = [threading.Thread(target=follow) for _ in range(3)]
        for thread in threads:
            thread.start()
        started.wait(PATIENCE)
    for thread in threads:
        thread.join(PATIENCE)
    assert len(received) == 3
    assert not [thread for thread in threading.enumerate() if thread.name == "penstock-http"]


def test_requests_that_do_not_end_are_cancelled(
    home: Home, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A query that streams for hours must not block the stop."""
    state: list[str] = []

    def hanging_routes(context: ServerContext) -> list[BaseRoute]:
        async def hang(request: Request) -> Response:
            async def stream() -> AsyncIterator[bytes]:
                yield b"first"
                state.append("started")
                try:
                    await asyncio.sleep(PATIENCE)
                finally:
                    state.append("cancelled")

            return StreamingResponse(stream())

        return [Route("/hang", hang)]

    monkeypatch.setattr(app, "ROUTES", (*app.ROUTES, hanging_routes))
    monkeypatch.setattr("penstock.server.serving._GRACE_SECONDS", 0.1)
    with (
        serve(home, no_spark, ANY_PORT) as serving,
        over_tcp(serving.address) as client,
        client.stream("GET", "/hang") as response,
    ):
        chunks = response.iter_raw()
        assert next(chunks) == b"first"
        until(lambda: state == ["started"], "the stream")
        serving.stop()
        with pytest.raises(httpx.RemoteProtocolError):
            next(chunks)
    assert state == ["started", "cancelled"]
    assert caplog.text == "", "a stop is no error"
    assert not [thread for thread in threading.enumerate() if thread.name == "penstock-http"]


def test_error_of_the_caller_is_not_changed(home: Home) -> None:
    with pytest.raises(OSError, match="disk full"), serve(home, no_spark, ANY_PORT):
        raise OSError("disk full")
    assert running_server(home.path) is None


def test_stop_before_the_first_request(home: Home) -> None:
    for _ in range(3):
        with serve(home, no_spark, ANY_PORT):
            pass
    assert running_server(home.path) is None


def test_server_that_cannot_start_is_reported(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "ROUTES", (lambda context: 1 / 0,))
    with serve(home, no_spark, ANY_PORT) as serving:
        until(lambda: not serving._thread.is_alive(), "the server to end")
        with pytest.raises(ZeroDivisionError):
            serving.check()
