"""The address and the token of Spark Connect."""

from __future__ import annotations

import socket
import stat
from pathlib import Path

import pytest

from penstock.errors import DefiniteError, UsageError
from penstock.spark.connect_server import ConnectAddress, connect_token

VARIABLE = "SPARK_CONNECT_AUTHENTICATE_TOKEN"


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:15002", ConnectAddress("127.0.0.1", 15002)),
        ("localhost:1", ConnectAddress("localhost", 1)),
        ("[::1]:65535", ConnectAddress("::1", 65535)),
    ],
)
def test_address(text: str, address: ConnectAddress) -> None:
    assert ConnectAddress.parse(text) == address


@pytest.mark.parametrize(
    "text", ["", "15002", "localhost", "localhost:", "localhost:0", "localhost:65536", "::1:15002"]
)
def test_invalid_address(text: str) -> None:
    with pytest.raises(UsageError, match="invalid address for Spark Connect"):
        ConnectAddress.parse(text)


def test_address_in_use() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        with pytest.raises(DefiniteError, match=r"cannot listen on 127\.0\.0\.1:[0-9]+: Address already in use"):
            ConnectAddress("127.0.0.1", other.getsockname()[1]).check()


def test_token_is_created_once_and_readable_by_the_owner_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    path = tmp_path / "run" / "connect.token"
    token = connect_token(path)
    assert len(token) >= 32
    assert connect_token(path) == token
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert connect_token(tmp_path / "other" / "connect.token") != token
    monkeypatch.setenv(VARIABLE, "of the environment")
    assert connect_token(path) == "of the environment"
