"""Ranges and multiranges."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import pytest

from penstock.sources.postgres.types import BadValueError, PostgresType, TypeKind

Decode = Callable[..., Any]

INT4RANGE, TSRANGE, INT4MULTIRANGE = 3904, 3908, 4451
TEXTRANGE = PostgresType(20000, -1, "textrange", TypeKind.RANGE, PostgresType(25))


def span(lower: Any, upper: Any, brackets: str = "[)", empty: bool = False) -> dict[str, Any]:
    flags = {"lower_inclusive": brackets[0] == "[", "upper_inclusive": brackets[1] == "]", "empty": empty}
    return {"lower": lower, "upper": upper, **flags}


def sent(flags: int, *bounds: int) -> bytes:
    return bytes([flags]) + b"".join(struct.pack(">ii", 4, bound) for bound in bounds)


RANGES = [
    (b"[1,10)", sent(2, 1, 10), span(1, 10)),
    (b"(1,10]", sent(4, 1, 10), span(1, 10, "(]")),
    (b"(,10)", sent(8, 10), span(None, 10, "()")),
    (b"[1,)", sent(18, 1), span(1, None)),
    (b"(,)", sent(24), span(None, None, "()")),
    (b"empty", sent(1), span(None, None, "()", True)),
]


@pytest.mark.parametrize(("printed", "wire", "expected"), RANGES)
def test_ranges(text: Decode, binary: Decode, printed: bytes, wire: bytes, expected: Any) -> None:
    assert text(INT4RANGE, [printed, None]).to_pylist() == [expected, None]
    assert binary(INT4RANGE, [wire, None]).to_pylist() == [expected, None]


def test_multiranges(text: Decode, binary: Decode) -> None:
    expected = [[], [span(1, 3), span(5, None)], None]
    assert text(INT4MULTIRANGE, [b"{}", b"{[1,3),[5,)}", None]).to_pylist() == expected
    ranges = [sent(2, 1, 3), sent(18, 5)]
    wire = struct.pack(">i", 2) + b"".join(struct.pack(">i", len(each)) + each for each in ranges)
    assert binary(INT4MULTIRANGE, [bytes(4), wire, None]).to_pylist() == expected


def test_quoted_bounds(text: Decode) -> None:
    assert text(TEXTRANGE, [b'["a ""q"" \\\\,",")"]']).to_pylist() == [span('a "q" \\,', ")", "[]")]
    assert text(TEXTRANGE, [b'["",a)']).to_pylist() == [span("", "a")]
    multi = PostgresType(20001, -1, "m", TypeKind.MULTIRANGE, TEXTRANGE)
    assert text(multi, [b'{["]""),",b),[c,"\\\\)"]}']).to_pylist() == [[span(']"),', "b"), span("c", "\\)", "[]")]]


BAD = [
    b"",
    b"[",
    b"[]",
    b"[1)",
    b"1,2",
    b"[1,2",
    b"1,2]",
    b"[1,2,3)",
    b"[,2)",
    b"(1,]",
    b'["1,2)',
    b"[(1,2)",
    b"Empty",
    b"emptyx",
]


@pytest.mark.parametrize("bad", BAD)
def test_malformed_text(text: Decode, bad: bytes) -> None:
    with pytest.raises(BadValueError, match="malformed") as caught:
        text(INT4RANGE, [None, bad])
    assert caught.value.row == 1
    with pytest.raises(BadValueError, match="malformed"):
        text(INT4MULTIRANGE, [b"{" + (bad or b",") + b"}"])


@pytest.mark.parametrize(
    "bad", [b"{", b"}", b"{[1,2)", b"[1,2)}", b"{[1,2),}", b"{,[1,2)}", b"{[1,2)[3,4)}", b"{empty}"]
)
def test_malformed_multiranges(text: Decode, bad: bytes) -> None:
    with pytest.raises(BadValueError, match="malformed"):
        text(INT4MULTIRANGE, [bad])


BAD_SENT = [
    b"",
    sent(2, 1),
    sent(2, 1, 2, 3),
    sent(1, 1),
    sent(32),
    sent(128),
    sent(2, 1, 2)[:-1],
    b"\x10\xff\xff\xff\xff",
]


@pytest.mark.parametrize("bad", BAD_SENT)
def test_malformed_binary(binary: Decode, bad: bytes) -> None:
    with pytest.raises(BadValueError, match=r"malformed range"):
        binary(INT4RANGE, [bad])
    with pytest.raises(BadValueError, match=r"malformed range") as caught:
        binary(INT4MULTIRANGE, [bytes(4), struct.pack(">ii", 1, len(bad)) + bad])
    assert caught.value.row == 1


@pytest.mark.parametrize(
    "bad", [b"", bytes(3), bytes(5), struct.pack(">i", 1), struct.pack(">i", -1), struct.pack(">i", 2**31 - 1)]
)
def test_malformed_counts(binary: Decode, bad: bytes) -> None:
    with pytest.raises(BadValueError, match="malformed"):
        binary(INT4MULTIRANGE, [bad])


def test_bound_that_its_type_cannot_hold(text: Decode) -> None:
    with pytest.raises(BadValueError, match=r"infinity.*`text columns`") as caught:
        text(TSRANGE, [b"(,)", b'["2026-01-01 00:00:00",infinity]'])
    assert caught.value.row == 1
