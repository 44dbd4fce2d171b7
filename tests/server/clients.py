"""Clients of a server under test: HTTP over TCP and over the Unix socket, raw bytes, and server-sent events."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import httpx
from pyspark.sql import SparkSession

from penstock.errors import TransientError
from penstock.server.address import Address
from penstock.server.token import Token
from penstock.testing.waiting import PATIENCE

SECRET = "2f9c1f6d0a5e4b7c8d3e2f1a0b9c8d7e"
TOKEN = Token(SECRET)
FORM_HEAD = b"POST /login HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/x-www-form-urlencoded\r\n"
"""The first lines of a request whose body the server reads."""
BEARER = {"authorization": f"Bearer {SECRET}"}


def no_spark() -> SparkSession:
    """Spark, while it is starting."""
    raise TransientError("Spark is starting", "Try again in a few seconds.")


def over_tcp(address: Address) -> httpx.Client:
    return httpx.Client(base_url=address.url, timeout=PATIENCE, trust_env=False, verify=False)


def over_unix(address: Address) -> httpx.Client:
    return httpx.Client(
        base_url="http://penstock",
        timeout=PATIENCE,
        transport=httpx.HTTPTransport(uds=address.socket, verify=False),
        trust_env=False,
    )


def connected(address: Address) -> socket.socket:
    """A plain connection to the TCP port."""
    where = urlsplit(address.url)
    assert where.hostname is not None and where.port is not None
    return socket.create_connection((where.hostname, where.port), timeout=PATIENCE)


def everything(connection: socket.socket) -> bytes:
    """What the server sends until it closes the connection."""
    received = bytearray()
    try:
        while piece := connection.recv(1 << 16):
            received += piece
    except ConnectionResetError:
        pass
    return bytes(received)


def exchanged(address: Address, sent: bytes) -> bytes:
    """Send bytes, and return what the server sends until it closes the connection."""
    with connected(address) as connection:
        connection.sendall(sent)
        return everything(connection)


def status_of(response: bytes) -> int:
    """The status code of a raw response."""
    version, code = response.split(b" ", 2)[:2]
    assert version == b"HTTP/1.1"
    return int(code)


def events(response: httpx.Response) -> Iterator[tuple[str, Any]]:
    """The server-sent events of a response: their names and data."""
    name = ""
    for line in response.iter_lines():
        if line.startswith("event: "):
            name = line.removeprefix("event: ")
        elif line.startswith("data: "):
            yield name, json.loads(line.removeprefix("data: "))
