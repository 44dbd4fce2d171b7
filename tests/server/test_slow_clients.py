"""Slow clients are disconnected, and many of them do not keep others out."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import AsyncIterator, Iterator

import pytest
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import BaseRoute, Route
from tests.server.clients import (
    FORM_HEAD,
    TOKEN,
    connected,
    everything,
    no_spark,
    over_tcp,
    over_unix,
    status_of,
)

from penstock.home import Home
from penstock.server import app, protocol, security
from penstock.server.address import Address
from penstock.server.context import ServerContext
from penstock.server.protocol import LimitedProtocol
from penstock.server.serving import serve
from penstock.testing.waiting import until

HEALTH = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LimitedProtocol, "HEADER_SECONDS", 0.2)
    monkeypatch.setattr(LimitedProtocol, "STALLED_SECONDS", 0.2)
    monkeypatch.setattr(security, "BODY_SECONDS", 0.2)


def healthy(connection: socket.socket) -> bytes:
    """The response to a request on a connection that stays open."""
    connection.sendall(HEALTH)
    answer = bytearray()
    while not answer.endswith(b"}"):
        piece = connection.recv(1 << 16)
        assert piece, answer
        answer += piece
    return bytes(answer)


def test_client_that_sends_nothing(hasty: None, server: Address) -> None:
    with connected(server) as connection:
        assert everything(connection) == b""


def test_client_that_never_ends_its_headers(hasty: None, server: Address) -> None:
    """Each line would extend a timeout that begins with the last byte."""
    with connected(server) as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n")
        until(lambda: closed_while_sending(connection, b"x: y\r\n"), "the server to close the connection")


def closed_while_sending(connection: socket.socket, line: bytes) -> bool:
    try:
        connection.sendall(line)
        connection.settimeout(0.02)
        return connection.recv(1) == b""
    except TimeoutError:
        return False
    except OSError:
        return True


def test_second_request_that_is_never_completed(hasty: None, server: Address) -> None:
    with connected(server) as connection:
        assert status_of(healthy(connection)) == 200
        connection.sendall(HEALTH[:-2])
        assert everything(connection) == b""


def test_connection_may_be_used_again(hasty: None, server: Address) -> None:
    with connected(server) as connection:
        for _ in range(3):
            assert status_of(healthy(connection)) == 200


def test_body_that_does_not_arrive(hasty: None, home: Home) -> None:
    with serve(home, no_spark, "127.0.0.1:0", TOKEN) as serving, connected(serving.address) as connection:
        connection.sendall(FORM_HEAD + b"Content-Length: 100\r\n\r\ntoken=")
        answer = everything(connection)
    assert status_of(answer) == 408
    assert b"did not arrive" in answer


class Endless:
    """A route whose response never ends; `given_up` is set when the server gives it up."""

    def __init__(self) -> None:
        self.given_up = threading.Event()

    def routes(self, context: ServerContext) -> list[BaseRoute]:
        async def endless(request: Request) -> Response:
            return StreamingResponse(self._stream())

        return [Route("/endless", endless)]

    async def _stream(self) -> AsyncIterator[bytes]:
        try:
            while True:
                yield b"x" * (1 << 16)
                await asyncio.sleep(0)
        finally:
            self.given_up.set()


@pytest.fixture
def endless(monkeypatch: pytest.MonkeyPatch) -> Endless:
    added = Endless()
    monkeypatch.setattr(app, "ROUTES", (*app.ROUTES, added.routes))
    return added


ASK = b"GET /endless HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"


def test_client_that_does_not_read(hasty: None, home: Home, endless: Endless) -> None:
    with serve(home, no_spark, "127.0.0.1:0") as serving, connected(serving.address) as connection:
        connection.sendall(ASK)
        until(endless.given_up.is_set, "the response to be given up")


def test_local_client_may_pause(hasty: None, home: Home, endless: Endless) -> None:
    """As a pager does. TCP clients that send nothing, one after the other, show that the limit has passed."""
    with serve(home, no_spark, "127.0.0.1:0") as serving, socket.socket(socket.AF_UNIX) as local:
        local.connect(serving.address.socket)
        local.sendall(ASK)
        for _ in range(3):
            with connected(serving.address) as other:
                assert everything(other) == b""  # closed after the same time
        assert not endless.given_up.is_set()


@contextlib.contextmanager
def idle_connections(address: Address, count: int) -> Iterator[list[socket.socket]]:
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(connected(address)) for _ in range(count)]


def test_too_many_connections_get_503_and_the_unix_socket_stays_usable(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol, "CONNECTIONS", 5)
    with serve(home, no_spark, "127.0.0.1:0") as serving:
        address = serving.address
        with idle_connections(address, 5), over_tcp(address) as client, over_unix(address) as local:
            assert client.get("/healthz").status_code == 503
            assert local.get("/healthz").status_code == 200
        with over_tcp(address) as client:
            until(lambda: client.get("/healthz").status_code == 200, "the connections to be closed")


def test_far_too_many_connections_are_closed_at_once(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "CONNECTIONS", 5)
    with serve(home, no_spark, "127.0.0.1:0") as serving, idle_connections(serving.address, 11) as connections:
        assert everything(connections[-1]) == b""
