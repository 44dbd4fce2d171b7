"""Enums, domains, arrays, ranges, composites and extensions' types against a real server.

Values are drawn, Postgres casts those that it accepts, and its text and binary output are decoded. Both must give the
same value, which prints exactly as Postgres printed it; or both are rejected, with a hint.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from random import Random
from typing import Any

import numpy as np
import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.sources.postgres.types.rendering import render

from penstock.sources.postgres.captured_table import CapturedColumn, CapturedTable
from penstock.sources.postgres.preflight.introspect import find_tables
from penstock.sources.postgres.preflight.selection import ChosenTable
from penstock.sources.postgres.types import BadValueError, PostgresType, TypeKind, codec_for, find_types
from penstock.sources.postgres.types.rescue import decode_and_rescue
from penstock.sources.postgres.types.text_printers import printer_for

Connection = psycopg.Connection[Any]
Cells = list[bytes | None]

SETUP = r"""
SET TimeZone = 'UTC'; SET DateStyle = 'ISO'; SET IntervalStyle = 'iso_8601';
SET extra_float_digits = 3; SET bytea_output = 'hex'; SET client_encoding = 'UTF8';
CREATE EXTENSION hstore; CREATE EXTENSION citext;
CREATE TYPE mood AS ENUM ('ok', 'so so', 'a,b', '"', '\', '{}', '(', 'é', 'null');
CREATE DOMAIN price AS numeric(10, 2);
CREATE DOMAIN dear AS price CHECK (VALUE > 5);
CREATE DOMAIN words AS text[];
CREATE DOMAIN prices AS price[];
CREATE DOMAIN frame AS box;
CREATE TYPE textrange AS RANGE (subtype = text, collation = "C", multirange_type_name = textmultirange);
CREATE TYPE floatrange AS RANGE (subtype = float8, multirange_type_name = floatmultirange);
CREATE TYPE dearrange AS RANGE (subtype = interval);
CREATE TYPE pair AS (a integer, b text);
CREATE TYPE single AS (x text);
CREATE TYPE tree AS (
    id bigint, gone integer, pairs pair[], lone single, period tsrange, periods datemultirange, moods mood[],
    price dear, labels words, extra hstore, wait interval, amount numeric,
    "Name" citext, raw bytea, fixed numeric(6, 1)[]);
ALTER TYPE tree DROP ATTRIBUTE gone;
CREATE DOMAIN wood AS tree;
CREATE TYPE shape AS (centre point, outline box[], cost money, what regclass);
"""


VALID = """
CREATE FUNCTION pg_input_is_valid(value text, kind text) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    EXECUTE format('SELECT %L::%s', value, kind);
    RETURN true;
EXCEPTION WHEN others THEN
    RETURN false;
END $$
"""
"""Postgres has this function since version 16."""


@pytest.fixture(scope="module")
def connection(postgres_server: Any) -> Iterator[Connection]:
    postgres_server.create_database("made_of_others")
    with psycopg.connect(postgres_server.url_for("made_of_others"), autocommit=True) as connected:
        connected.execute(SETUP)
        if connected.info.server_version < 160_000:
            connected.execute(VALID)
        yield connected
    postgres_server.execute("DROP DATABASE made_of_others WITH (FORCE)")


def described(connection: Connection, sql_type: str) -> PostgresType:
    connection.execute("DROP TABLE IF EXISTS probe")
    connection.execute(f"CREATE TABLE probe (v {sql_type})".encode())
    query = "SELECT atttypid::bigint, atttypmod FROM pg_attribute WHERE attrelid = 'probe'::regclass AND attnum = 1"
    wanted = connection.execute(query).fetchone()
    assert wanted is not None
    return find_types(connection, [wanted])[wanted]


def fetch(connection: Connection, sql_type: str, literals: list[str | None]) -> tuple[Cells, Cells]:
    """The text and the binary form of the literals that Postgres accepts for this type."""
    query = (
        f"SELECT v::{sql_type} FROM unnest(%s::text[]) WITH ORDINALITY AS t(v, i)"
        f" WHERE v IS NULL OR pg_input_is_valid(v, %s) ORDER BY i"
    )
    forms = []
    for binary in (False, True):
        with connection.cursor(binary=binary) as cursor:
            cursor.execute(query.encode(), [literals, sql_type])
            result = cursor.pgresult
            assert result is not None
            cells = [result.get_value(row, 0) for row in range(result.ntuples)]
            forms.append([None if cell is None else bytes(cell) for cell in cells])
    return forms[0], forms[1]


def decoded(kind: PostgresType, cells: Cells, binary: bool, check: bool = True) -> Any:
    wire = np.frombuffer(b"".join(cell or b"" for cell in cells), np.uint8)
    length = np.array([-1 if cell is None else len(cell) for cell in cells], np.int32)
    off = (np.cumsum(np.maximum(length, 0)) - np.maximum(length, 0)).astype(np.int32)
    codec = codec_for(kind)
    array = (codec.binary if binary else codec.text)(wire, off, length)
    array.validate(full=check)
    assert array.type == codec.arrow
    return array.to_pylist() if check else []


def outcome(kind: PostgresType, cell: bytes | None, binary: bool) -> tuple[Any, str | None]:
    """The result for one cell: its value, or the reason for its rejection."""
    try:
        return decoded(kind, [cell], binary)[0], None
    except BadValueError as bad:
        assert bad.row == 0
        assert "`text columns`" in bad.reason
        return None, bad.reason


def check(kind: PostgresType, cells: Cells, printed: Cells, binary: bool) -> list[str]:
    """Compare one form of some values with the output of Postgres; repr distinguishes NaN and -0."""
    outcomes = [outcome(kind, cell, binary) for cell in cells]
    for (value, reason), text in zip(outcomes, printed, strict=True):
        if reason is None:
            assert (None if value is None else render(kind, value).encode()) == text
    bad = next((n for n, (_, reason) in enumerate(outcomes) if reason), None)
    try:
        together = decoded(kind, cells, binary)
    except BadValueError as rejected:
        assert (rejected.row, rejected.reason) == (bad, outcomes[rejected.row][1])
    else:
        assert bad is None
        assert repr(together) == repr([value for value, _ in outcomes])
    return [repr(each) for each in outcomes]


# -- strategies --------------------------------------------------------------------------------------------------------


def mostly(common: Any, rare: list[str]) -> Any:
    return st.integers(0, 9).flatmap(lambda n: common if n else st.sampled_from(rare))


every_character = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=8)
awkward = st.text(st.sampled_from("\"\\{}()[],; =>\tNULLnul\n'é€😀a"), max_size=8)
texts = st.one_of(every_character, awkward, st.sampled_from(["", "NULL", "null", "empty", "infinity"]))
edges = [0, 1, -1, 2**15 - 1, -(2**15), 2**31 - 1, -(2**31), 2**63 - 1, -(2**63)]
integers = st.one_of(st.integers(-100, 100), st.sampled_from(edges)).map(str)
amounts = st.integers(-(10**9), 10**9).map(lambda v: f"{v / 100:.2f}")
strange = ["NaN", "Infinity", "-Infinity", "0", "-0.000", "1e50", "1e-50", "9" * 40, "0." + "0" * 30 + "1"]
numerics = mostly(amounts, strange)
days = st.sampled_from(["2026-11-15", "0001-01-01", "9999-12-31", "1970-01-01"])
dates = mostly(days, ["infinity", "-infinity", "0044-03-15 BC", "10000-01-01"])
clocks = st.sampled_from(["00:00:00", "23:59:59.999999", "12:30:00.5", "24:00:00"])
moments = mostly(st.tuples(days, clocks).map(" ".join), ["infinity", "-infinity", "0044-03-15 BC", "294276-12-31"])
counts = st.one_of(st.integers(-15, 15), st.sampled_from([2**31 - 1, -(2**31), 0]))
micros = st.one_of(st.integers(-(10**11), 10**11), st.sampled_from([2**63 - 1, -(2**63), 0, 1, -1, 999_999]))
intervals = mostly(
    st.builds(lambda m, d, u: f"{m} months {d} days {u} microseconds", counts, counts, micros),
    ["infinity", "-infinity", "1 year -2 months +3 days -04:05:06.789", "0"],
)
floats = st.one_of(
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.sampled_from(["NaN", "Infinity", "-Infinity", "-0", "0.1", "1e15", "1e-5", "123456789012345"]),
)
hstores = st.dictionaries(texts, st.none() | texts, max_size=4).map(
    lambda v: render(PostgresType(0, name="hstore"), list(v.items()))
)
scalars: dict[str, Any] = {
    "bool": st.sampled_from(["t", "f"]),
    "int2": integers,
    "int4": integers,
    "int8": integers,
    "text": texts,
    "citext": texts,
    "bytea": st.binary(max_size=5).map(lambda v: "\\x" + v.hex()),
    "numeric": numerics,
    "date": dates,
    "timestamp": moments,
    "timestamptz": moments,
    "interval": intervals,
    "time": st.sampled_from(["00:00:00", "24:00:00", "12:34:56.789", "00:00:00.000001"]),
    "float4": floats,
    "float8": floats,
    "hstore": hstores,
    "uuid": st.uuids().map(str),
    "inet": st.ip_addresses().map(str),
    "varbit": st.text("01", max_size=20),
    "jsonb": st.sampled_from(['{"a": [1, "x"]}', "[]", '"\\"q\\""', "null", "1.50"]),
    "oid": st.integers(0, 2**32 - 1).map(str),
    "int2vector": st.lists(st.integers(-9, 9), max_size=4).map(lambda v: " ".join(map(str, v))),
    "point": st.just("(1.5,-0)"),
    "box": st.sampled_from(["(1,2),(0,0)", "((1e300,2.5),(0,-1))"]),
    "money": st.sampled_from(["$1,000.50", "-5"]),
    "regclass": st.sampled_from(["pg_class", '"odd ""name"']),
}


def literals(kind: PostgresType) -> Any:
    """Draw literals of a type: each part is drawn as text, and the renderer quotes it."""
    return values(kind).map(lambda v: render(as_text(kind), v))


def as_text(kind: PostgresType) -> PostgresType:
    """The same type, with its scalars as text."""
    if kind.kind in (TypeKind.BASE, TypeKind.ENUM):
        return PostgresType(603 if kind.oid == 603 else 25)
    of = as_text(kind.of) if kind.of else None
    return PostgresType(kind.oid, -1, "", kind.kind, of, tuple((name, as_text(part)) for name, part in kind.fields))


def values(kind: PostgresType) -> Any:
    if kind.kind is TypeKind.ENUM:
        return st.sampled_from(["ok", "so so", "a,b", '"', "\\", "{}", "(", "é", "null"])
    if kind.kind is TypeKind.BASE:
        return scalars[kind.name]
    if kind.kind is TypeKind.COMPOSITE:
        return st.fixed_dictionaries({name: st.none() | values(part) for name, part in kind.fields})
    assert kind.of is not None
    part = values(kind.of)
    if kind.kind is TypeKind.ARRAY:
        return st.lists(st.none() | part, max_size=4)
    if kind.kind is TypeKind.MULTIRANGE:
        return st.lists(part, max_size=3)
    if kind.kind is TypeKind.DOMAIN:
        return part
    bound = st.none() | part
    flag = st.booleans()
    return st.fixed_dictionaries(
        {
            "lower": bound,
            "upper": bound,
            "lower_inclusive": flag,
            "upper_inclusive": flag,
            "empty": st.sampled_from([False] * 5 + [True]),
        }
    ).filter(lambda v: v["empty"] or not (v["lower"] is None and v["lower_inclusive"]))


NAMES = [
    "mood", "dear", "words", "prices", "pair", "single", "tree", "wood", "shape", "citext", "hstore",
    "bool[]", "int2[]", "int4[]", "int8[]", "text[]", "citext[]", "bytea[]", "numeric[]", "numeric(6,2)[]", "date[]",
    "timestamp[]", "timestamptz[]", "interval[]", "time[]", "float4[]", "float8[]", "hstore[]", "uuid[]", "inet[]",
    "varbit[]", "jsonb[]", "oid[]", "int2vector", "int2vector[]", "box[]", "frame[]", "money[]", "mood[]", "dear[]",
    "words[]", "pair[]", "tree[]", "tsrange[]", "int4multirange[]",
    "int4range", "int8range", "numrange", "tsrange", "tstzrange", "daterange", "textrange", "floatrange", "dearrange",
    "int4multirange", "int8multirange", "nummultirange", "tsmultirange", "tstzmultirange", "datemultirange",
    "textmultirange", "floatmultirange",
]  # fmt: skip


EXAMPLES = pytest.mark.parametrize("examples", [6, pytest.param(25, marks=pytest.mark.deep)])
"""How many lists of values are drawn for each type."""


@EXAMPLES
@pytest.mark.parametrize("sql_type", NAMES)
def test_both_forms_are_what_postgres_prints(connection: Connection, sql_type: str, examples: int) -> None:
    kind = described(connection, sql_type)
    accepted = 0

    @settings(max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck), database=None)
    @given(st.lists(st.none() | literals(kind), min_size=4, max_size=12))
    def check_property(drawn: list[str | None]) -> None:
        nonlocal accepted
        printed, sent = fetch(connection, sql_type, drawn)
        accepted += len(printed) - printed.count(None)
        outcomes = check(kind, printed, printed, binary=False)
        if not codec_for(kind).wants_text:
            assert check(kind, sent, printed, binary=True) == outcomes

    check_property()
    assert accepted


def columns(cells: Cells) -> tuple[Any, Any, Any]:
    """The cells as the values of a column."""
    wire = np.frombuffer(b"".join(cell or b"" for cell in cells), np.uint8)
    length = np.array([-1 if cell is None else len(cell) for cell in cells], np.int32)
    return wire, (np.cumsum(np.maximum(length, 0)) - np.maximum(length, 0)).astype(np.int32), length


def check_rescued(kind: PostgresType, printed: Cells, sent: Cells) -> int:
    """Compare the texts of values that cannot be represented with the output of Postgres; return their number."""
    codec, results = codec_for(kind), []
    for cells, is_text in ((printed, True), (sent, False)):
        if codec.wants_text and not is_text:
            continue
        array, rescued = decode_and_rescue("v", kind, codec, *columns(cells), is_text=is_text)
        array.validate(full=True)
        texts = {} if rescued is None else dict(zip(rescued.rows.tolist(), rescued.texts.to_pylist(), strict=True))
        for n, (cell, value) in enumerate(zip(printed, array.to_pylist(), strict=True)):
            assert (n in texts) == (outcome(kind, cells[n], not is_text)[1] is not None)
            expected = None if cell is None else cell.decode()
            if n in texts:
                assert (value, texts[n]) == (None, expected)
            else:
                assert (None if value is None else render(kind, value)) == expected
        results.append(texts)
    assert all(texts == results[0] for texts in results)
    print_all = printer_for(kind)
    if not codec.wants_text:
        assert print_all is not None
        assert print_all(*columns(sent)).to_pylist() == [None if cell is None else cell.decode() for cell in printed]
    return len(results[0])


@EXAMPLES
@pytest.mark.parametrize("sql_type", [*NAMES, *(name for name in scalars if name not in ("money", "regclass"))])
def test_rescued_texts_are_what_postgres_prints(connection: Connection, sql_type: str, examples: int) -> None:
    kind = described(connection, sql_type)

    @settings(max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck), database=None)
    @given(st.lists(st.none() | literals(kind), min_size=4, max_size=12))
    def check_property(drawn: list[str | None]) -> None:
        check_rescued(kind, *fetch(connection, sql_type, drawn))

    check_property()


UNREPRESENTABLE = {
    "date": ["infinity", "-infinity", "0044-03-15 BC", "4714-11-24 BC", "10000-01-01", "5874897-12-31"],
    "timestamp": ["infinity", "-infinity", "0001-12-31 23:59:59.5 BC", "294276-12-31 23:59:59.999999", "4714-11-24 BC"],
    "timestamptz": ["infinity", "-infinity", "0044-03-15 12:00:00+01 BC", "294276-12-31 23:59:59.999999+00"],
    "numeric(9,2)": ["NaN"],
    "int4[]": ["{{1,2},{3,4}}", "[0:1]={1,2}", "[2:2]={NULL}", "{{{1}}}", "[-1:0][2:3]={{1,2},{3,4}}"],
    "text[]": ['{{a,"b c"},{NULL,"NULL"}}', '[5:6]={"",nUll}', '{{"\\"",\\\\},{"{}",é}}'],
    "box[]": ["{{(1,1),(0,0)};{(2,2),(1,1)}}"],
    "date[]": ["{infinity,2026-01-01,NULL}", "{{-infinity},{2026-01-01}}", "[0:0]={2026-01-01}"],
    "numeric(6,2)[]": ["{1.50,NaN}"],
    "bytea[]": ['{{"\\\\x00ff"},{NULL}}'],
    "float4[]": [
        "{{1e6,1e-5},{0.1,16777216}}",
        "{{3.4028235e38,1e-45},{NaN,-Infinity}}",
        "{{1.1754944e-38,-0},{999999,1e5}}",
    ],
    "float8[]": ["{{1e15,1e-5},{0.1,5e-324}}"],
    "bool[]": ["{{t,f},{NULL,t}}"],
    "daterange": ["[2026-01-01,infinity)", "(-infinity,2026-01-01)", "[0044-03-15 BC,)"],
    "tsrange": ['["2026-01-01 00:00:00",infinity]', '["0044-03-15 00:00:00 BC",]'],
    "datemultirange": ["{[2026-01-01,2026-02-01),[2026-03-01,infinity)}"],
    "tree": ['(1,,,"[-infinity,infinity)","{(,infinity)}",,,,,,,,,)'],
    "wood[]": ['{"(7,,,\\"[\\\\\\"2026-01-01 00:00:00\\\\\\",infinity)\\",,,,,,,,,,)"}'],
}
"""The values of the types that cannot hold all of them; intervals follow, where the server has infinite ones."""


@pytest.mark.parametrize("sql_type", [*UNREPRESENTABLE, "interval", "interval[]"])
def test_values_that_cannot_be_represented(connection: Connection, sql_type: str) -> None:
    if sql_type.startswith("interval"):
        if connection.info.server_version < 170_000:
            pytest.skip("infinite intervals are new in Postgres 17")
        literals_ = (
            ["infinity", "-infinity"] if sql_type == "interval" else ["{infinity,-infinity}", "{{1 day},{-1 h}}"]
        )
    else:
        literals_ = UNREPRESENTABLE[sql_type]
    kind = described(connection, sql_type)
    printed, sent = fetch(connection, sql_type, [None, *literals_, None])
    assert len(printed) == len(literals_) + 2, "Postgres accepts all of them"
    assert check_rescued(kind, printed, sent) == len(literals_)


@pytest.mark.any_version("the bytes are not those of a server")
@EXAMPLES
@pytest.mark.parametrize("sql_type", NAMES)
def test_mutated_values_decode_or_are_rejected(connection: Connection, sql_type: str, examples: int) -> None:
    kind = described(connection, sql_type)

    @settings(max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck), database=None)
    @given(st.lists(literals(kind), min_size=4, max_size=8), st.randoms(use_true_random=False))
    def check_property(drawn: list[str | None], random: Random) -> None:
        for binary, cells in enumerate(fetch(connection, sql_type, drawn)):
            for cell in cells * 4:
                changed = mutated(cell or b"", random)
                with contextlib.suppress(BadValueError):
                    decoded(kind, [changed], bool(binary), check=False)
                with contextlib.suppress(BadValueError):
                    form = columns([changed])
                    decode_and_rescue("v", kind, codec_for(kind), *form, is_text=not binary)
                    if binary and (print_all := printer_for(kind)) is not None:
                        print_all(*form)

    check_property()


def mutated(cell: bytes, random: Random) -> bytes:
    """A cell with a few bytes changed, removed or doubled; some of them matter to the splitting kernels."""
    wire = bytearray(cell)
    for _ in range(random.randint(1, 3)):
        at = random.randrange(len(wire) + 1)
        new = bytes([random.choice([0, 1, 2, 127, *b'",;\\{}()[]=> NULL'])])
        wire[at : at + random.randrange(3)] = random.choice([b"", new, bytes(wire[at : at + 4])])
    return bytes(wire)


ARRAYS_THAT_A_LIST_CANNOT_HOLD = [
    "{{1,2},{3,4}}",
    "[0:1]={1,2}",
    "[2:2]={NULL}",
    "{{{1}}}",
    "[-1:0][2:3]={{1,2},{3,4}}",
]


@pytest.mark.parametrize("literal", ARRAYS_THAT_A_LIST_CANNOT_HOLD)
def test_arrays_that_a_list_cannot_hold(connection: Connection, literal: str) -> None:
    for name in ("int4[]", "text[]"):
        kind = described(connection, name)
        printed, sent = fetch(connection, name, [None, "{1}", literal])
        for cells, binary in ((printed, False), (sent, True)):
            with pytest.raises(BadValueError, match=r"a list cannot hold.*`text columns`") as caught:
                decoded(kind, cells, binary)
            assert caught.value.row == 2


def test_type_that_only_the_server_can_print_is_not_rescued_from_binary(connection: Connection) -> None:
    """The text of "char" depends on the version of the server; as text, it is what the server sent."""
    connection.execute('CREATE TYPE lettered AS (letter "char", day date)')
    kind = described(connection, "lettered")
    assert printer_for(kind) is None
    printed, sent = fetch(connection, "lettered", ["(a,2026-01-01)", "(b,infinity)"])
    with pytest.raises(BadValueError, match=r"only the server can print; list the column in `text columns`") as caught:
        decode_and_rescue("v", kind, codec_for(kind), *columns(sent), is_text=False)
    assert caught.value.row == 1
    _, rescued = decode_and_rescue("v", kind, codec_for(kind), *columns(printed), is_text=True)
    assert rescued is not None
    assert rescued.texts.to_pylist() == ["(b,infinity)"]


def test_altered_composite_type(connection: Connection) -> None:
    connection.execute("CREATE TYPE moving AS (a integer, b text)")
    before = described(connection, "moving")
    for change in ("ADD ATTRIBUTE c date", "DROP ATTRIBUTE a"):
        connection.execute("DROP TABLE probe")
        connection.execute(f"ALTER TYPE moving {change}".encode())
        cells = fetch(connection, "moving", ["(1,x,2026-01-01)", "(x,2026-01-01)"])
        after = described(connection, "moving")
        for form, binary in zip(cells, (False, True), strict=True):
            assert len(decoded(after, form, binary)) == 1
            if binary or change.startswith("ADD"):
                with pytest.raises(BadValueError, match=r"changed upstream.*RETRY TABLE"):
                    decoded(before, form, binary)


def test_table_is_stored_with_its_types(connection: Connection) -> None:
    connection.execute("DROP TABLE IF EXISTS kept")
    connection.execute("CREATE TABLE kept (id int PRIMARY KEY, a int4[], r tsrange, t tree, s shape)")
    (table,) = [ChosenTable(found).captured() for found in find_tables(connection) if found.name.name == "kept"]
    again = CapturedTable.model_validate_json(table.model_dump_json())
    assert again == table
    assert [column.sent_as_text for column in table.columns] == [False, False, False, False, True]
    columns = [CapturedColumn(c.name, c.type, as_text=True) for c in table.columns]
    assert all(column.sent_as_text and str(column.codec().arrow) == "string" for column in columns)
    with pytest.raises(BadValueError, match="binary 'false'"):  # the bytes of a number must not be decoded as text
        columns[0].codec().binary(np.zeros(4, np.uint8), np.zeros(1, np.int32), np.full(1, 4, np.int32))
