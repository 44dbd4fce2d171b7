"""Avro of random schemas, written by fastavro."""

from __future__ import annotations

import random
import struct
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from itertools import count
from typing import Any

import pytest
from tests.formats.chances import SCHEMAS, Make, hold, integer, text
from tests.formats.conftest import avro, encoded, record

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
NUMBERS = count()


def plain(value: Any) -> tuple[Any, Any]:
    return value, value


def leaf(chance: random.Random) -> tuple[Any, Make]:
    """Return a type that holds no others."""
    number = next(NUMBERS)
    symbols = [f"S{n}" for n in range(chance.randrange(1, 200))]
    size = chance.randrange(20)
    decimal = {"type": "bytes", "logicalType": "decimal", "precision": 30, "scale": 3}
    leaves: list[tuple[Any, Make]] = [
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
    return chance.choice(leaves)


def schema(chance: random.Random, depth: int) -> tuple[Any, Make]:
    """Return a type, and what makes values of it."""
    kind = chance.choice(("leaf", "leaf", "array", "map", "record", "nullable", "union")) if depth else "leaf"
    if kind == "leaf":
        return leaf(chance)
    if kind == "record":
        return a_record(chance, depth)
    if kind == "union":
        return ["null", "long", "string"], union
    below, make = schema(chance, depth - 1)
    if kind == "array":
        return {"type": "array", "items": below}, lambda c: _listed(c, make)
    if kind == "map":
        return {"type": "map", "values": below}, lambda c: _mapped(c, make)
    if isinstance(below, list):
        return below, make
    return ["null", below], lambda c: plain(None) if c.random() < 0.3 else make(c)


def _some(chance: random.Random, make: Make) -> list[tuple[Any, Any]]:
    return [make(chance) for _ in range(chance.choice((0, 1, 2, 6)))]


def _listed(chance: random.Random, make: Make) -> tuple[Any, Any]:
    made = _some(chance, make)
    return [one for one, _ in made], [one for _, one in made]


def _mapped(chance: random.Random, make: Make) -> tuple[Any, Any]:
    made = {text(chance): one for one in _some(chance, make)}
    # An empty map cannot be told from an empty list once Arrow has made Python of it.
    return {key: one[0] for key, one in made.items()}, {key: one[1] for key, one in made.items()} or []


def union(chance: random.Random) -> tuple[Any, Any]:
    value = chance.choice((None, integer(chance, 64), text(chance)))
    if value is None:
        return plain(None)
    number = isinstance(value, int)
    return value, {"long": value if number else None, "string": None if number else value}


def a_record(chance: random.Random, depth: int) -> tuple[Any, Make]:
    fields = {f"f{n}": schema(chance, depth - 1) for n in range(chance.randrange(1, 7))}
    described = record(*((name, kind) for name, (kind, _) in fields.items()), name=f"R{next(NUMBERS)}")

    def make(c: random.Random) -> tuple[Any, Any]:
        made = {name: one(c) for name, (_, one) in fields.items()}
        return {name: one[0] for name, one in made.items()}, {name: one[1] for name, one in made.items()}

    return described, make


@pytest.mark.parametrize("seed", range(SCHEMAS))
def test_messages_of_random_schemas(seed: int) -> None:
    chance = random.Random(seed)
    described, make = a_record(chance, 3)
    made = [make(chance) for _ in range(30)]
    hold(avro(described), [encoded(described, written) for written, _ in made], [read for _, read in made], chance)
