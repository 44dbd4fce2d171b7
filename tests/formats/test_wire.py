"""UTF-8 as Python's own decoder has it, to the byte; numbers of any length."""

from __future__ import annotations

import random

import pyarrow as pa
from tests.formats.conftest import avro, decoded

from penstock.formats import TextFormat, resolve

PIECES = [b"a", b"plain ascii, of more than eight bytes", "é".encode(), "€".encode(), "😀".encode(), "߿".encode()]
BROKEN = [b"\x80", b"\xc0\xaf", b"\xe0\x80\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xf5", b"\xe2\x82", b"\xff"]


def first_wrong(message: bytes) -> int | None:
    try:
        message.decode()
    except UnicodeDecodeError as error:
        return error.start
    return None


def test_text_is_utf8_or_stops_being_it_where_python_says() -> None:
    chance = random.Random(11)
    messages = []
    for _ in range(3000):
        pieces = [chance.choice(PIECES) for _ in range(chance.randrange(6))]
        if chance.random() < 0.7:
            pieces.insert(chance.randrange(len(pieces) + 1), chance.choice(BROKEN))
        messages.append(b"".join(pieces)[: chance.randrange(1, 90)])
    result = decoded(resolve(TextFormat()), *messages)
    for message, text, problem in zip(
        messages, result.rows.field("text").to_pylist(), result.problems.to_pylist(), strict=True
    ):
        wrong = first_wrong(message)
        if wrong is None:
            assert (text, problem) == (message.decode(), None)
        else:
            assert f"invalid UTF-8 at byte {wrong} " in str(problem)


def test_varints_have_at_most_64_bits() -> None:
    longs = [0, 1, -1, 63, -64, 64, 2**31, -(2**63), 2**63 - 1]
    zigzag = [(n << 1) ^ (n >> 63) for n in longs]
    written = []
    for number in zigzag:
        parts = [number >> shift & 127 for shift in range(0, max(number.bit_length(), 1), 7)]
        written.append(bytes([part | 128 for part in parts[:-1]] + parts[-1:]))
    result = decoded(avro("long"), *written, b"\xff" * 9 + b"\x02", b"\xff" * 10, b"\x80", b"")
    assert result.rows.field("value").to_pylist() == [*longs, None, None, None, None]
    told = result.problems.drop_null()
    assert pa.compute.sum(pa.compute.match_substring(told, "does not fit 64 bits")).as_py() == 2
    assert pa.compute.sum(pa.compute.match_substring(told, "ends within the value")).as_py() == 2
