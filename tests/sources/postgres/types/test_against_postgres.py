"""Every codec against a real server: both wire forms agree with each other and with what Postgres prints."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any

import numpy as np
import psycopg
import pyarrow as pa
import pytest

from penstock.sources.postgres.types import BadValue, PostgresType, codec_for

Connection = psycopg.Connection[Any]
Cells = list[bytes | None]
Render = Callable[[Any], str]

RANDOM = random.Random(20261115)
SETTINGS = (
    "SET TimeZone = 'UTC'; SET DateStyle = 'ISO'; SET IntervalStyle = 'iso_8601'; "
    "SET extra_float_digits = 3; SET bytea_output = 'hex'; SET client_encoding = 'UTF8'"
)


@pytest.fixture
def connection(database: Any) -> Iterator[Connection]:
    with database.connect() as connected:
        connected.execute(SETTINGS)
        yield connected


def fetch(connection: Connection, sql_type: str, values: Sequence[str | None], binary: bool) -> tuple[int, int, Cells]:
    """Have Postgres cast the literals; the type as the server names it, and the raw cells."""
    query = f"SELECT v::{sql_type} FROM unnest(%s::text[]) WITH ORDINALITY AS t(v, i) ORDER BY i"
    with connection.cursor(binary=binary) as cursor:
        cursor.execute(query.encode(), [list(values)])
        result = cursor.pgresult
        assert result is not None
        cells = [result.get_value(row, 0) for row in range(result.ntuples)]
        return result.ftype(0), result.fmod(0), [None if cell is None else bytes(cell) for cell in cells]


def decoded(oid: int, typmod: int, cells: Cells, binary: bool) -> pa.Array:
    wire = np.frombuffer(b"".join(cell or b"" for cell in cells), np.uint8)
    length = np.array([-1 if cell is None else len(cell) for cell in cells], np.int32)
    off = (np.cumsum(np.maximum(length, 0)) - np.maximum(length, 0)).astype(np.int32)
    codec = codec_for(PostgresType(oid, typmod))
    return (codec.binary if binary else codec.text)(wire, off, length)


def iso(value: datetime) -> str:
    return value.replace(tzinfo=None).isoformat(" ", "microseconds").rstrip("0").rstrip(".")


def digits(count: int) -> str:
    return "".join(RANDOM.choices("0123456789", k=count))


def integers(bits: int) -> list[str]:
    edge = 2 ** (bits - 1)
    drawn = [RANDOM.getrandbits(RANDOM.randint(1, bits - 1)) * RANDOM.choice([1, -1]) for _ in range(500)]
    return [str(v) for v in [0, -1, edge - 1, -edge, *drawn]]


def decimals(precision: int, scale: int) -> list[str]:
    drawn = [digits(RANDOM.randint(1, precision)) for _ in range(500)]
    widest = "9" * precision
    return [f"{RANDOM.choice(['', '-'])}{v}e-{scale}" for v in ["0", "1", widest, "1" + "0" * (precision - 1), *drawn]]


def moments() -> list[datetime]:
    least, most = datetime.min, datetime.max  # noqa: DTZ901
    span = (most - least) // timedelta(microseconds=1)
    drawn = [least + timedelta(microseconds=RANDOM.randint(0, span)) for _ in range(500)]
    return [least, most, datetime(1970, 1, 1), datetime(2000, 2, 29, 23, 59, 59, 1), *drawn]  # noqa: DTZ001


def strings() -> list[str]:
    alphabet = "aZ0 \\'\"\n\t{}é€😀\x7f"
    return ["", *("".join(RANDOM.choices(alphabet, k=RANDOM.randint(0, 200))) for _ in range(200))]


def plain(value: Any) -> str:
    return str(value)


def documents() -> list[str]:
    return ["null", "{}", '{"b": 1,   "a": [1.50, "é", {"x": null}]}', '"\\u00e9"', "12345678901234567890.123456789"]


DECLARED = [(1, 0), (1, 1), (4, 0), (5, 2), (9, 9), (18, 4), (19, 3), (20, 20), (38, 0), (38, 19), (38, 37), (38, 38)]

CASES: list[tuple[str, list[str], Render]] = [
    ("boolean", ["t", "f"], lambda v: "t" if v else "f"),
    ("smallint", integers(16), plain),
    ("integer", integers(32), plain),
    ("bigint", integers(64), plain),
    ("text", strings(), plain),
    ("varchar(300)", strings(), plain),
    ("bpchar(220)", strings(), plain),
    ("name", ["a", "é" * 31, "x" * 63], plain),
    ('"char"', ["", "a", "\\", "\\001", "\\177", "\\200", "\\351", "\\377"], plain),
    ("json", documents(), plain),
    ("jsonb", documents(), plain),
    ("bytea", ["\\x" + RANDOM.randbytes(RANDOM.randint(0, 99)).hex() for _ in range(200)], lambda v: "\\x" + v.hex()),
    ("uuid", [RANDOM.randbytes(16).hex() for _ in range(200)], plain),
    ("date", [str(v.date()) for v in moments()], plain),
    ("timestamp", [str(v) for v in moments()], iso),
    ("timestamptz", [f"{v}+00" for v in moments()], lambda v: iso(v) + "+00"),
    *((f"numeric({p},{s})", decimals(p, s), lambda v: f"{v:f}") for p, s in DECLARED),
]


@pytest.mark.parametrize(("sql_type", "values", "render"), CASES, ids=[case[0] for case in CASES])
def test_both_forms_are_what_postgres_prints(
    connection: Connection, sql_type: str, values: list[str], render: Render
) -> None:
    literals = [None, *values, None]
    oid, typmod, printed = fetch(connection, sql_type, literals, binary=False)
    _, _, sent = fetch(connection, sql_type, literals, binary=True)
    array = decoded(oid, typmod, printed, binary=False)
    assert array.equals(decoded(oid, typmod, sent, binary=True))
    rendered = [None if v is None else render(v).encode() for v in array.to_pylist()]
    assert rendered == printed


@pytest.mark.parametrize(("sql_type", "form", "size"), [("real", ">f", 4), ("double precision", ">d", 8)])
def test_floats_are_bit_exact(connection: Connection, sql_type: str, form: str, size: int) -> None:
    drawn = [struct.unpack(form, RANDOM.randbytes(size))[0] for _ in range(3000)]
    drawn += [struct.unpack(form, bytes(2) + RANDOM.randbytes(size - 2))[0] for _ in range(500)]
    drawn += [1.5, 0.1, 1e10, 1e15, 1e20, -0.0, 5e-324 if size == 8 else 2.0**-149]
    literals = [*(f"{v!r}" for v in drawn), "NaN", "Infinity", "-Infinity", "0", "-0"]
    oid, typmod, printed = fetch(connection, sql_type, literals, binary=False)
    _, _, sent = fetch(connection, sql_type, literals, binary=True)
    exact = b"".join(cell or b"" for cell in sent)
    for binary, cells in ((True, sent), (False, printed)):
        values = decoded(oid, typmod, cells, binary).to_numpy()
        assert values.astype(values.dtype.newbyteorder(">")).tobytes() == exact


ZONES = ["Asia/Kolkata", "America/St_Johns", "Europe/Amsterdam", "Africa/Monrovia", "Pacific/Kiritimati"]


@pytest.mark.parametrize("zone", ZONES)
def test_other_time_zones_print_the_same_instants(connection: Connection, zone: str) -> None:
    connection.execute(f"SET TimeZone = '{zone}'".encode())
    inside = [f"{v}+00" for v in moments() if 2 <= v.year <= 9998]
    oid, typmod, printed = fetch(connection, "timestamptz", inside, binary=False)
    _, _, sent = fetch(connection, "timestamptz", inside, binary=True)
    assert decoded(oid, typmod, printed, binary=False).equals(decoded(oid, typmod, sent, binary=True))


REFUSED = [
    ("date", ["infinity", "-infinity"], "infinity"),
    ("timestamp", ["infinity", "-infinity"], "infinity"),
    ("timestamptz", ["infinity", "-infinity"], "infinity"),
    ("date", ["0001-12-31 BC", "4713-01-01 BC", "10000-01-01", "5874897-12-31"], "0001 to 9999"),
    ("timestamp", ["0001-12-31 23:59:59.5 BC", "4713-01-01 BC", "10000-01-01", "294276-12-31"], "0001 to 9999"),
    ("timestamptz", ["0001-12-31 23:59:59.5+00 BC", "10000-01-01+00", "294276-12-31+00"], "0001 to 9999"),
    ("numeric(10,2)", ["NaN"], "NaN or infinity"),
]


@pytest.mark.parametrize(("sql_type", "values", "reason"), REFUSED)
@pytest.mark.parametrize("binary", [False, True])
def test_values_that_arrow_cannot_hold(
    connection: Connection, sql_type: str, values: list[str], reason: str, binary: bool
) -> None:
    for value in values:
        oid, typmod, cells = fetch(connection, sql_type, [None, value], binary)
        with pytest.raises(BadValue, match=reason) as caught:
            decoded(oid, typmod, cells, binary)
        assert caught.value.row == 1


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity", "1.005", "1e50", "1e-50", "-1e30000"])
@pytest.mark.parametrize("binary", [False, True])
def test_numerics_that_do_not_fit(connection: Connection, value: str, binary: bool) -> None:
    """As after a change of the declaration: the values come from a wider type."""
    _, _, cells = fetch(connection, "numeric", [value], binary)
    with pytest.raises(BadValue, match="text columns"):
        decoded(1700, ((10 << 16) | 2) + 4, cells, binary)


def test_escaped_bytea_is_refused(connection: Connection) -> None:
    connection.execute("SET bytea_output = 'escape'")
    oid, typmod, cells = fetch(connection, "bytea", ["\\x006162"], binary=False)
    with pytest.raises(BadValue, match="bytea_output"):
        decoded(oid, typmod, cells, binary=False)
