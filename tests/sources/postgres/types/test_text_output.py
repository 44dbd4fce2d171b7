"""Types that are stored as text, decoded from binary: numbers, bit strings, addresses, tids, times, geometry."""

from __future__ import annotations

import struct
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.sources.postgres.types.rendering import render

from penstock.sources.postgres.types import BadValueError, PostgresType

Decode = Callable[..., Any]


def words(*values: int) -> bytes:
    return struct.pack(f">{len(values)}h", *(v - 65536 if v > 32767 else v for v in values))


def doubles(*values: float) -> bytes:
    return struct.pack(f">{len(values)}d", *values)


PRINTED = [
    (1560, struct.pack(">i", 0), ""),
    (1560, struct.pack(">i", 8) + b"\xa5", "10100101"),
    (1562, struct.pack(">i", 9) + b"\xa5\x80", "101001011"),
    (869, bytes([2, 32, 0, 4, 10, 0, 0, 255]), "10.0.0.255"),
    (869, bytes([2, 8, 0, 4, 10, 0, 0, 255]), "10.0.0.255/8"),
    (650, bytes([2, 32, 1, 4, 10, 0, 0, 255]), "10.0.0.255/32"),
    (869, bytes([3, 128, 0, 16, *range(16)]), "1:203:405:607:809:a0b:c0d:e0f"),
    (869, bytes([3, 64, 0, 16, *[0] * 16]), "::/64"),
    (829, bytes(range(250, 256)), "fa:fb:fc:fd:fe:ff"),
    (774, bytes(range(8)), "00:01:02:03:04:05:06:07"),
    (27, struct.pack(">IH", 2**32 - 1, 65535), "(4294967295,65535)"),
    (3220, struct.pack(">II", 0x16, 0xB374D848), "16/B374D848"),
    (3220, bytes(8), "0/0"),
    (5038, struct.pack(">iqqqq", 2, 10, 20, 10, 15), "10:20:10,15"),
    (5038, struct.pack(">iqq", 0, 1, 1), "1:1:"),
    (1083, struct.pack(">q", 86_400_000_000), "24:00:00"),
    (1083, struct.pack(">q", 1), "00:00:00.000001"),
    (1266, struct.pack(">qi", 3_600_000_000, -19800), "01:00:00+05:30"),
    (1266, struct.pack(">qi", 100_000, 1), "00:00:00.1-00:00:01"),
    (1700, words(0, 0, 0, 0), "0"),
    (1700, words(0, 0, 0, 3), "0.000"),
    (1700, words(1, 2, 0x4000, 0, 12), "-1200000000"),
    (1700, words(2, 0, 0, 5, 1, 2345 * 1), "1.23450"),
    (1700, words(1, -2, 0, 6, 1200), "0.000012"),
    (1700, words(0, 0, 0xC000, 0), "NaN"),
    (1700, words(0, 0, 0xD000, 0x20), "Infinity"),
    (1700, words(0, 0, 0xF000, 0x20), "-Infinity"),
    (600, doubles(1.5, -0.0), "(1.5,-0)"),
    (628, doubles(1, 2, 3), "{1,2,3}"),
    (601, doubles(1, 2, 3, 4), "[(1,2),(3,4)]"),
    (603, doubles(3, 4, 1, 2), "(3,4),(1,2)"),
    (602, b"\0" + struct.pack(">i", 1) + doubles(1, 2), "[(1,2)]"),
    (602, b"\1" + struct.pack(">i", 2) + doubles(1, 2, 3, 4), "((1,2),(3,4))"),
    (604, struct.pack(">i", 1) + doubles(float("nan"), float("inf")), "((NaN,Infinity))"),
    (718, doubles(1, 2, 3), "<(1,2),3>"),
    (4072, b"\1$.a", "$.a"),
]


@pytest.mark.parametrize(("oid", "wire", "printed"), PRINTED)
def test_binary_is_printed_and_text_is_kept(text: Decode, binary: Decode, oid: int, wire: bytes, printed: str) -> None:
    assert binary(oid, [None, wire, wire]).to_pylist() == [None, printed, printed]
    assert text(oid, [None, printed.encode()]).to_pylist() == [None, printed]


