"""The type "char"."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from penstock.sources.postgres.types import BadValueError

Decode = Callable[..., Any]

OID = 18


def printed(byte: int) -> str:
    return "" if byte == 0 else chr(byte) if byte < 128 else f"\\{byte:03o}"


def test_every_byte_prints_as_charout_does(text: Decode, binary: Decode) -> None:
    expected = [printed(byte) for byte in range(256)]
    assert binary(OID, [bytes([byte]) for byte in range(256)]).to_pylist() == expected
    assert text(OID, [value.encode() for value in expected]).to_pylist() == expected


def test_nulls(text: Decode, binary: Decode) -> None:
    assert text(OID, [None, b"a", -2]).to_pylist() == [None, "a", None]
    assert binary(OID, [None, b"a", -2]).to_pylist() == [None, "a", None]


@pytest.mark.parametrize("bad", [b"\xe9", b"ab", b"\\35", b"\\358", b"x351", b"\\3511"])
def test_malformed_text(text: Decode, bad: bytes) -> None:
    with pytest.raises(BadValueError) as caught:
        text(OID, [b"a", bad])
    assert caught.value.row == 1


@pytest.mark.parametrize("bad", [b"", b"ab"])
def test_malformed_binary(binary: Decode, bad: bytes) -> None:
    with pytest.raises(BadValueError):
        binary(OID, [bad])
