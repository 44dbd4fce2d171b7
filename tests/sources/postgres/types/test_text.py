"""text, varchar, bpchar, name, json, jsonb."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.sources.postgres.types import BadValueError, PostgresType, codec_for

Decode = Callable[..., Any]

OIDS = [25, 1043, 1042, 19, 114]

strings = st.lists(st.none() | st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])))


def encoded(values: Any, head: bytes = b"") -> list[bytes | None]:
    return [None if v is None else head + v.encode() for v in values]


@pytest.mark.parametrize("oid", OIDS)
@given(values=strings)
def test_bytes_are_unchanged(text: Decode, binary: Decode, oid: int, values: Any) -> None:
    assert text(oid, encoded(values)).to_pylist() == values
    assert binary(oid, encoded(values)).to_pylist() == values


def test_padding_stays(text: Decode, binary: Decode) -> None:
    assert text(1042, [b"ab   "]).to_pylist() == binary(1042, [b"ab   "]).to_pylist() == ["ab   "]


@given(values=strings)
def test_jsonb(text: Decode, binary: Decode, values: Any) -> None:
    assert text(3802, encoded(values)).to_pylist() == values
    assert binary(3802, encoded(values, b"\1")).to_pylist() == values


@pytest.mark.parametrize("bad", [b"", b"\2{}", b"{}"])
def test_other_jsonb_versions(binary: Decode, bad: bytes) -> None:
    with pytest.raises(BadValueError, match="version") as caught:
        binary(3802, [b"\1{}", -2, bad])
    assert caught.value.row == 2


def test_null_unchanged_and_empty_differ_where_they_should(text: Decode) -> None:
    array = text(25, [None, -2, b""])
    assert array.to_pylist() == [None, None, ""]
    assert array.null_count == 2


def test_invalid_utf8_is_an_error_for_the_reader_only() -> None:
    array = codec_for(PostgresType(25, -1)).text(
        np.frombuffer(b"\xff", np.uint8), np.zeros(1, np.int32), np.ones(1, np.int32)
    )
    with pytest.raises(UnicodeDecodeError):
        array.to_pylist()


def test_column_of_two_gigabytes_is_rejected() -> None:
    buf = np.zeros(2**20, np.uint8)
    off = np.zeros(2**11, np.int32)
    with pytest.raises(OverflowError, match="fewer rows"):
        codec_for(PostgresType(25, -1)).text(buf, off, np.full(2**11, 2**20, np.int32))
