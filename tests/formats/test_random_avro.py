"""Avro of random schemas, written by fastavro."""

from __future__ import annotations

import random
import struct
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from itertools import count
from typing import Any

import pytest
from tests.formats.conftest import avro, encoded, record
from tests.formats.random_messages import SCHEMAS, MakePair, check_decoding, integer, text

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
NUMBERS = count()


def plain(value: Any) -> tuple[Any, Any]:
    return value, value


def leaf(rng: random.Random) -> tuple[Any, MakePair]:
    """Return a type without nested types."""
    number = next(NUMBERS)
    symbols = [f"S{n}" for n in range(rng.randrange(1, 200))]
    size = rng.randrange(20)
    decimal = {"type": "bytes", "logicalType": "decimal", "precision": 30, "scale": 3}
    leaves: list[tuple[Any, MakePair]] = [
        ("boolean", lambda c: plain(c.random() < 0.5)),
        ("int", lambda c: plain(integer(c, 32))),
        ("long", lambda c: plain(integer(c, 64))),
        ("float", lambda c: plain(struct.unpack("<f", struct.pack("<f", c.gauss(0, 9)))[0])),
        ("double", lambda c: plain(c.gauss(0, 1e9))),
        ("string", lambda c: plain(text(c))),
        ("bytes", lambda c: plain(c.randbytes(c.randrange(40)))),
        ({"type": "enum", "name": f"E{number}", "symbols": symbols}, lambda c: plain(c.choice(symbols))),
        ({"type": "fixed", "name": f"F{number}", "size": size}, lambda c: plain(c.randbytes(size))),
        (decimal, lambda c: plain(Decimal(c.randrange(-(10 ** c.randrange(1, 30)), 10**9)).scaleb(-3))),
        ({"type": "int", "logicalType": "date"}, lambda c: plain(date(c.randrange(1, 9999), 2, 28))),
        (
            {"type": "long", "logicalType": "timestamp-micros"},
            lambda c: plain(EPOCH + timedelta(microseconds=integer(c, 50))),
        ),
    ]
    return rng.choice(leaves)


def schema(rng: random.Random, depth: int) -> tuple[Any, MakePair]:
    """Return a type, and a generator of its values."""
    kind = rng.choice(("leaf", "leaf", "array", "map", "record", "nullable", "union")) if depth else "leaf"
    if kind == "leaf":
        return leaf(rng)
    if kind == "record":
        return a_record(rng, depth)
    if kind == "union":
        return ["null", "long", "string"], union
    below, make = schema(rng, depth - 1)
    if kind == "array":
        return {"type": "array", "items": below}, lambda c: _listed(c, make)
    if kind == "map":
        return {"type": "map", "values": below}, lambda c: _mapped(c, make)
    if isinstance(below, list):
        return below, make
    return ["null", below], lambda c: plain(None) if c.random() < 0.3 else make(c)


def _some(rng: random.Random, make: MakePair) -> list[tuple[Any, Any]]:
    return [make(rng) for _ in range(rng.choice((0, 1, 2, 6)))]


def _listed(rng: random.Random, make: MakePair) -> tuple[Any, Any]:
    pairs = _some(rng, make)
    return [one for one, _ in pairs], [one for _, one in pairs]


def _mapped(rng: random.Random, make: MakePair) -> tuple[Any, Any]:
    pairs = {text(rng): one for one in _some(rng, make)}
    # Arrow converts an empty map and an empty list to the same Python value.
    return {key: one[0] for key, one in pairs.items()}, {key: one[1] for key, one in pairs.items()} or []


def union(rng: random.Random) -> tuple[Any, Any]:
    value = rng.choice((None, integer(rng, 64), text(rng)))
    if value is None:
        return plain(None)
    number = isinstance(value, int)
    return value, {"long": value if number else None, "string": None if number else value}


def a_record(rng: random.Random, depth: int) -> tuple[Any, MakePair]:
    fields = {f"f{n}": schema(rng, depth - 1) for n in range(rng.randrange(1, 7))}
    described = record(*((name, kind) for name, (kind, _) in fields.items()), name=f"R{next(NUMBERS)}")

    def make(c: random.Random) -> tuple[Any, Any]:
        pairs = {name: one(c) for name, (_, one) in fields.items()}
        return {name: one[0] for name, one in pairs.items()}, {name: one[1] for name, one in pairs.items()}

    return described, make


@pytest.mark.parametrize("seed", range(SCHEMAS))
def test_messages_of_random_schemas(seed: int) -> None:
    rng = random.Random(seed)
    described, make = a_record(rng, 3)
    pairs = [make(rng) for _ in range(30)]
    check_decoding(
        avro(described), [encoded(described, written) for written, _ in pairs], [read for _, read in pairs], rng
    )
