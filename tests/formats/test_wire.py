"""UTF-8 validation agrees with Python's decoder to the byte; varints of any length."""

from __future__ import annotations

import random

import pyarrow as pa
from tests.formats.conftest import avro, decoded

from penstock.formats import TextFormat, resolve

PIECES = [b"a", b"plain ascii, of more than eight bytes", "é".encode(), "€".encode(), "😀".encode(), "߿".encode()]
BROKEN = [b"\x80", b"\xc0\xaf", b"\xe0\x80\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xf5", b"\xe2\x82", b"\xff"]


def first_invalid_byte(message: bytes) -> int | None:
    try:
        message.decode()
    except UnicodeDecodeError as error:
        return error.start
    return None


def test_invalid_utf8_is_reported_at_the_byte_that_python_reports() -> None:
    rng = random.Random(11)
    messages = []
    for _ in range(3000):
        pieces = [rng.choice(PIECES) for _ in range(rng.randrange(6))]
        if rng.random() < 0.7:
            pieces.insert(rng.randrange(len(pieces) + 1), rng.choice(BROKEN))
        messages.append(b"".join(pieces)[: rng.randrange(1, 90)])
    result = decoded(resolve(TextFormat()), *messages)
    for message, text, problem in zip(
        messages, result.rows.field("text").to_pylist(), result.problems.to_pylist(), strict=True
    ):
        invalid_at = first_invalid_byte(message)
        if invalid_at is None:
            assert (text, problem) == (message.decode(), None)
        else:
            assert f"invalid UTF-8 at byte {invalid_at} " in str(problem)


def test_varints_have_at_most_64_bits() -> None:
    longs = [0, 1, -1, 63, -64, 64, 2**31, -(2**63), 2**63 - 1]
    zigzag = [(n << 1) ^ (n >> 63) for n in longs]
    written = []
    for number in zigzag:
        parts = [number >> shift & 127 for shift in range(0, max(number.bit_length(), 1), 7)]
        written.append(bytes([part | 128 for part in parts[:-1]] + parts[-1:]))
    result = decoded(avro("long"), *written, b"\xff" * 9 + b"\x02", b"\xff" * 10, b"\x80", b"")
    assert result.rows.field("value").to_pylist() == [*longs, None, None, None, None]
    problems = result.problems.drop_null()
    assert pa.compute.sum(pa.compute.match_substring(problems, "does not fit in 64 bits")).as_py() == 2
    assert pa.compute.sum(pa.compute.match_substring(problems, "message is truncated")).as_py() == 2
