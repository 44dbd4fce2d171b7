"""interval."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.sources.postgres.types.rendering import render

from penstock.sources.postgres.types import BadValueError, PostgresType

Decode = Callable[..., Any]

OID = 1186
counts = st.integers(-(2**31), 2**31 - 1)


INFINITE = [(2**31 - 1, 2**31 - 1, 2**63 - 1), (-(2**31), -(2**31), -(2**63))]
finite = st.tuples(counts, counts, st.integers(-(2**63), 2**63 - 1)).filter(lambda row: row not in INFINITE)


@given(st.lists(finite))
def test_any_counts(text: Decode, binary: Decode, rows: Any) -> None:
    expected = [{"months": m, "days": d, "microseconds": us} for m, d, us in rows]
    assert text(OID, [render(PostgresType(OID), row).encode() for row in expected]).to_pylist() == expected
    assert binary(OID, [struct.pack(">qii", us, d, m) for m, d, us in rows]).to_pylist() == expected


def test_signs_and_fractions(text: Decode) -> None:
    values = [b"PT0S", b"P1Y-2M3DT-4H5M-6.5S", b"PT-0.000001S", b"P-1D", b"PT2562047788H54.775807S"]
    found = text(OID, values).to_pylist()
    assert [tuple(value.values()) for value in found] == [
        (0, 0, 0),
        (10, 3, -4 * 3_600_000_000 + 5 * 60_000_000 - 6_500_000),
        (0, 0, -1),
        (0, -1, 0),
        (0, 0, 2562047788 * 3_600_000_000 + 54_775_807),
    ]


@pytest.mark.parametrize(
    "bad",
    [
        b"",
        b"P",
        b"PT",
        b"P1",
        b"P1X",
        b"1D",
        b"P1D1D",
        b"P1M1Y",
        b"P1DT",
        b"PT1.5H",
        b"P1.5D",
        b"PT1.S",
        b"PT.5S",
        b"PT1.1234567S",
        b"P--1D",
        b"P1DT1D",
        b"PTT1S",
        b"1 day",
        b"P1D ",
        b"infinite",
    ],
)
def test_malformed_text(text: Decode, bad: bytes) -> None:
    with pytest.raises(BadValueError, match="iso_8601") as caught:
        text(OID, [b"P1D", None, bad])
    assert caught.value.row == 2


@pytest.mark.parametrize(
    "bad", [b"P2147483648D", b"P-2147483649D", b"P178956971Y", b"PT2562047789H", b"PT" + b"9" * 40 + b"H"]
)
def test_out_of_range(text: Decode, bad: bytes) -> None:
    with pytest.raises(BadValueError, match="outside"):
        text(OID, [bad])


def test_infinities(text: Decode, binary: Decode) -> None:
    most, least = (
        struct.pack(">qii", 2**63 - 1, 2**31 - 1, 2**31 - 1),
        struct.pack(">qii", -(2**63), -(2**31), -(2**31)),
    )
    for decode, wires in ((text, (b"infinity", b"-infinity")), (binary, (most, least))):
        for wire in wires:
            with pytest.raises(BadValueError, match=r"infinite.*`text columns`"):
                decode(OID, [wire])


@pytest.mark.parametrize("bad", [b"", bytes(15), bytes(17)])
def test_malformed_binary(binary: Decode, bad: bytes) -> None:
    with pytest.raises(BadValueError, match="wrong length"):
        binary(OID, [bad])
