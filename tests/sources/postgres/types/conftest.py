"""Columns of wire values for the tests of the codecs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import settings

from penstock.sources.postgres.types import PostgresType, codec_for, warm

settings.register_profile("penstock", deadline=None)
settings.load_profile("penstock")

Value = bytes | int | None
Decoder = Callable[..., pa.Array]


def _column(values: Sequence[Value]) -> tuple[Any, Any, Any]:
    """Values with garbage between them, to detect a read outside of a value; an int is a length (-1, -2)."""
    wire = bytearray(b"9")
    off, length = [], []
    for value in values:
        off.append(len(wire))
        length.append(len(value) if isinstance(value, bytes) else -1 if value is None else value)
        wire += (value if isinstance(value, bytes) else b"") + b"9"
    return np.frombuffer(bytes(wire), np.uint8), np.array(off, np.int32), np.array(length, np.int32)


@pytest.fixture(scope="session", autouse=True)
def _compiled() -> None:
    warm()


@pytest.fixture(scope="session")
def text() -> Decoder:
    """Decode text values: `text(oid, values, typmod=-1)`; the array is checked by Arrow itself."""

    def decode(oid: int | PostgresType, values: Sequence[Value], typmod: int = -1) -> pa.Array:
        codec = codec_for(oid if isinstance(oid, PostgresType) else PostgresType(oid, typmod))
        array = codec.text(*_column(values))
        array.validate(full=True)
        assert array.type == codec.arrow
        return array

    return decode


@pytest.fixture(scope="session")
def binary() -> Decoder:
    """Decode binary values, as `text` does."""

    def decode(oid: int | PostgresType, values: Sequence[Value], typmod: int = -1) -> pa.Array:
        codec = codec_for(oid if isinstance(oid, PostgresType) else PostgresType(oid, typmod))
        array = codec.binary(*_column(values))
        array.validate(full=True)
        assert array.type == codec.arrow
        return array

    return decode
