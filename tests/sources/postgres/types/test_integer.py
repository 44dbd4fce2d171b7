"""smallint, integer, bigint."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.sources.postgres.types import BadValueError

Decode = Callable[..., Any]

WIDTHS = {21: (16, ">h"), 23: (32, ">i"), 20: (64, ">q")}


@pytest.mark.parametrize("oid", WIDTHS)
@given(data=st.data())
def test_both_forms_decode_to_the_same_values(text: Decode, binary: Decode, oid: int, data: st.DataObject) -> None:
    bits, form = WIDTHS[oid]
    values = data.draw(st.lists(st.none() | st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)))
    assert text(oid, [None if v is None else str(v).encode() for v in values]).to_pylist() == values
    assert binary(oid, [None if v is None else struct.pack(form, v) for v in values]).to_pylist() == values


@pytest.mark.parametrize("oid", WIDTHS)
def test_bounds(text: Decode, oid: int) -> None:
    bound = 2 ** (WIDTHS[oid][0] - 1)
    assert text(oid, [str(-bound).encode(), str(bound - 1).encode()]).to_pylist() == [-bound, bound - 1]
    beyond = (bound, -bound - 1, 10 * bound, 2**64 + 1, -(2**64), 10**19, 10**20, 2**128)
    for value in beyond:
        with pytest.raises(BadValueError, match="range") as caught:
            text(oid, [b"1", str(value).encode()])
        assert caught.value.row == 1


@pytest.mark.parametrize("oid", WIDTHS)
@pytest.mark.parametrize("bad", [b"", b"-", b"+1", b" 1", b"1 ", b"1a", b"0x1", b"--1", b"1-", b"1.0", b"\xff", b"1e3"])
def test_malformed_text(text: Decode, oid: int, bad: bytes) -> None:
    with pytest.raises(BadValueError, match="malformed") as caught:
        text(oid, [None, b"7", bad, b"x"])
    assert caught.value.row == 2


@pytest.mark.parametrize("oid", WIDTHS)
@given(data=st.data())
def test_digits_decode_or_are_rejected(text: Decode, oid: int, data: st.DataObject) -> None:
    value = data.draw(st.text("-0123456789", max_size=24))
    try:
        expected = int(value)
    except ValueError:
        expected = None
    bound = 2 ** (WIDTHS[oid][0] - 1)
    if expected is not None and -bound <= expected < bound:
        assert text(oid, [value.encode()]).to_pylist() == [expected]
    else:
        with pytest.raises(BadValueError):
            text(oid, [value.encode()])


@pytest.mark.parametrize("oid", WIDTHS)
@pytest.mark.parametrize("size", [0, 1, 3, 5, 7, 9])
def test_wrong_width(binary: Decode, oid: int, size: int) -> None:
    with pytest.raises(BadValueError, match="length"):
        binary(oid, [bytes(size)])


def test_nulls_and_unchanged(text: Decode, binary: Decode) -> None:
    assert text(23, [None, -2, b"1"]).to_pylist() == [None, None, 1]
    assert binary(23, [-2, b"\0\0\0\1"]).to_pylist() == [None, 1]
    assert text(23, []).to_pylist() == []
    assert text(23, [b"1"] * 9).buffers()[0] is None
