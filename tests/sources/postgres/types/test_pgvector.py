"""vector, of the extension pgvector."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.sources.postgres.types import BadValueError, PostgresType

Decode = Callable[..., Any]

VECTOR = PostgresType(30001, -1, "vector")
vectors = st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=20)


def sent(vector: list[float] | None) -> bytes | None:
    return None if vector is None else struct.pack(f">hh{len(vector)}f", len(vector), 0, *vector)


def printed(vector: list[float] | None) -> bytes | None:
    return None if vector is None else f"[{','.join(str(np.float32(value)) for value in vector)}]".encode()


@given(st.lists(st.none() | vectors))
def test_any_vectors(text: Decode, binary: Decode, rows: list[list[float] | None]) -> None:
    assert binary(VECTOR, [sent(row) for row in rows]).to_pylist() == rows
    assert text(VECTOR, [printed(row) for row in rows]).to_pylist() == rows


@pytest.mark.parametrize(
    "bad", [b"", b"[]", b"[", b"1,2", b"[1,2", b"1,2]", b"[1,,2]", b"[1,]", b"[a]", b"[1]]", b"[1 ]"]
)
def test_malformed_text(text: Decode, bad: bytes) -> None:
    with pytest.raises(BadValueError) as caught:
        text(VECTOR, [b"[1]", None, bad, b"["])
    assert caught.value.row == 2


@pytest.mark.parametrize("bad", [b"", b"\0\1\0", bytes(4), struct.pack(">hhf", 2, 0, 1), struct.pack(">hhf", 1, 1, 1)])
def test_malformed_binary(binary: Decode, bad: bytes) -> None:
    with pytest.raises(BadValueError, match="malformed vector") as caught:
        binary(VECTOR, [struct.pack(">hhf", 1, 0, 1), None, bad])
    assert caught.value.row == 2
