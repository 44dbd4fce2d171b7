"""Random Arrow types of messages, with rows."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
from tests.formats.random_messages import integer, text

_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - a timestamp without time zone


def moment(rng: random.Random) -> datetime:
    """Return any time of the years 1 to 9999, often near 1970."""
    return _EPOCH + timedelta(microseconds=rng.choice([0, -1, rng.randrange(-62135596800000000, 253402300800000000)]))


def single(rng: random.Random) -> float:
    """Return a number that 32 bits can represent."""
    found: float = struct.unpack("<f", struct.pack("<f", rng.uniform(-1e6, 1e6)))[0]
    return found


SCALARS: list[tuple[pa.DataType, Callable[[random.Random], Any]]] = [
    (pa.bool_(), lambda rng: rng.random() < 0.5),
    (pa.int16(), lambda rng: integer(rng, 15)),
    (pa.int32(), lambda rng: integer(rng, 31)),
    (pa.int64(), lambda rng: integer(rng, 63)),
    (pa.float32(), single),
    (pa.float64(), lambda rng: rng.choice([0.0, -0.0, 0.1, rng.uniform(-1e300, 1e300)])),
    (pa.string(), text),
    (pa.large_string(), text),
    (pa.binary(), lambda rng: rng.randbytes(rng.randrange(9))),
    (pa.date32(), lambda rng: moment(rng).date()),
    (pa.timestamp("us"), moment),
    (pa.timestamp("us", "UTC"), lambda rng: moment(rng).replace(tzinfo=UTC)),
    (pa.decimal128(38, 0), lambda rng: Decimal(integer(rng, 126))),
    (pa.decimal128(38, 10), lambda rng: Decimal(integer(rng, 126)).scaleb(-10)),
    (pa.decimal128(5, 4), lambda rng: Decimal(rng.randrange(-99999, 99999)).scaleb(-4)),
]


class RandomRows:
    """A random struct type, and rows of it; without nulls in lists and maps, if a format cannot represent them."""

    def __init__(self, rng: random.Random, *, nulls_inside: bool = True, maps: bool = True) -> None:
        self._rng, self._nulls_inside, self._maps = rng, nulls_inside, maps
        self.type, self._make = self._struct(2)

    def rows(self, count: int) -> list[Any]:
        """Return rows, none of them null."""
        return [self._make(self._rng) for _ in range(count)]

    def _struct(self, depth: int) -> tuple[pa.StructType, Callable[[random.Random], Any]]:
        fields, makers = [], {}
        for place in range(self._rng.randrange(1, 9)):
            kind, make = self._type(depth)
            nullable = self._rng.random() < 0.8
            fields.append(pa.field(f"c{place}", kind, nullable))
            makers[f"c{place}"] = self._nullable(make) if nullable else make
        return pa.struct(fields), lambda rng: {name: make(rng) for name, make in makers.items()}

    def _type(self, depth: int) -> tuple[pa.DataType, Callable[[random.Random], Any]]:
        shape = self._rng.randrange(10) if depth else 9
        if shape == 0:
            return self._struct(depth - 1)
        if shape in (1, 2):
            kind, make = self._type(depth - 1)
            item = self._nullable(make) if self._nulls_inside else make
            return pa.list_(kind), lambda rng: [item(rng) for _ in range(rng.randrange(4))]
        if shape == 3 and self._maps:
            kind, make = self._type(depth - 1)
            item = self._nullable(make) if self._nulls_inside else make
            return pa.map_(pa.string(), kind), lambda rng: [(f"k{n}", item(rng)) for n in range(rng.randrange(3))]
        return self._rng.choice(SCALARS)

    @staticmethod
    def _nullable(make: Callable[[random.Random], Any]) -> Callable[[random.Random], Any]:
        return lambda rng: None if rng.random() < 0.2 else make(rng)


def as_text(value: date) -> str:
    """Return a date or a timestamp as text."""
    if isinstance(value, datetime):
        return value.isoformat(timespec="microseconds").replace("+00:00", "Z")
    return value.isoformat()
