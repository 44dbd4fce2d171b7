"""numeric."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable
from decimal import Decimal, localcontext
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.sources.postgres.types import BadValueError, PostgresType, codec_for

Decode = Callable[..., Any]

OID = 1700


def typmod(precision: int, scale: int) -> int:
    return ((precision << 16) | (scale & 0x7FF)) + 4


def fixed(unscaled: int, scale: int) -> str:
    digits = f"{abs(unscaled):0{scale + 1}d}"
    text = f"{digits[:-scale]}.{digits[-scale:]}" if scale else digits
    return "-" + text if unscaled < 0 else text


def pack(value: str, keep_zeros: bool = False) -> bytes:
    """The binary form of plain digits, built from the text in base 10000 as numeric_send does."""
    minus, value = value.startswith("-"), value.removeprefix("-")
    whole, _, fraction = value.partition(".")
    dscale = len(fraction)
    whole = whole.rjust(-(-len(whole) // 4) * 4, "0")
    fraction = fraction.ljust(-(-len(fraction) // 4) * 4, "0")
    groups = [int((whole + fraction)[k : k + 4]) for k in range(0, len(whole + fraction), 4)]
    weight = len(whole) // 4 - 1
    if not keep_zeros:
        while groups and groups[0] == 0:
            groups.pop(0)
            weight -= 1
        while groups and groups[-1] == 0:
            groups.pop()
        weight = weight if groups else 0
    return struct.pack(f">HhHH{len(groups)}H", len(groups), weight, 0x4000 if minus else 0, dscale, *groups)


def raw(weight: int, sign: int, *groups: int, count: int | None = None) -> bytes:
    return struct.pack(f">HhHH{len(groups)}H", len(groups) if count is None else count, weight, sign, 0, *groups)


@st.composite
def declared(draw: st.DrawFn) -> tuple[int, int, list[int | None]]:
    precision = draw(st.integers(1, 38))
    scale = draw(st.integers(0, precision))
    bound = 10**precision - 1
    small = min(bound, 99)
    values = st.none() | st.integers(-bound, bound) | st.integers(-small, small)
    return precision, scale, draw(st.lists(values, max_size=8))


@settings(max_examples=1000)
@given(declared())
def test_both_forms_decode_to_the_same_values(text: Decode, binary: Decode, case: Any) -> None:
    precision, scale, values = case
    with localcontext(prec=60):
        expected = [None if v is None else Decimal(v).scaleb(-scale) for v in values]
    texts = [None if v is None else fixed(v, scale) for v in values]
    mod = typmod(precision, scale)
    assert text(OID, [v and v.encode() for v in texts], mod).to_pylist() == expected
    for keep in (False, True):
        assert binary(OID, [v and pack(v, keep) for v in texts], mod).to_pylist() == expected


@settings(max_examples=1000)
@given(st.integers(1, 38), st.data())
def test_exact_or_rejected(text: Decode, binary: Decode, precision: int, data: st.DataObject) -> None:
    """Any decimal with any declaration decodes exactly or is an error; it is never rounded."""
    scale = data.draw(st.integers(0, precision))
    whole = data.draw(st.from_regex(r"[0-9]{1,42}", fullmatch=True) | st.just("0"))
    fraction = data.draw(st.from_regex(r"[0-9]{0,42}", fullmatch=True) | st.just("0000"))
    value = data.draw(st.sampled_from(["", "-"])) + whole + ("." + fraction if fraction else "")
    with localcontext(prec=100):
        scaled = Decimal(value).scaleb(scale)
        holds = scaled == scaled.to_integral_value() and abs(scaled) < 10**precision
    for decode, wire in ((text, value.encode()), (binary, pack(value)), (binary, pack(value, keep_zeros=True))):
        if holds:
            assert decode(OID, [wire], typmod(precision, scale)).to_pylist() == [Decimal(value)]
        else:
            with pytest.raises(BadValueError):
                decode(OID, [wire], typmod(precision, scale))


def test_widest_values(text: Decode, binary: Decode) -> None:
    for scale in (0, 1, 19, 37, 38):
        for value in (10**38 - 1, -(10**38) + 1, 10**37, 2**64, 2**64 - 1, -(2**64), 1, 0):
            literal = fixed(value, scale)
            a = text(OID, [literal.encode()], typmod(38, scale))
            assert a.equals(binary(OID, [pack(literal)], typmod(38, scale)))
            assert int.from_bytes(bytes(a.buffers()[1]), "little", signed=True) == value


def test_error_reasons(text: Decode, binary: Decode) -> None:
    mod = typmod(5, 2)
    for special, sign in ((b"NaN", 0xC000), (b"Infinity", 0xD000), (b"-Infinity", 0xF000)):
        for decode, wire in ((text, special), (binary, raw(0, sign))):
            with pytest.raises(BadValueError, match="text columns") as caught:
                decode(OID, [None, wire], mod)
            assert caught.value.row == 1
            assert "NaN or infinity" in caught.value.reason
    for value in ("1.005", "0.001", "0.00001", "-0.000000001", "1234.567"):
        for decode, wire in ((text, value.encode()), (binary, pack(value))):
            with pytest.raises(BadValueError, match=r"scale|precision"):
                decode(OID, [wire], mod)
    for value in ("1000.00", "99999", "1" + "0" * 200, "1" + "0" * 40000):
        for decode, wire in ((text, value.encode()), (binary, pack(value))):
            with pytest.raises(BadValueError, match="precision"):
                decode(OID, [wire], mod)
    assert text(OID, [b"1.2300", b"-0"], mod).to_pylist() == [Decimal("1.23"), Decimal(0)]


@pytest.mark.parametrize(
    "bad",
    [b"", b"-", b".", b"1.", b".5", b"-.5", b"1..2", b"1.2.3", b"+1", b" 1", b"1e2", b"nan", b"-NaN ", b"Infinit"],
)
def test_malformed_text(text: Decode, bad: bytes) -> None:
    with pytest.raises(BadValueError, match="malformed") as caught:
        text(OID, [b"1", None, bad], typmod(10, 3))
    assert caught.value.row == 2


@pytest.mark.parametrize(
    "bad",
    [
        b"",
        bytes(7),
        bytes(9),
        raw(0, 0, 1, count=2),
        raw(0, 0, 1, count=0xFFFF),
        raw(0, 0, 1) + b"\0",
        raw(0, 0, 10000),
        raw(0, 0, 0xFFFF),
        raw(0, 0x8000, 1),
        raw(0, 1, 1),
    ],
)
def test_malformed_binary(binary: Decode, bad: bytes) -> None:
    with pytest.raises(BadValueError, match="malformed"):
        binary(OID, [bad], typmod(10, 3))


@given(st.binary(max_size=24))
def test_any_binary_decodes_or_is_rejected(binary: Decode, wire: bytes) -> None:
    with contextlib.suppress(BadValueError):
        assert abs(binary(OID, [wire], typmod(38, 10)).to_pylist()[0]) < 10**28


def test_declarations() -> None:
    assert codec_for(PostgresType(OID, typmod(38, 38))) is codec_for(PostgresType(OID, typmod(38, 38)))
    assert str(codec_for(PostgresType(OID, typmod(10, 2))).arrow) == "decimal128(10, 2)"
    for mod in (-1, typmod(39, 0), typmod(1000, 5), typmod(5, -2), typmod(3, 5)):
        assert str(codec_for(PostgresType(OID, mod)).arrow) == "string"
