"""Conditions of sinks select the same rows as in Postgres; those that are not supported are errors from the start."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.errors import UsageError
from penstock.model import TableName, TableSchema, with_base_type_name, with_enum_labels, with_type_name
from penstock.sinks.condition import Condition

TABLE = """
CREATE TYPE mood AS ENUM ('sad', 'ok', 'happy');
CREATE DOMAIN label AS varchar(20);
CREATE TABLE t (
  id int PRIMARY KEY, small smallint, big bigint, price numeric(10,2), wide numeric(38,0), amount numeric, ratio real,
  share double precision, status text, code char(5), kind label, mood mood, token uuid, paid boolean, day date,
  at timestamptz, noted timestamp, "Mixed Case" text, data jsonb, tags text[], other int, other_price numeric(20,4)
);
INSERT INTO t VALUES
  (1, 1, 9223372036854775807, 1.50, 1, 1.5, 0.1, 0.1, 'draft', 'EUR', 'a', 'sad',
   '6f1f9a54-7d3c-4b5e-9a63-0c8d2f6c1a2b', true, '2026-11-18', '2026-11-18 03:00:00Z', '2026-11-18 03:00:00', 'x',
   '{"a": 1}', '{a}', 1, 1.5),
  (2, -1, -9223372036854775808, -0.01, 0, 1.50000000000000000000000001, 'NaN', 'NaN', 'paid', 'EU', 'A', 'ok',
   '00000000-0000-0000-0000-000000000000', false, '1999-12-31', '2026-11-18 03:00:00.000001Z',
   '2026-11-18 03:00:00.000001', 'X', 'null', '{}', 3, -0.0100),
  (3, 0, 0, 0.00, 99999999999999999999999999999999999999, 'NaN', 'Infinity', '-Infinity', '', '', '', 'happy',
   'ffffffff-ffff-ffff-ffff-ffffffffffff', NULL, '2026-01-01', '2026-11-18 04:00:00+02', '2026-11-18 00:00:00', '',
   '[]', NULL, 3, NULL),
  (4, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
   NULL, NULL),
  (5, 5, 5, 100.00, 5, -1000000, 5, 5, E'a\\nb%c_d', 'e  é', 'Straße', 'ok', NULL, true, '2026-11-19',
   '1970-01-01 00:00:00Z', '0001-01-01 00:00:00', 'a\\b', '1', '{x,y}', NULL, 100),
  (6, 6, 6, 6, 6, 'Infinity', -0.0, 0, 'Draft', ' EUR', 'b', 'sad', NULL, false, '2026-11-18',
   '2026-11-18 03:00:00Z', '2026-11-18 03:00:00', '%', '"x"', '{NULL}', 6, 6);
