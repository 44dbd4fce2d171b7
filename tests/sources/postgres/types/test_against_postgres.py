"""Every codec against a real server: both wire formats agree with each other and with the output of Postgres."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta
from ipaddress import IPv4Address, ip_network
from typing import Any

import numpy as np
import psycopg
import pyarrow as pa
import pytest
from tests.sources.postgres.types.rendering import render

from penstock.embedded.postgres import EmbeddedPostgres
from penstock.sources.postgres.types import BadValueError, PostgresType, codec_for, text_codec_for

Connection = psycopg.Connection[Any]
Cells = list[bytes | None]
Render = Callable[[Any], str]

RANDOM = random.Random(20261115)
SETTINGS = (
    "SET TimeZone = 'UTC'; SET DateStyle = 'ISO'; SET IntervalStyle = 'iso_8601'; "
    "SET extra_float_digits = 3; SET bytea_output = 'hex'; SET client_encoding = 'UTF8'"
)


@pytest.fixture
def connection(postgres_server: EmbeddedPostgres) -> Iterator[Connection]:
    """A session with default settings; the tests create no objects, and need no database of their own."""
    with psycopg.connect(postgres_server.url, autocommit=True) as connected:
        connected.execute(SETTINGS)
        yield connected


NEWER = (
    psycopg.errors.IntervalFieldOverflow,
    psycopg.errors.InvalidDatetimeFormat,
    psycopg.errors.InvalidParameterValue,
)
"""Errors of servers for values of later versions: infinite intervals (17), negative scales (15)."""


def fetch(connection: Connection, sql_type: str, values: Sequence[str | None], binary: bool) -> tuple[int, int, Cells]:
    """Let Postgres cast the literals; return the OID and typmod of the result, and its raw cells."""
    query = f"SELECT v::{sql_type} FROM unnest(%s::text[]) WITH ORDINALITY AS t(v, i) ORDER BY i"
    with connection.cursor(binary=binary) as cursor:
        try:
            cursor.execute(query.encode(), [list(values)])
        except NEWER as error:
            if connection.info.server_version >= 170_000:
                raise
            pytest.skip(f"this server does not support these values: {error.diag.message_primary}")
        result = cursor.pgresult
        assert result is not None
        cells = [result.get_value(row, 0) for row in range(result.ntuples)]
        return result.ftype(0), result.fmod(0), [None if cell is None else bytes(cell) for cell in cells]


def column_of(cells: Cells) -> tuple[Any, Any, Any]:
    wire = np.frombuffer(b"".join(cell or b"" for cell in cells), np.uint8)
    length = np.array([-1 if cell is None else len(cell) for cell in cells], np.int32)
    return wire, (np.cumsum(np.maximum(length, 0)) - np.maximum(length, 0)).astype(np.int32), length


def decoded(oid: int, typmod: int, cells: Cells, binary: bool) -> pa.Array:
    codec = codec_for(PostgresType(oid, typmod))
    return (codec.binary if binary else codec.text)(*column_of(cells))


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


def unsigned(bits: int) -> list[str]:
    return [str(v) for v in [0, 1, 2**bits - 1, 2 ** (bits - 1), *(RANDOM.getrandbits(bits) for _ in range(200))]]


def wide_numerics() -> list[str]:
    drawn = [f"{digits(RANDOM.randint(1, 60))}.{digits(RANDOM.randint(0, 60))}" for _ in range(300)]
    small = [f"0.{'0' * RANDOM.randint(0, 30)}{digits(RANDOM.randint(1, 9))}" for _ in range(100)]
    extremes = ["9" * 131072, "1" + "0" * 131071, "0." + "0" * 16382 + "1", "9" * 131072 + "." + "9" * 16383]
    special = ["0", "0.0", "-0.000", "10000", "100000000", "1e-4", "1e-5", "NaN", "Infinity", "-Infinity"]
    return [*special, *extremes, "-" + "8" * 40000, *drawn, *small, *(f"-{v}" for v in drawn)]


def addresses() -> list[str]:
    drawn = [str(IPv4Address(RANDOM.getrandbits(32))) for _ in range(100)]
    for _ in range(300):
        words = [RANDOM.choice([0, 0, 1, 0xFFFF, RANDOM.getrandbits(16), RANDOM.getrandbits(4)]) for _ in range(8)]
        drawn.append(":".join(f"{word:x}" for word in words))
    odd = ["::", "::1", "1::", "::1.2.3.4", "::ffff:1.2.3.4", "::ffff:0:0", "::2", "0:0:0:0:0:0:1:0", "1:0:0:2:0:0:0:3"]
    return [*odd, *drawn, "0.0.0.0", "255.255.255.255"]


def masked(host: bool) -> list[str]:
    drawn = [(v, RANDOM.randint(0, 128 if ":" in v else 32)) for v in addresses()]
    if host:
        return [f"{v}/{bits}" for v, bits in drawn]
    return [str(ip_network(f"{v}/{bits}", strict=False)) for v, bits in drawn]


def clocks() -> list[str]:
    drawn = [str((datetime.min + timedelta(microseconds=RANDOM.randrange(86_400_000_000))).time()) for _ in range(300)]  # noqa: DTZ901
    return ["00:00:00", "24:00:00", "23:59:59.999999", "00:00:00.000001", "12:00:00.1", *drawn]


def zoned() -> list[str]:
    offsets = ["+00", "-00:00:01", "+15:59:59", "-15:59:59", "+05:30", "-03", "+01:02:03", "+00:00:30"]
    return [f"{clock}{RANDOM.choice(offsets)}" for clock in clocks()]


def intervals() -> list[str]:
    def count(bits: int) -> int:
        return RANDOM.choice([0, RANDOM.getrandbits(RANDOM.randint(1, bits - 1)) * RANDOM.choice([1, -1])])

    drawn = [f"{count(32)} months {count(32)} days {count(64)} microseconds" for _ in range(500)]
    edges = [f"{sign * 2**31 - (sign > 0)} days {-sign} months" for sign in (1, -1)]
    return ["0", "1 year -1 month", "-1 year 1 day -00:00:00.5", "-9223372036854775808 microseconds", *edges, *drawn]


def bits() -> list[str]:
    return ["", "0", "1", *("".join(RANDOM.choices("01", k=RANDOM.randint(0, 70))) for _ in range(200))]


def snapshots() -> list[str]:
    return ["10:20:10,14,15", "1:1:", f"1:{2**63 - 1}:1,2", "100:200:" + ",".join(map(str, range(100, 200)))]


def interval_text(value: Any) -> str:
    return render(PostgresType(1186), value)


def doubles(count: int) -> list[str]:
    """`count` doubles of all magnitudes, some of which have shortest digits that are hard to find."""
    kinds: list[Callable[[], float]] = [
        lambda: struct.unpack(">d", RANDOM.randbytes(8))[0],
        lambda: float(RANDOM.getrandbits(RANDOM.randint(1, 70))),
        lambda: 2.0 ** RANDOM.randint(-1074, 1023),
        lambda: RANDOM.getrandbits(40) / 10 ** RANDOM.randint(0, 12),
        lambda: RANDOM.choice([0.0, -0.0, float("nan"), float("inf"), -float("inf"), 5e-324, 1e15, 1e-5, 0.0001]),
    ]
    return [repr(RANDOM.choice(kinds)()) for _ in range(count)]


def shapes(pattern: str, rows: int = 300) -> list[str]:
    """Literals: each `v` of the pattern is a double."""
    return [pattern.replace("v", "{}").format(*doubles(pattern.count("v"))) for _ in range(rows)]


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
    *((name, unsigned(32), plain) for name in ("oid", "xid", "cid")),
    ("xid8", unsigned(64), plain),
    ("tid", ["(0,0)", "(4294967295,65535)", "(12,3)"], plain),
    ("pg_lsn", ["0/0", "FFFFFFFF/FFFFFFFF", "16/B374D848", "0/1", "1/0"], plain),
    ("pg_snapshot", snapshots(), plain),
    ("txid_snapshot", snapshots(), plain),
    ("bit varying", bits(), plain),
    ("bit(9)", ["101010101", "000000000", "111111111"], plain),
    ("inet", [*addresses(), *masked(host=True)], plain),
    ("cidr", masked(host=False), plain),
    ("macaddr", ["00:00:00:00:00:00", "ff:ff:ff:ff:ff:ff", "08:00:2b:01:02:03"], plain),
    ("macaddr8", ["00:00:00:00:00:00:00:00", "08:00:2b:01:02:03:04:ff"], plain),
    ("time", clocks(), plain),
    ("time(0)", clocks(), plain),
    ("timetz", zoned(), plain),
    ("interval", intervals(), interval_text),
    ("interval day to second(3)", intervals()[:3], interval_text),
    ("numeric", wide_numerics(), plain),
    ("numeric(1000,500)", [v for v in wide_numerics() if len(v) < 400 and "I" not in v], plain),
    ("numeric(3,-2)", ["12345", "-99900", "0", "49", "NaN"], plain),
    ("numeric(2,4)", ["0.0012", "-0.0099", "0"], plain),
    ("point", shapes("(v,v)", 3000), plain),
    ("lseg", shapes("[(v,v),(v,v)]"), plain),
    ("box", shapes("(v,v),(v,v)"), plain),
    ("path", [*shapes("[(v,v),(v,v),(v,v)]"), *shapes("((v,v),(v,v))"), *shapes("[(v,v)]")], plain),
    ("polygon", [*shapes("((v,v),(v,v),(v,v))"), *shapes("((v,v))")], plain),
    ("circle", [v for v in shapes("<(v,v),1>") if "nan" not in v], plain),
    ("line", ["{1,2,3}", "{1e-7,-0.5,1e300}", "{-1,0,1e15}"], plain),
    ("jsonpath", ["$.a[*] ? (@.b > 1)", "strict $", '$."x y"'], plain),
    ("refcursor", strings(), plain),
    ("oidvector", ["", "1", "1 4294967295 0"], lambda v: " ".join(map(str, v))),
    ("int2vector", ["", "1", "-32768 32767 0"], lambda v: " ".join(map(str, v))),
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


SERVER_PRINTS = [
    ("money", ["1234.56", "-0.01", "-92233720368547758.08"]),
    ("regclass", ["pg_class"]),
    ("regtype", ["integer", "double precision[]"]),
    ("regproc", ["now"]),
    ("regprocedure", ["abs(integer)"]),
    ("regoper", ["||/"]),
    ("regoperator", ["+(integer,integer)"]),
    ("regrole", ["postgres"]),
    ("regnamespace", ["pg_catalog"]),
    ("regconfig", ["english"]),
    ("regdictionary", ["simple"]),
    ("regcollation", ['"C"']),
    ("tsvector", ["a:1A fat:2 'q''uote'", ""]),
    ("tsquery", ["a & !b | 'c d':*", ""]),
]


@pytest.mark.parametrize(("sql_type", "values"), SERVER_PRINTS)
def test_types_that_only_the_server_can_print(connection: Connection, sql_type: str, values: list[str]) -> None:
    oid, typmod, printed = fetch(connection, sql_type, [None, *values], binary=False)
    assert codec_for(PostgresType(oid, typmod)).wants_text
    found = decoded(oid, typmod, printed, binary=False).to_pylist()
    assert [None if v is None else v.encode() for v in found] == printed
    _, _, sent = fetch(connection, sql_type, [None, *values], binary=True)
    with pytest.raises(BadValueError, match="binary 'false'"):
        decoded(oid, typmod, sent, binary=True)


def test_aclitem_has_only_a_text_form(connection: Connection) -> None:
    oid, typmod, printed = fetch(connection, "aclitem", ["postgres=arw/postgres"], binary=False)
    assert decoded(oid, typmod, printed, binary=False).to_pylist() == ["postgres=arw/postgres"]
    assert codec_for(PostgresType(oid, typmod)).wants_text


MOMENTS = [
    *("infinity", "-infinity", "4714-11-24 BC", "0044-03-15 BC", "0001-12-31 BC", "0001-01-01", "1969-12-31"),
    *(
        "1999-12-31 23:59:59.999999",
        "2000-02-29 00:00:00.5",
        "9999-12-31",
        "10000-01-01",
        "294276-12-31 23:59:59.999999",
    ),
    *(f"{RANDOM.randint(1, 4713):04}-{RANDOM.randint(1, 12):02}-{RANDOM.randint(1, 28):02} BC" for _ in range(50)),
    *(f"{RANDOM.randint(1, 294275)}-{RANDOM.randint(1, 12):02}-{RANDOM.randint(1, 28):02} 1:2:3.07" for _ in range(50)),
]
STORED_AS_TEXT = [
    *((sql_type, MOMENTS) for sql_type in ("date", "timestamp", "timestamptz")),
    ("date", ["5874897-12-31"]),
    ("numeric(6,2)", ["NaN", "0", "-1.5", "9999.99"]),
    *((sql_type, values) for sql_type, values, _ in CASES),
]


@pytest.mark.parametrize(("sql_type", "values"), STORED_AS_TEXT, ids=[case[0] for case in STORED_AS_TEXT])
def test_columns_stored_as_text_are_what_postgres_prints(
    connection: Connection, sql_type: str, values: list[str]
) -> None:
    """The binary form is printed as Postgres does, or the codec asks for text."""
    oid, typmod, printed = fetch(connection, sql_type, [None, *values], binary=False)
    codec = text_codec_for(PostgresType(oid, typmod))
    assert codec.arrow == pa.string()
    asked = codec.wants_text
    _, _, cells = fetch(connection, sql_type, [None, *values], binary=not asked)
    found = (codec.text if asked else codec.binary)(*column_of(cells)).to_pylist()
    assert [None if v is None else v.encode() for v in found] == printed
    if sql_type.startswith(("date", "timestamp", "numeric")):
        assert not asked, "one such column must not turn the whole stream into text"


@pytest.mark.any_version("the bytes are not those of a server")
@pytest.mark.parametrize("oid", [1082, 1114, 1184])
def test_moments_that_postgres_does_not_have_are_rejected(oid: int) -> None:
    width, codec = (4 if oid == 1082 else 8), text_codec_for(PostgresType(oid))
    before = -2_451_546 * (1 if oid == 1082 else 86_400_000_000)
    for wire in (b"", bytes(width - 1), bytes(width + 1), before.to_bytes(width, "big", signed=True)):
        with pytest.raises(BadValueError, match="malformed date or timestamp"):
            codec.binary(*column_of([None, wire]))


def mutated(cell: bytes) -> bytes:
    """A cell with a few bytes changed, removed or doubled, or with its end cut off."""
    wire = bytearray(cell)
    for _ in range(RANDOM.randint(1, 3)):
        at = RANDOM.randrange(len(wire) + 1)
        match RANDOM.randrange(5):
            case 0:
                del wire[at:]
            case 1:
                del wire[at : at + 1]
            case 2:
                wire[at:at] = wire[at : at + 4]
            case _:
                wire[at : at + 1] = bytes([RANDOM.choice([0, 1, 255, 34, 44, 92, 123, 125, RANDOM.randrange(256)])])
    return bytes(wire)


@pytest.mark.any_version("the bytes are not those of a server")
@pytest.mark.parametrize(("sql_type", "values", "render"), CASES, ids=[case[0] for case in CASES])
def test_mutated_values_decode_or_are_rejected(
    connection: Connection, sql_type: str, values: list[str], render: Render
) -> None:
    literals = [v for v in RANDOM.sample(values, min(len(values), 40)) if len(v) < 1000]
    for binary in (False, True):
        oid, typmod, cells = fetch(connection, sql_type, literals, binary)
        for cell in cells * 3:
            try:
                decoded(oid, typmod, [None, mutated(cell or b"")], binary).validate()
            except BadValueError as bad:
                assert bad.row == 1


REJECTED = [
    ("interval", ["infinity", "-infinity"], "infinite"),
    ("date", ["infinity", "-infinity"], "infinity"),
    ("timestamp", ["infinity", "-infinity"], "infinity"),
    ("timestamptz", ["infinity", "-infinity"], "infinity"),
    ("date", ["0001-12-31 BC", "4713-01-01 BC", "10000-01-01", "5874897-12-31"], "0001 to 9999"),
    ("timestamp", ["0001-12-31 23:59:59.5 BC", "4713-01-01 BC", "10000-01-01", "294276-12-31"], "0001 to 9999"),
    ("timestamptz", ["0001-12-31 23:59:59.5+00 BC", "10000-01-01+00", "294276-12-31+00"], "0001 to 9999"),
    ("numeric(10,2)", ["NaN"], "NaN or infinity"),
]


@pytest.mark.parametrize(("sql_type", "values", "reason"), REJECTED)
@pytest.mark.parametrize("binary", [False, True])
def test_values_that_arrow_cannot_hold(
    connection: Connection, sql_type: str, values: list[str], reason: str, binary: bool
) -> None:
    for value in values:
        oid, typmod, cells = fetch(connection, sql_type, [None, value], binary)
        with pytest.raises(BadValueError, match=f"{reason}.*`text columns`") as caught:
            decoded(oid, typmod, cells, binary)
        assert caught.value.row == 1


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity", "1.005", "1e50", "1e-50", "-1e30000"])
@pytest.mark.parametrize("binary", [False, True])
def test_numerics_that_do_not_fit(connection: Connection, value: str, binary: bool) -> None:
    """As after an ALTER TYPE: the values come from a wider type."""
    _, _, cells = fetch(connection, "numeric", [value], binary)
    with pytest.raises(BadValueError, match="text columns"):
        decoded(1700, ((10 << 16) | 2) + 4, cells, binary)


def test_escaped_bytea_is_rejected(connection: Connection) -> None:
    connection.execute("SET bytea_output = 'escape'")
    oid, typmod, cells = fetch(connection, "bytea", ["\\x006162"], binary=False)
    with pytest.raises(BadValueError, match="bytea_output"):
        decoded(oid, typmod, cells, binary=False)
