"""JSON of random columns, in all notations that JSON allows."""

from __future__ import annotations

import json
import random
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from tests.formats.random_messages import SCHEMAS, MakePair, check_decoding, integer, text

from penstock.formats import JsonFormat, resolve

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def quoted(rng: random.Random, value: str) -> str:
    return json.dumps(value, ensure_ascii=rng.random() < 0.5)


def a_text(rng: random.Random) -> tuple[str, Any]:
    value = text(rng)
    return quoted(rng, value), value


def number(value: Any, form: str = "") -> tuple[str, Any]:
    return format(value, form), value


def a_time(rng: random.Random) -> tuple[str, Any]:
    value = EPOCH + timedelta(microseconds=integer(rng, 50))
    return f'"{value.isoformat()}"', value


LEAVES: dict[str, MakePair] = {
    "BOOLEAN": lambda c: c.choice((("true", True), ("false", False))),
    "SMALLINT": lambda c: number(integer(c, 16)),
    "INT": lambda c: number(integer(c, 32)),
    "BIGINT": lambda c: number(integer(c, 64)),
    "DOUBLE": lambda c: number(c.gauss(0, 10.0 ** c.randrange(-300, 300)), ".17g"),
    "DECIMAL(38,4)": lambda c: number(Decimal(c.randrange(-(10 ** c.randrange(1, 38)), 10**9)).scaleb(-4), "f"),
    "DECIMAL(9,2)": lambda c: number(Decimal(c.randrange(-(10**9) + 1, 10**9)).scaleb(-2), c.choice(("f", "e"))),
    "STRING": a_text,
    "DATE": lambda c: (lambda day: (f'"{day.isoformat()}"', day))(date(c.randrange(1, 9999), 2, 28)),
    "TIMESTAMP": a_time,
}


def column(rng: random.Random, depth: int) -> tuple[str, MakePair]:
    """Return a SQL type, and a generator of its values, sometimes null."""
    kind = rng.choice(("leaf", "leaf", "array", "map", "struct")) if depth else "leaf"
    if kind == "leaf":
        name = rng.choice(list(LEAVES))
        return name, _or_null(LEAVES[name])
    if kind == "struct":
        fields, make = struct(rng, depth)
        return f"STRUCT<{', '.join(f'{name}: {one}' for name, one in fields.items())}>", _or_null(make)
    below, make = column(rng, depth - 1)
    if kind == "array":
        return f"ARRAY<{below}>", _or_null(lambda c: an_array(c, make))
    return f"MAP<STRING, {below}>", _or_null(lambda c: a_map(c, make))


def _or_null(make: MakePair) -> MakePair:
    return lambda c: ("null", None) if c.random() < 0.1 else make(c)


def joined(rng: random.Random, parts: list[str]) -> str:
    """Join parts by commas, with whitespace where JSON allows it."""
    space = rng.choice(("", " ", "\n\t", " \r\n  "))
    return space + f"{space},{space}".join(parts) + space


def an_array(rng: random.Random, make: MakePair) -> tuple[str, Any]:
    items = [make(rng) for _ in range(rng.choice((0, 1, 2, 6)))]
    return f"[{joined(rng, [one for one, _ in items])}]", [one for _, one in items]


def a_map(rng: random.Random, make: MakePair) -> tuple[str, Any]:
    items = {text(rng): make(rng) for _ in range(rng.choice((0, 1, 2, 6)))}
    written = [f"{quoted(rng, key)}: {one}" for key, (one, _) in items.items()]
    # Arrow converts an empty map and an empty list to the same Python value.
    return f"{{{joined(rng, written)}}}", {key: one for key, (_, one) in items.items()} or []


def struct(rng: random.Random, depth: int) -> tuple[dict[str, str], MakePair]:
    fields = {f"{rng.choice(('f', 'a_long_name_of_a_field_'))}{n}": column(rng, depth - 1) for n in range(6)}

    def make(c: random.Random) -> tuple[str, Any]:
        pairs = {name: one(c) for name, (_, one) in fields.items() if c.random() < 0.9}
        parts = [f"{quoted(c, name)}:{one}" for name, (one, _) in pairs.items()]
        parts += [f'"more{n}": {{"f0": [{n}, "x"]}}' for n in range(c.choice((0, 0, 1, 3)))]
        if c.random() < 0.3:
            c.shuffle(parts)
        return f"{{{joined(c, parts)}}}", {name: pairs[name][1] if name in pairs else None for name in fields}

    return {name: kind for name, (kind, _) in fields.items()}, make


@pytest.mark.parametrize("seed", range(SCHEMAS))
def test_messages_of_random_columns(seed: int) -> None:
    rng = random.Random(seed)
    fields, make = struct(rng, 3)
    resolved = resolve(JsonFormat(columns=", ".join(f"{name} {kind}" for name, kind in fields.items())))
    pairs = [make(rng) for _ in range(30)]
    assert all(isinstance(json.loads(written), dict) for written, _ in pairs)
    check_decoding(resolved, [written.encode() for written, _ in pairs], [read for _, read in pairs], rng)
