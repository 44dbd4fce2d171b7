"""Composite types."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.sources.postgres.types import BadValueError, PostgresType, TypeKind, UnsupportedTypeError, codec_for

Decode = Callable[..., Any]

PAIR = PostgresType(
    20001,
    -1,
    "pair",
    TypeKind.COMPOSITE,
    fields=(("a", PostgresType(25, -1, "text")), ("b", PostgresType(23, -1, "int4"))),
)
NESTED = PostgresType(20002, -1, "nested", TypeKind.COMPOSITE, fields=(("pair", PAIR), ("flag", PostgresType(16))))


def sent(*fields: tuple[int, bytes | None]) -> bytes:
    parts = (struct.pack(">Ii", oid, -1 if v is None else len(v)) + (v or b"") for oid, v in fields)
    return struct.pack(">i", len(fields)) + b"".join(parts)


strings = st.none() | st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))


@given(st.lists(st.none() | st.tuples(strings, st.none() | st.integers(-(2**31), 2**31 - 1))))
def test_any_fields(text: Decode, binary: Decode, rows: Any) -> None:
    def printed(a: str | None, b: int | None) -> bytes:
        quoted = "" if a is None else '"' + a.replace("\\", "\\\\").replace('"', '""') + '"'
        return f"({quoted},{'' if b is None else b})".encode()

    def wire(a: str | None, b: int | None) -> bytes:
        return sent((25, None if a is None else a.encode()), (23, None if b is None else struct.pack(">i", b)))

    expected = [None if row is None else {"a": row[0], "b": row[1]} for row in rows]
    assert text(PAIR, [None if row is None else printed(*row) for row in rows]).to_pylist() == expected
    assert binary(PAIR, [None if row is None else wire(*row) for row in rows]).to_pylist() == expected


def test_nested(text: Decode, binary: Decode) -> None:
    expected = [{"pair": {"a": 'x"', "b": 1}, "flag": True}, {"pair": None, "flag": None}]
    assert text(NESTED, [b'("(""x"""""",1)",t)', b"(,)"]).to_pylist() == expected
    inner = sent((25, b'x"'), (23, struct.pack(">i", 1)))
    assert binary(NESTED, [sent((20001, inner), (16, b"\1")), sent((20001, None), (16, None))]).to_pylist() == expected


def test_one_field_that_is_null_or_empty(text: Decode) -> None:
    single = PostgresType(20003, -1, "single", TypeKind.COMPOSITE, fields=(("x", PostgresType(25)),))
    assert text(single, [b"()", b'("")', b"(a)"]).to_pylist() == [{"x": None}, {"x": ""}, {"x": "a"}]


@pytest.mark.parametrize(
    "bad", [b"", b"(", b")", b"x", b"(a,1", b"a,1)", b'("a,1)', b"(a\\", b'(a,"1"', b"((,1)", b"(),1)"]
)
def test_malformed_text(text: Decode, bad: bytes) -> None:
    with pytest.raises(BadValueError, match=r"malformed|changed") as caught:
        text(PAIR, [None, bad])
    assert caught.value.row == 1


@pytest.mark.parametrize(
    "bad", [b"", bytes(3), sent((25, b"a"), (23, b"1234"))[:-1], sent((25, b"a"), (23, None)) + b"\0"]
)
def test_malformed_binary(binary: Decode, bad: bytes) -> None:
    with pytest.raises(BadValueError, match="malformed") as caught:
        binary(PAIR, [None, bad])
    assert caught.value.row == 1


def test_altered_type(text: Decode, binary: Decode) -> None:
    altered = [sent((25, b"a")), sent((25, b"a"), (20, None)), sent((25, b"a"), (23, None), (23, None)), sent()]
    for decode, wires in ((text, [b"()", b"(a)", b"(a,1,2)"]), (binary, altered)):
        for wire in wires:
            with pytest.raises(BadValueError, match=r"changed upstream.*RETRY TABLE"):
                decode(PAIR, [wire])


def test_error_names_the_first_bad_row_of_any_field(text: Decode) -> None:
    rows = [b"(,1)", b'("(a,x)",t)', b'("(a,1)",x)', b"("]
    with pytest.raises(BadValueError, match="malformed integer") as caught:
        text(NESTED, [b"(,t)", *rows[1:]])
    assert caught.value.row == 1
    with pytest.raises(BadValueError, match="malformed boolean") as caught:
        text(NESTED, [rows[2], rows[1]])
    assert caught.value.row == 0


def test_field_names_that_differ_only_in_case() -> None:
    fields = (("Name", PostgresType(25)), ("name", PostgresType(25)))
    with pytest.raises(UnsupportedTypeError, match=r"name differ by case alone.*`text columns`"):
        codec_for(PostgresType(20004, -1, "twice", TypeKind.COMPOSITE, fields=fields))