"""
COLUMNS = pa.schema(
    [
        ("id", pa.int32()),
        ("small", pa.int16()),
        ("big", pa.int64()),
        ("price", pa.decimal128(10, 2)),
        ("wide", pa.decimal128(38, 0)),
        with_type_name(pa.field("amount", pa.string()), "numeric"),
        ("ratio", pa.float32()),
        ("share", pa.float64()),
        with_type_name(pa.field("status", pa.string()), "text"),
        with_type_name(pa.field("code", pa.string()), "character(5)"),
        with_base_type_name(with_type_name(pa.field("kind", pa.string()), "label"), "character varying(20)"),
        with_enum_labels(with_type_name(pa.field("mood", pa.string()), "mood"), ["sad", "ok", "happy"]),
        with_type_name(pa.field("token", pa.string()), "uuid"),
        ("paid", pa.bool_()),
        ("day", pa.date32()),
        ("at", pa.timestamp("us", "UTC")),
        ("noted", pa.timestamp("us")),
        ("Mixed Case", pa.string()),
        with_type_name(pa.field("data", pa.string()), "jsonb"),
        ("tags", pa.list_(pa.string())),
        ("other", pa.int32()),
        ("other_price", pa.decimal128(20, 4)),
    ]
)
SCHEMA = TableSchema(TableName("public", "t"), COLUMNS, ("id",))
AS_TEXT = [
    with_type_name(pa.field("names", pa.string()), "character varying(20)[]"),
    with_enum_labels(with_type_name(pa.field("moods", pa.string()), "mood[]"), ["sad", "ok", "happy"]),
    with_type_name(pa.field("moment", pa.string()), "timestamp with time zone"),
]
"""Columns that a source captures as text (option text columns)."""
CONDITIONS = [
    *(f"{column} {sign} {value}" for column in ("small", "big", "price", "wide", "amount", "ratio", "share", "id")
      for sign in ("=", "<>", "<", "<=", ">", ">=") for value in ("0", "1.5", "-0.01")),
    "ratio = 0.1", "share = 0.1", "amount > 1.50000000000000000000000001", "amount = 1.50", "amount < 1e400",
    "amount >= 1e3", "big = 9223372036854775807", "big < 9223372036854775808", "big > -99999999999999999999",
    "small > 100000", "wide = 99999999999999999999999999999999999999", "wide < 0.5", "price = 1.505", "amount = -1e6",
    "1 < id", "3 >= id", "id BETWEEN 2 AND 4", "id NOT BETWEEN 2 AND 4", "small BETWEEN -1 AND 1", "id IN (1, 3, 7)",
    "small NOT IN (1, 5)", "amount IN (1.5, -1000000)", "ratio IN (0, 5)", "id = other", "id <> other", "id < other",
    "price = other_price", "price >= other_price", "id > price", "ratio = ratio", "small < big",
    "status = 'draft'", "status <> 'draft'", "status != ''", "'paid' = status", "status IN ('draft', 'paid')",
    "status NOT IN ('draft', 'paid')", "status LIKE 'dr%'", "status NOT LIKE '%a%'", "status ILIKE 'DRAFT'",
    "status NOT ILIKE 'd%'", r"status LIKE 'a_b\%c\_d'", "status LIKE '_raft'", "status LIKE ''", "status LIKE '%'",
    r"status LIKE '\dr\aft'", "status LIKE 'a%d'", "status LIKE 'dr.ft'", "kind LIKE 'Stra_e'", "kind = 'a'",
    r""""Mixed Case" LIKE 'a\\b'""", """"Mixed Case" = 'x'""", r""""Mixed Case" LIKE '\%'""",
    "code = 'EUR'", "code = 'EUR   '", "code <> 'EU'", "code = ' EUR'", "code IN ('EU', '')", "code LIKE 'EUR'",
    "code LIKE 'EUR  '", "mood = 'ok'", "mood <> 'sad'", "mood IN ('sad', 'happy')", "mood IS NULL",
    "token = '6F1F9A54-7D3C-4B5E-9A63-0C8D2F6C1A2B'", "token > '6f1f9a54-7d3c-4b5e-9a63-0c8d2f6c1a2b'",
    "token = '{6f1f9a547d3c4b5e9a630c8d2f6c1a2b}'",
    "paid", "NOT paid", "paid = true", "paid <> true", "paid IS TRUE", "paid IS NOT TRUE", "paid IS FALSE",
    "paid IS NOT FALSE", "paid IS UNKNOWN", "paid IS NOT UNKNOWN", "paid > false", "paid IS NULL",
    "day = '2026-11-18'", "day < '2026-01-01'", "day BETWEEN '2026-01-01' AND '2026-11-18'", "day IN ('1999-12-31')",
    "at = '2026-11-18 03:00:00Z'", "at > '2026-11-18T05:00:00+02:00'", "at < '2026-11-18 03:00+00'",
    "at <= '2026-11-18 03:00:00.000001 -0000'",
    "noted = '2026-11-18'", "noted > '2026-11-18 03:00:00'", "noted < '2026-11-18 00:00:00.5'",
    "data IS NULL", "data IS NOT NULL", "tags IS NULL", "tags IS NOT NULL",
    "status IS DISTINCT FROM 'draft'", "status IS NOT DISTINCT FROM 'draft'", "id IS DISTINCT FROM other",
    "id IS NOT DISTINCT FROM other", "small IS DISTINCT FROM NULL", "data IS NOT DISTINCT FROM NULL",
    "ratio IS NOT DISTINCT FROM 5",
    "status = 'draft' OR paid AND id > 1", "(status = 'draft' OR paid) AND id > 1", "NOT status = 'draft' AND id > 1",
    "NOT (status = 'draft' AND paid)", "NOT (status = 'draft' OR paid)", "(status = 'draft') IS NULL",
    "(status = 'draft') IS NOT TRUE", "status = 'draft' IS NOT NULL", "NOT small IS NULL", "small = 1 OR small IS NULL",
    "NOT NOT paid", "(paid OR status = 'x') IS UNKNOWN", "paid AND status = 'x' OR small = 0", "STATUS = 'draft'",
    "-1 = small", "small = -(1)", "id = 1 /* one */ -- comment", "small NOTNULL", "small ISNULL",
]  # fmt: skip


@pytest.fixture
def answers(database: Any) -> Any:
    database.execute("SET standard_conforming_strings = on")
    database.execute(TABLE)
    with database.connect() as session:
        session.execute("SET TimeZone = 'UTC'")
        found = session.execute("SELECT *, amount::text AS amount, token::text AS token, data::text AS data FROM t")
        names = [column.name for column in found.description]
        rows = [dict(zip(names, row, strict=True)) for row in found.fetchall()]
        yield rows, lambda where: {row[0] for row in session.execute(f"SELECT id FROM t WHERE {where}").fetchall()}


def selected(condition: str, rows: pa.StructArray) -> set[int]:
    holds = Condition(condition, SCHEMA).holds(rows)
    return set(rows.field("id").filter(pa.array(holds)).to_pylist())


def test_conditions_select_the_rows_that_postgres_selects(answers: Any) -> None:
    given_rows, in_postgres = answers
    rows = pa.array(given_rows, pa.struct(list(COLUMNS)))
    padded = pa.concat_arrays([rows, rows]).slice(3, len(rows))  # an array that begins in the middle of its buffers
    for condition in CONDITIONS:
        expected = in_postgres(condition)
        assert selected(condition, rows) == expected, condition
        assert selected(condition, padded) == expected, condition
        assert selected(condition, rows.slice(0, 0)) == set(), condition


@given(
    st.lists(st.none() | st.decimals(allow_nan=False, allow_infinity=False) | st.just(Decimal("NaN")), max_size=8),
    st.decimals(allow_nan=False, allow_infinity=False, min_value=-(10**20), max_value=10**20),
)
@example([Decimal("0.1"), Decimal("0.10000000000000000000000001"), Decimal("-0.0")], Decimal("0.10"))
def test_numeric_without_precision_is_compared_exactly(values: list[Decimal | None], number: Decimal) -> None:
    texts = pa.array([value if value is None else format(value, "f") for value in values], pa.string())
    rows = pa.StructArray.from_arrays([texts], fields=[COLUMNS.field("amount")])
    schema = TableSchema(SCHEMA.table, pa.schema([COLUMNS.field("amount")]), ())

    def model(value: Decimal | None, *, equal: bool) -> bool:
        if value is None or value.is_nan():
            return value is not None and not equal
        return value == number if equal else value > number

    for sign, equal in (("=", True), (">", False)):
        found = Condition(f"amount {sign} {format(number, 'f')}", schema).holds(rows)
        assert found.tolist() == [model(value, equal=equal) for value in values]


@pytest.mark.parametrize(
    ("condition", "message", "hint"),
    [
        ("", 'syntax error in option "where"', "status <> 'draft'"),
        ("status = 'x' b", 'syntax error in option "where" at or near "b"', "status <> 'draft'"),
        ("status = 'x", 'syntax error in option "where"', "status <> 'draft'"),
        ("status = 'a'; id = 2", "does not support status = 'a'; id = 2", "Supported are"),
        ("statu = 'a'", 'column "statu" in option "where" does not exist', 'Did you mean "status"?'),
        ("\"STATUS\" = 'a'", 'column "STATUS" in option "where" does not exist', "status"),
        ("t.status = 'a'", "t.status is not the name of a column", "without its table"),
        ("lower(status) = 'a'", r"does not support LOWER\(status\)", "Supported are"),
        ("id + 1 = 2", r"does not support id \+ 1", "Supported are"),
        ("status::int = 2", r"does not support CAST\(status AS INT\)", "Supported are"),
        ("id IN (SELECT 1)", "does not support", "Supported are"),
        ("id IN ()", "does not support", "Supported are"),
        ("id BETWEEN SYMMETRIC 3 AND 1", "does not support", "Supported are"),
        ("status LIKE 'a' ESCAPE '!'", "does not support", "Supported are"),
        ("status ~ 'a'", "does not support", "Supported are"),
        ("day < current_date", "does not support CURRENT_DATE", "Supported are"),
        ("data ->> 'a' = '1'", "does not support", "Supported are"),
        ("id > 1 > 2", "is not a column", "Supported are"),
        ("1 = 1", "1 is not a column", "Supported are"),
        ("true", "does not support TRUE", "Supported are"),
        ("status = NULL", 'comparison of column "status" with NULL is never true', "IS NULL"),
        ("id IN (1, NULL)", 'comparison of column "id" with NULL is never true', "IS NULL"),
        ("status", 'TRUE is not a valid value for column "status"', "a string"),
        ("status = 1", '1 is not a valid value for column "status"', "a string"),
        ("id = '1'", "'1' is not a valid value for column \"id\"", "a number, such as 12.50."),
        ("amount = 'a'", "is not a valid value", "a number"),
        ("ratio = 'a'", "is not a valid value", "a number"),
        ("price = 1e100", "is not a valid value", "a number"),
        ("wide = 0.1111111111111111111111111111111111111111111", "too many digits", "76 digits"),
        ("paid = 1", "is not a valid value", "TRUE or FALSE"),
        ("token = 'a'", "is not a valid value", "a uuid"),
        ("day = '2026-02-30'", "is not a valid value", "a date"),
        ("day = '18.11.2026'", "is not a valid value", "a date"),
        ("at > '2026-11-18 03:00:00'", "is not a valid value", "a timestamp with time zone"),
        ("noted > '2026-11-18 03:00:00Z'", "is not a valid value", "a timestamp without time zone"),
        ("data = 'x'", 'column "data" has a type whose values cannot be compared', "IS NULL"),
        ("tags = tags", 'column "tags" has a type whose values cannot be compared', "IS NULL"),
        ("status < 'x'", 'order of values of column "status" depends on the database', "LIKE"),
        ("mood > 'ok'", 'order of values of column "mood" depends on the database', "LIKE"),
        ("mood LIKE 'o%'", 'column "mood" is not text', "comparison"),
        ("id LIKE '1%'", 'column "id" is not text', "comparison"),
        (r"status LIKE 'a\'", "must not end with the escape character", "backslash"),
        ("id = status", 'columns "id" and "status" have types that cannot be compared', "same type"),
        ("ratio = id", 'columns "ratio" and "id" have types that cannot be compared', "same type"),
        ("amount = amount", "numeric without precision", "with a number"),
        ("names = 'a'", 'column "names" has a type whose values cannot be compared', "IS NULL"),
        ("moods = 'ok'", 'column "moods" has a type whose values cannot be compared', "IS NULL"),
        ("moment > '2026-11-18'", 'column "moment" has a type whose values cannot be compared', "IS NULL"),
    ],
)
def test_rejected_conditions(condition: str, message: str, hint: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        Condition(condition, TableSchema(SCHEMA.table, pa.schema([*COLUMNS, *AS_TEXT]), SCHEMA.key))
    assert hint in caught.value.hint


def test_columns_of_a_condition() -> None:
    assert Condition("id > 1 AND (status = 'a' OR data IS NULL)", SCHEMA).columns == {"id", "status", "data"}