@pytest.mark.parametrize(("oid", "wire"), [(oid, wire) for oid, wire, _ in PRINTED])
def test_wrong_length_is_rejected(binary: Decode, oid: int, wire: bytes) -> None:
    if oid == 4072:
        return
    for bad in (wire[:-1], wire + b"\0", b""):
        with pytest.raises(BadValueError, match="malformed") as caught:
            binary(oid, [wire, None, bad])
        assert caught.value.row == 2


MALFORMED = [
    (1560, struct.pack(">i", 7) + b"\x01"),
    (1560, struct.pack(">i", -1)),
    (1560, struct.pack(">i", 2**31 - 1) + b"\x01"),
    (869, bytes([2, 33, 0, 4, 0, 0, 0, 0])),
    (869, bytes([2, 32, 2, 4, 0, 0, 0, 0])),
    (869, bytes([4, 32, 0, 4, 0, 0, 0, 0])),
    (869, bytes([3, 32, 0, 4, 0, 0, 0, 0])),
    (5038, struct.pack(">iqq", -1, 1, 1)),
    (1083, struct.pack(">q", 86_400_000_001)),
    (1083, struct.pack(">q", -1)),
    (1266, struct.pack(">qi", 0, 16 * 3600)),
    (1266, struct.pack(">qi", 0, -(2**31))),
    (1700, words(1, 0, 0, 0, 10000)),
    (1700, words(1, 0, 1, 0, 1)),
    (1700, words(1, -1, 0, 3, 1)),
    (1700, words(0, 0, 0, 0x4000)),
    (602, b"\2" + struct.pack(">i", 1) + doubles(1, 2)),
    (602, b"\0" + struct.pack(">i", -1)),
    (604, struct.pack(">i", 2**28) + doubles(1, 2)),
]


@pytest.mark.parametrize(("oid", "wire"), MALFORMED)
def test_malformed(binary: Decode, oid: int, wire: bytes) -> None:
    with pytest.raises(BadValueError, match="malformed"):
        binary(oid, [wire])


@given(st.lists(st.integers(0, 2**64 - 1)))
def test_unsigned_numbers(text: Decode, binary: Decode, values: list[int]) -> None:
    expected = [Decimal(value) for value in values]
    assert text(5069, [str(value).encode() for value in values]).to_pylist() == expected
    assert binary(5069, [struct.pack(">Q", value) for value in values]).to_pylist() == expected
    small = [value & 0xFFFFFFFF for value in values]
    for oid in (26, 28, 29):
        assert text(oid, [str(value).encode() for value in small]).to_pylist() == small
        assert binary(oid, [struct.pack(">I", value) for value in small]).to_pylist() == small


@pytest.mark.parametrize("bad", [b"-1", b"4294967296", b"", b"x", b"1 "])
def test_malformed_unsigned_numbers(text: Decode, binary: Decode, bad: bytes) -> None:
    with pytest.raises(BadValueError) as caught:
        text(26, [b"1", None, bad])
    assert caught.value.row == 2
    with pytest.raises(BadValueError, match="wrong length"):
        binary(26, [b"12345"])


@given(st.lists(st.floats(), min_size=2, max_size=2))
def test_doubles_have_their_shortest_digits(binary: Decode, values: list[float]) -> None:
    x, y = (render(PostgresType(701), value) for value in values)
    assert binary(600, [doubles(*values)]).to_pylist() == [f"({x},{y})"]


def test_more_text_than_a_column_holds(binary: Decode) -> None:
    small = words(1, -4096, 0, 0x3FFF, 10)  # ten bytes that print as 16 thousand
    assert len(binary(1700, [small])[0].as_py()) == 2 + 0x3FFF
    with pytest.raises(BadValueError, match=r"2 GB.*`text columns`") as caught:
        binary(1700, [small] * 140_000)
    assert caught.value.row == (2**31 - 1) // (2 + 0x3FFF)
