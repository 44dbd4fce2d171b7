"""Logical types of Connect and Debezium: values at the limits of their columns, and values out of range."""

from __future__ import annotations

import base64
import datetime
import random
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.formats.base64_arrays import decode_base64
from penstock.formats.format import LogicalType
from penstock.formats.logical_types import convert_rows, logical_struct

DEBEZIUM, CONNECT = "io.debezium.time.", "org.apache.kafka.connect.data."
LAST = datetime.datetime.fromisoformat("9999-12-31T23:59:59.999999")
EPOCH = datetime.datetime.fromisoformat("1970-01-01")
MICROS = (LAST - EPOCH) // datetime.timedelta(microseconds=1)
MOMENT = pa.timestamp("us", "UTC")
BAD = object()


def twos_complement(number: int) -> bytes:
    """Encode a number as Java's BigInteger does."""
    return number.to_bytes(number.bit_length() // 8 + 1, "big", signed=True)


def text(number: int) -> str:
    return base64.b64encode(twos_complement(number)).decode()


def utc(moment: str) -> datetime.datetime:
    return datetime.datetime.fromisoformat(f"{moment}+00:00")


VARIABLE = pa.struct({"scale": pa.int32(), "value": pa.binary()})
CASES: list[tuple[str, pa.DataType, pa.DataType, list[tuple[Any, Any]]]] = [
    (
        f"{DEBEZIUM}Date",
        pa.int32(),
        pa.date32(),
        [(0, datetime.date(1970, 1, 1)), (2_932_896, LAST.date()), (2_932_897, BAD)],
    ),
    (f"{CONNECT}Date", pa.int32(), pa.date32(), [(-719_162, datetime.date(1, 1, 1)), (-719_163, BAD)]),
    (
        f"{DEBEZIUM}Timestamp",
        pa.int64(),
        pa.timestamp("us"),
        [(-1, EPOCH - datetime.timedelta(milliseconds=1)), (2**63 - 1, BAD), (-(2**63), BAD)],
    ),
    (
        f"{DEBEZIUM}MicroTimestamp",
        pa.int64(),
        pa.timestamp("us"),
        [(MICROS, LAST), (MICROS + 1, BAD), (9_223_372_036_825_200_000, BAD), (-9_223_372_036_832_400_000, BAD)],
    ),
    (f"{CONNECT}Timestamp", pa.int64(), MOMENT, [(1_774_749_599_123, utc("2026-03-29T01:59:59.123"))]),
    (f"{DEBEZIUM}NanoTimestamp", pa.int64(), pa.int64(), [(1, 1)]),
    (
        f"{DEBEZIUM}MicroTime",
        pa.int64(),
        pa.string(),
        [(86_400_000_000, "24:00:00"), (3_661_000_100, "01:01:01.0001"), (36_000_000_000, "10:00:00")],
    ),
    (f"{DEBEZIUM}Time", pa.int32(), pa.string(), [(0, "00:00:00"), (86_400_001, BAD), (-1, BAD)]),
    (f"{DEBEZIUM}NanoTime", pa.int64(), pa.string(), [(1, "00:00:00.000000001")]),
    (
        f"{DEBEZIUM}ZonedTimestamp",
        pa.string(),
        MOMENT,
        [
            ("2026-03-29T01:59:59.123456Z", utc("2026-03-29T01:59:59.123456")),
            ("2026-03-29T01:59:59.123456000Z", utc("2026-03-29T01:59:59.123456")),
            ("2026-03-29T01:59:59.1+02:00", utc("2026-03-28T23:59:59.1")),
            ("2024-02-29T00:00:00Z", utc("2024-02-29T00:00:00")),
            ("0001-01-01T00:00:00Z", utc("0001-01-01T00:00:00")),
            *((one, BAD) for one in ("infinity", "", "+20000-01-01T00:00:00Z", "2026-03-29T01:59:59.1234567Z")),
            *((one, BAD) for one in ("2026-02-30T00:00:00Z", "1900-02-29T00:00:00Z", "2026-13-01T00:00:00Z")),
            *((one, BAD) for one in ("2026-01-01T24:00:00Z", "2026-01-01T00:60:00Z", "2026-01-01T00:00:00+19:00")),
            *((one, BAD) for one in ("0000-01-01T00:00:00Z", "0001-01-01T00:00:00+01:00", "2026-01-01T00:00:00")),
        ],
    ),
    (
        f"{CONNECT}Decimal(38,0)",
        pa.string(),
        pa.decimal128(38, 0),
        [
            *((text(n), Decimal(n)) for n in (10**38 - 1, 1 - 10**38, 0, -1, 2**64, -(2**63))),
            *((text(n), BAD) for n in (10**38, -(10**38), 2**127 - 1, -(2**127), 2**128)),
            ("", BAD),
            ("%", BAD),
        ],
    ),
    (
        f"{CONNECT}Decimal(5,2)",
        pa.string(),
        pa.decimal128(5, 2),
        [(text(-1), Decimal("-0.01")), (text(99_999), Decimal("999.99")), (text(100_000), BAD), (text(-100_000), BAD)],
    ),
    ("base64", pa.string(), pa.binary(), [("AP8=", b"\x00\xff"), ("", b""), ("%", BAD), ("AP8", BAD), ("A===", BAD)]),
    ("io.debezium.data.Json", pa.string(), pa.string(), [('{"a": 1}', '{"a": 1}')]),
    (
        "io.debezium.data.VariableScaleDecimal",
        VARIABLE,
        pa.string(),
        [
            ((3, twos_complement(-1)), "-0.001"),
            ((0, twos_complement(2**64)), str(2**64)),
            ((20, twos_complement(10**38 - 1)), "9" * 18 + "." + "9" * 20),
            ((-2, twos_complement(7)), "700"),
            ((-2, twos_complement(0)), "0"),
            ((2, twos_complement(0)), "0.00"),
            ((2, twos_complement(-(2**63))), "-92233720368547758.08"),
            ((16_383, twos_complement(1)), "0." + "0" * 16_382 + "1"),
            ((0, twos_complement(10**38)), BAD),
            ((0, twos_complement(-(10**38))), BAD),
            ((0, twos_complement(2**128)), BAD),
            ((0, b""), BAD),
            ((2**31 - 1, twos_complement(1)), BAD),
            ((-(2**31), twos_complement(1)), BAD),
        ],
    ),
    (
        "io.debezium.data.VariableScaleDecimal",
        pa.struct({"scale": pa.int32(), "value": pa.string()}),
        pa.string(),
        [((2, text(314)), "3.14"), ((2, "?"), BAD)],
    ),
]


def decoded(
    values: list[Any], physical: pa.StructType, logical_types: list[LogicalType]
) -> tuple[list[Any], list[Any]]:
    """Convert rows without problems, and check the type."""
    rows = pa.array(values, physical)
    converted, problems = convert_rows(rows, pa.nulls(len(rows), pa.string()), logical_types)
    converted.validate(full=True)
    assert converted.type == logical_struct(physical, logical_types)
    return converted.to_pylist(), problems.to_pylist()


def as_value(value: Any, kind: pa.DataType) -> Any:
    return dict(zip(("scale", "value"), value, strict=True)) if pa.types.is_struct(kind) else value


@pytest.mark.parametrize("sliced", [False, True])
def test_values(sliced: bool) -> None:
    """All values in one batch; also in a slice of a larger batch."""
    names = [f"c{number}" for number in range(len(CASES))]
    physical = pa.struct([pa.field(name, case[1]) for name, case in zip(names, CASES, strict=True)])
    logical_types: list[LogicalType] = [((name,), case[0]) for name, case in zip(names, CASES, strict=True)]
    cases = [(n, as_value(v, case[1]), w) for n, case in zip(names, CASES, strict=True) for v, w in case[3]]
    random.Random(1).shuffle(cases)
    values = [{name: value} for name, value, _ in cases]
    rows = pa.array([*values[:7], None, *values] if sliced else values, physical)[8 if sliced else 0 :]
    converted, problems = convert_rows(rows, pa.nulls(len(rows), pa.string()), logical_types)
    converted.validate(full=True)
    assert converted.type == pa.struct([pa.field(name, case[2]) for name, case in zip(names, CASES, strict=True)])
    for (name, value, wanted), row, problem in zip(cases, converted.to_pylist(), problems.to_pylist(), strict=True):
        if wanted is BAD:
            assert row is None, (name, value)
            assert f'field "{name}": ' in problem
            assert ":" in problem.partition(f'"{name}": ')[2], "a problem ends in a hint"
        else:
            assert (row[name], problem) == (wanted, None), (name, value)


def test_arrays_and_rows_within_rows() -> None:
    physical = pa.struct({"after": pa.struct({"id": pa.int32(), "times": pa.list_(pa.int32())})})
    logical_types: list[LogicalType] = [(("after", "times", "[]"), f"{DEBEZIUM}Date"), (("gone",), f"{DEBEZIUM}Date")]
    values = [{"after": {"id": 1, "times": days}} for days in ([0, None], [1, 10**9], None, [])]
    rows, problems = decoded([*values, {"after": None}, None], physical, logical_types)
    assert rows[0]["after"] == {"id": 1, "times": [datetime.date(1970, 1, 1), None]}
    assert [row and row["after"] for row in rows[1:]] == [
        None,
        {"id": 1, "times": None},
        {"id": 1, "times": []},
        None,
        None,
    ]
    assert [problem is None for problem in problems] == [True, False, True, True, True, True]
    assert 'field "after.times[]"' in problems[1]


def test_first_problem_of_a_message_is_kept() -> None:
    physical = pa.struct({"a": pa.int32(), "b": pa.int32()})
    logical_types: list[LogicalType] = [(("b",), f"{DEBEZIUM}Date"), (("a",), f"{DEBEZIUM}Date")]
    rows = pa.array([{"a": 10**9, "b": 10**9}, {"a": 10**9, "b": 0}, None], physical)
    converted, problems = convert_rows(rows, pa.array([None, None, "cannot be decoded"]), logical_types)
    assert converted.null_count == 3
    assert [str(one)[:10] for one in problems] == ['field "a":', 'field "a":', "cannot be "]


def test_empty_and_null_rows() -> None:
    physical = pa.struct({f"c{number}": case[1] for number, case in enumerate(CASES)})
    logical_types: list[LogicalType] = [((f"c{number}",), case[0]) for number, case in enumerate(CASES)]
    assert decoded([], physical, logical_types) == ([], [])
    assert decoded([None, {}], physical, logical_types)[1] == [None, None]


@given(st.lists(st.one_of(st.none(), st.binary(max_size=20), st.text("AQ+/=*é", max_size=12)), max_size=12))
def test_base64_matches_python(values: list[Any]) -> None:
    texts = [base64.b64encode(one).decode() if isinstance(one, bytes) else one for one in values]
    converted = decode_base64(pa.array(texts, pa.string()))
    converted.validate(full=True)
    assert converted.to_pylist() == [_python(one) for one in texts]


def _python(value: str | None) -> bytes | None:
    try:
        return None if value is None else base64.b64decode(value, validate=True)
    except ValueError:
        return None


@given(st.lists(st.integers(-(10**38) + 1, 10**38 - 1)), st.integers(0, 38))
def test_decimals_are_exact(numbers: list[int], scale: int) -> None:
    physical = pa.struct({"n": pa.string(), "v": VARIABLE})
    logical_types: list[LogicalType] = [
        (("n",), f"{CONNECT}Decimal(38,{scale})"),
        (("v",), "io.debezium.data.VariableScaleDecimal"),
    ]
    values = [{"n": text(one), "v": {"scale": scale, "value": twos_complement(one)}} for one in numbers]
    rows, problems = decoded(values, physical, logical_types)
    wanted = [Decimal(f"{one}E-{scale}") for one in numbers]
    assert problems == [None] * len(numbers)
    assert [row["n"] for row in rows] == wanted
    assert [Decimal(row["v"]) for row in rows] == wanted
    assert all("E" not in row["v"] for row in rows)
