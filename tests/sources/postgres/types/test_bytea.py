"""bytea."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.sources.postgres.types import BadValueError, PostgresType, codec_for

Decode = Callable[..., Any]

OID = 17


@given(st.lists(st.none() | st.binary()))
def test_both_forms_decode_to_the_same_values(text: Decode, binary: Decode, values: Any) -> None:
    assert binary(OID, values).to_pylist() == values
    hexed = [None if v is None else b"\\x" + v.hex().encode() for v in values]
    assert text(OID, hexed).to_pylist() == values
    assert text(OID, [None if v is None else b"\\x" + v[2:].upper() for v in hexed]).to_pylist() == values


@pytest.mark.parametrize("bad", [b"", b"abc", b"\\", b"\\000", b"x00", b"\\X00"])
def test_escape_format_error_names_the_setting(text: Decode, bad: bytes) -> None:
    with pytest.raises(BadValueError, match="SET bytea_output") as caught:
        text(OID, [b"\\x00", None, bad])
    assert caught.value.row == 2


@pytest.mark.parametrize("bad", [b"\\x0", b"\\x0g", b"\\xg0", b"\\x 0", b"\\x00\xff\xff", b"\\x000"])
def test_malformed_hex(text: Decode, bad: bytes) -> None:
    with pytest.raises(BadValueError, match="malformed") as caught:
        text(OID, [b"\\x00", bad])
    assert caught.value.row == 1


def test_column_of_two_gigabytes_is_rejected() -> None:
    buf = np.full(2**20, ord("0"), np.uint8)
    buf[:2] = list(b"\\x")
    n = 2**12 + 1
    with pytest.raises(OverflowError, match="fewer rows"):
        codec_for(PostgresType(OID, -1)).text(buf, np.zeros(n, np.int32), np.full(n, 2**20, np.int32))
