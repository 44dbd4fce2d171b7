"""Random schemas and messages, and the checks that apply to all of them.

`PENSTOCK_SCHEMAS` is the number of schemas per format (15). A schema is generated together with a function that
generates messages of it: each as written, and as it must be read.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from typing import Any

import pyarrow as pa
from tests.formats.conftest import decoded

from penstock.formats import ResolvedFormat

SCHEMAS = int(os.environ.get("PENSTOCK_SCHEMAS", "15"))
LETTERS = 'abcxyz 0189_-"\\/{}[],:\n\té߿ह€😀'

Pair = tuple[Any, Any]
"""A value as written, and as it must be read."""
MakePair = Callable[[random.Random], Pair]


def text(rng: random.Random) -> str:
    """Return text of any length, mostly short."""
    return "".join(rng.choice(LETTERS) for _ in range(rng.choice((0, 1, 3, 7, 8, 9, 20, 70))))


def integer(rng: random.Random, bits: int) -> int:
    """Return a number of up to `bits` bits."""
    size = rng.randrange(bits)
    return rng.choice((0, 2**size - 1, -(2**size), rng.randrange(-(2**size), 2**size)))


def mutant(rng: random.Random, message: bytes) -> bytes:
    """Flip, truncate or insert bytes."""
    at = rng.randrange(len(message) + 1)
    other = bytes([rng.randrange(256)])
    return rng.choice((message[:at], message[:at] + other + message[at + 1 :], message[:at] + other + message[at:]))


def check_decoding(resolved: ResolvedFormat, messages: list[bytes], expected: list[Any], rng: random.Random) -> None:
    """Decode messages mixed with mutants: mutants are rows or problems, and messages decode as expected."""
    mixed: list[bytes | None] = []
    for message in messages:
        mixed += [message, mutant(rng, message), None]
    among = decoded(resolved, *mixed)
    alone = decoded(resolved, *messages)
    assert alone.problems.null_count == len(messages), alone.problems.to_pylist()
    assert [pairs_as_dicts(one) for one in alone.rows.to_pylist()] == expected
    # Only these are converted to Python, which cannot represent every date of a mutant.
    originals = pa.array(range(0, len(mixed), 3))
    assert among.rows.take(originals) == alone.rows
    assert among.problems.take(originals).null_count == len(messages)


def pairs_as_dicts(value: Any) -> Any:
    """Convert maps, which Arrow returns as lists of pairs, to dictionaries; mutants may have duplicate keys."""
    if isinstance(value, dict):
        return {name: pairs_as_dicts(one) for name, one in value.items()}
    if isinstance(value, list):
        if value and all(isinstance(one, tuple) for one in value):
            return {key: pairs_as_dicts(one) for key, one in value}
        return [pairs_as_dicts(one) for one in value]
    return value
