"""hstore."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.sources.postgres.types import BadValueError, PostgresType

Decode = Callable[..., Any]

HSTORE = PostgresType(30000, -1, "hstore")
strings = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))


def quoted(value: str | None) -> str:
    return "NULL" if value is None else '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


def part(value: str | None) -> bytes:
    return struct.pack(">i", -1) if value is None else struct.pack(">i", len(value.encode())) + value.encode()


@given(st.lists(st.none() | st.dictionaries(strings, st.none() | strings)))
def test_any_pairs(text: Decode, binary: Decode, rows: Any) -> None:
    expected = [None if row is None else list(row.items()) for row in rows]
    printed = [None if r is None else ", ".join(f"{quoted(k)}=>{quoted(v)}" for k, v in r).encode() for r in expected]
    wires = [
        None if r is None else struct.pack(">i", len(r)) + b"".join(part(k) + part(v) for k, v in r) for r in expected
    ]
    assert text(HSTORE, printed).to_pylist() == expected
    assert binary(HSTORE, wires).to_pylist() == expected


@pytest.mark.parametrize(
    "bad",
    [
        b"a",
        b'"a',
        b'"a"',
        b'"a"=>',
        b'"a"=>"',
        b'"a"=>NUL',
        b'"a"=>null',
        b'"a">"b"',
        b'"a"=>"b",',
        b'"a"=>"b", ',
        b'"a"=>"b","c"=>"d"',
    ],
)
def test_malformed_text(text: Decode, bad: bytes) -> None:
    with pytest.raises(BadValueError, match="malformed") as caught:
        text(HSTORE, [b"", None, bad])
    assert caught.value.row == 2


PAIR = part("k") + part("v")


@pytest.mark.parametrize(
    "bad",
    [
        b"",
        bytes(3),
        bytes(5),
        struct.pack(">i", -1),
        struct.pack(">i", 2**30),
        struct.pack(">i", 1) + part(None) + part("v"),
        struct.pack(">i", 1) + PAIR[:-1],
        struct.pack(">i", 1) + PAIR + b"\0",
        struct.pack(">iii", 1, 0, -2),
    ],
)
def test_malformed_binary(binary: Decode, bad: bytes) -> None:
    with pytest.raises(BadValueError, match="malformed") as caught:
        binary(HSTORE, [bytes(4), None, bad])
    assert caught.value.row == 2
