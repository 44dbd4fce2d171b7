"""Arrays, int2vector, oidvector."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.sources.postgres.types import BadValueError

Decode = Callable[..., Any]

INTEGERS, TEXTS, BOXES, INT2VECTOR = 1007, 1009, 1020, 22
strings = st.lists(st.none() | st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])))


def sent(values: list[bytes | None], element: int = 23, bound: int = 1) -> bytes:
    head = struct.pack(">iii", 1 if values else 0, 0, element)
    if values:
        head += struct.pack(">ii", len(values), bound)
    return head + b"".join(struct.pack(">i", -1) if v is None else struct.pack(">i", len(v)) + v for v in values)


def quoted(value: str | None) -> str:
    return "NULL" if value is None else '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


@given(st.lists(st.none() | strings))
def test_any_strings(text: Decode, binary: Decode, rows: Any) -> None:
    printed = [None if row is None else ("{" + ",".join(map(quoted, row)) + "}").encode() for row in rows]
    assert text(TEXTS, printed).to_pylist() == rows
    wires = [None if r is None else sent([None if v is None else v.encode() for v in r], 25) for r in rows]
    assert binary(TEXTS, wires).to_pylist() == rows


def test_bare_elements(text: Decode) -> None:
    assert text(INTEGERS, [b"{}", b"{1}", b"{1,NULL,-3}", None]).to_pylist() == [[], [1], [1, None, -3], None]
    assert text(TEXTS, [b'{a,null,"NULL",""}']).to_pylist() == [["a", None, "NULL", ""]]
    assert text(BOXES, [b"{(1,1),(0,0);(2,2),(1,1)}"]).to_pylist() == [["(1,1),(0,0)", "(2,2),(1,1)"]]


@pytest.mark.parametrize(
    "bad",
    [
        b"",
        b"{",
        b"}",
        b"{1",
        b"1}",
        b"{1,}",
        b"{,1}",
        b"{,}",
        b'{"1}',
        b'{"1"2}',
        b'{1"2"}',
        b"{1\\}",
        b'{"\\',
        b"{1}}",
        b"{1}{",
        b"{1}{2}",
    ],
)
def test_malformed_text(text: Decode, bad: bytes) -> None:
    with pytest.raises(BadValueError, match="malformed") as caught:
        text(TEXTS, [b"{1}", None, bad])
    assert caught.value.row == 2


@pytest.mark.parametrize(
    "bad",
    [
        b"",
        bytes(11),
        sent([b"1234"])[:-1],
        sent([b"1234"]) + b"\0",
        sent([]) + b"\0",
        struct.pack(">iiiii", 1, 0, 23, 2**30, 1),
        struct.pack(">iiiii", 1, 0, 23, -1, 1),
        struct.pack(">iiiiii", 1, 0, 23, 1, 1, -2),
        struct.pack(">iii", 7, 0, 23),
        struct.pack(">iii", -1, 0, 23),
    ],
)
def test_malformed_binary(binary: Decode, bad: bytes) -> None:
    with pytest.raises(BadValueError, match="malformed") as caught:
        binary(INTEGERS, [sent([b"1234"]), None, bad])
    assert caught.value.row == 2


def test_arrays_that_a_list_cannot_hold(text: Decode, binary: Decode) -> None:
    two = struct.pack(">iiiiiii", 2, 0, 23, 1, 1, 1, 1) + struct.pack(">ii", 4, 7)
    for decode, wires in ((text, (b"{{1}}", b"[0:0]={1}")), (binary, (two, sent([b"1234"], bound=0)))):
        for wire, reason in zip(wires, ("dimensions", "begin at 1"), strict=True):
            with pytest.raises(BadValueError, match=f"{reason}.*`text columns`"):
                decode(INTEGERS, [wire])


def test_another_element_type(binary: Decode) -> None:
    with pytest.raises(BadValueError, match="changed upstream"):
        binary(INTEGERS, [sent([b"1234"], 20)])


def test_error_names_the_first_row_with_a_bad_element(text: Decode, binary: Decode) -> None:
    for decode, rows in (
        (text, [b"{1,2}", None, b"{}", b"{3,x}", b"{", b"{y}"]),
        (binary, [sent([b"1234"] * 2), None, sent([]), sent([b"1234", b"x"]), b"", sent([b"y"])]),
    ):
        with pytest.raises(BadValueError, match=r"malformed integer|wrong length") as caught:
            decode(INTEGERS, rows)
        assert caught.value.row == 3


def test_vectors_count_from_zero(text: Decode, binary: Decode) -> None:
    assert text(INT2VECTOR, [b"", b"1", b"1 -2 3"]).to_pylist() == [[], [1], [1, -2, 3]]
    wires = [struct.pack(">iiiii", 1, 0, 21, 0, 0), sent([b"\0\1"], 21, 0)]
    assert binary(INT2VECTOR, wires).to_pylist() == [[], [1]]
    for bad in (b" ", b"1 ", b" 1", b"1  2"):
        with pytest.raises(BadValueError):
            text(INT2VECTOR, [bad])
