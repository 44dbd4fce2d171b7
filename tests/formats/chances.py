"""Random schemas and messages, and what must hold of all of them.

`PENSTOCK_SCHEMAS` says how many schemas each format is tried with (15). A schema is made together with a function that
makes messages of it: each as it is written, and as it must be read.
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

Made = tuple[Any, Any]
"""A value as it is written, and as it must be read."""
Make = Callable[[random.Random], Made]


def text(chance: random.Random) -> str:
    """Return text of any length, mostly short."""
    return "".join(chance.choice(LETTERS) for _ in range(chance.choice((0, 1, 3, 7, 8, 9, 20, 70))))


def integer(chance: random.Random, bits: int) -> int:
    """Return a number of up to so many bits, of any length."""
    size = chance.randrange(bits)
    return chance.choice((0, 2**size - 1, -(2**size), chance.randrange(-(2**size), 2**size)))


def mutant(chance: random.Random, message: bytes) -> bytes:
    """Flip, cut off or put in something."""
    at = chance.randrange(len(message) + 1)
    other = bytes([chance.randrange(256)])
    return chance.choice((message[:at], message[:at] + other + message[at + 1 :], message[:at] + other + message[at:]))


def hold(resolved: ResolvedFormat, messages: list[bytes], expected: list[Any], chance: random.Random) -> None:
    """Decode messages with mutants between them: those are rows or problems, and messages are what they must be."""
    mixed: list[bytes | None] = []
    for message in messages:
        mixed += [message, mutant(chance, message), None]
    among = decoded(resolved, *mixed)
    alone = decoded(resolved, *messages)
    assert alone.problems.null_count == len(messages), alone.problems.to_pylist()
    assert [pairs_as_dicts(one) for one in alone.rows.to_pylist()] == expected
    # Only these are made Python: it cannot hold every date that a mutant has.
    kept = pa.array(range(0, len(mixed), 3))
    assert among.rows.take(kept) == alone.rows
    assert among.problems.take(kept).null_count == len(messages)


def pairs_as_dicts(value: Any) -> Any:
    """Make maps, which Arrow gives as lists of pairs, dictionaries; mutants may have a key twice."""
    if isinstance(value, dict):
        return {name: pairs_as_dicts(one) for name, one in value.items()}
    if isinstance(value, list):
        if value and all(isinstance(one, tuple) for one in value):
            return {key: pairs_as_dicts(one) for key, one in value}
        return [pairs_as_dicts(one) for one in value]
    return value
