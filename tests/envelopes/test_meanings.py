"""What numbers and bytes mean: values at the edges of their columns, and those that no column holds."""

from __future__ import annotations

import base64
import datetime
from decimal import Decimal
from typing import Any

from pyspark.sql import SparkSession

from penstock.envelopes.meanings import meant_type, with_meant

DEBEZIUM, CONNECT = "io.debezium.time.", "org.apache.kafka.connect.data."
LAST = datetime.datetime.fromisoformat("9999-12-31T23:59:59.999999")
EPOCH = datetime.datetime.fromisoformat("1970-01-01")
MICROS = (LAST - EPOCH) // datetime.timedelta(microseconds=1)
BAD = object()


def two(number: int) -> bytes:
    """Write a number as Java's BigInteger does."""
    return number.to_bytes(number.bit_length() // 8 + 1, "big", signed=True)


def text(number: int) -> str:
    return base64.b64encode(two(number)).decode()


CASES: list[tuple[str, str, str, list[tuple[Any, Any]]]] = [
    (f"{DEBEZIUM}Date", "int", "date", [(0, datetime.date(1970, 1, 1)), (2_932_896, LAST.date()), (2_932_897, BAD)]),
    (f"{CONNECT}Date", "int", "date", [(-719_162, datetime.date(1, 1, 1)), (-719_163, BAD)]),
    (f"{DEBEZIUM}Timestamp", "bigint", "timestamp_ntz", [(-1, EPOCH - datetime.timedelta(milliseconds=1))]),
    (
        f"{DEBEZIUM}MicroTimestamp",
        "bigint",
        "timestamp_ntz",
        [(MICROS, LAST), (MICROS + 1, BAD), (9_223_372_036_825_200_000, BAD), (-9_223_372_036_832_400_000, BAD)],
    ),
    (f"{DEBEZIUM}NanoTimestamp", "bigint", "bigint", [(1, 1)]),
    (f"{DEBEZIUM}MicroTime", "bigint", "string", [(86_400_000_000, "24:00:00"), (3_661_000_100, "01:01:01.0001")]),
    (f"{DEBEZIUM}Time", "int", "string", [(0, "00:00:00"), (86_400_001, BAD), (-1, BAD)]),
    (f"{DEBEZIUM}NanoTime", "bigint", "string", [(1, "00:00:00.000000001")]),
    (f"{CONNECT}Decimal(38,0)", "string", "decimal(38,0)", [(text(n), Decimal(n)) for n in (10**38 - 1, 1 - 10**38)]),
    (f"{CONNECT}Decimal(5,2)", "string", "decimal(5,2)", [(text(-1), Decimal("-0.01")), (text(100_000), BAD)]),
    ("base64", "string", "binary", [("AP8=", b"\x00\xff"), ("", b""), ("%", BAD)]),
    ("io.debezium.data.Json", "string", "string", [('{"a": 1}', '{"a": 1}')]),
    (
        "io.debezium.data.VariableScaleDecimal",
        "struct<scale:int,value:binary>",
        "string",
        [
            ((3, two(-1)), "-0.001"),
            ((0, two(2**64)), str(2**64)),
            ((20, two(10**38 - 1)), "9" * 18 + "." + "9" * 20),
            ((-2, two(7)), "700"),
            ((2, two(-(2**63))), "-92233720368547758.08"),
            ((0, two(10**38)), BAD),
            ((0, two(-(10**38))), BAD),
            ((0, two(2**128)), BAD),
            ((0, b""), BAD),
        ],
    ),
]


def test_values(spark: SparkSession) -> None:
    places = [f"c{number}" for number in range(len(CASES))]
    kind = ",".join(f"{place}:{case[1]}" for place, case in zip(places, CASES, strict=True))
    meanings = [((place,), case[0]) for place, case in zip(places, CASES, strict=True)]
    told = [(place, value, wanted) for place, case in zip(places, CASES, strict=True) for value, wanted in case[3]]
    rows = [(number, {place: value}, None) for number, (place, value, _) in enumerate(told)]
    frame = spark.createDataFrame(rows, f"number int, value struct<{kind}>, problem string")
    made = with_meant(frame, "value", meanings)
    assert made.schema["value"].dataType == meant_type(frame.schema["value"].dataType, meanings)  # type: ignore[arg-type]
    assert [field.dataType.simpleString() for field in made.schema["value"].dataType] == [case[2] for case in CASES]  # type: ignore[attr-defined]
    found = {row["number"]: row for row in made.collect()}
    for number, (place, value, wanted) in enumerate(told):
        row = found[number]
        if wanted is BAD:
            assert f'field "{place}"' in row["problem"], (place, value)
            assert ":" in row["problem"].partition(f'"{place}": ')[2], "a problem ends in what to do"
        else:
            assert (row["value"][place], row["problem"]) == (wanted, None), (place, value)


def test_moments_do_not_depend_on_the_zone_of_the_session(spark: SparkSession) -> None:
    zoned = [
        ("2026-03-29T01:59:59.123456Z", "2026-03-29 01:59:59.123456"),
        ("2026-03-29T01:59:59.1+02:00", "2026-03-28 23:59:59.1"),
        ("infinity", None),
        ("+20000-01-01T00:00:00Z", None),
        ("2026-03-29T01:59:59.1234567Z", None),
        ("2026-02-30T00:00:00Z", None),
    ]
    meanings = [
        (("z",), f"{DEBEZIUM}ZonedTimestamp"),
        (("m",), f"{CONNECT}Timestamp"),
        (("local", "[]"), f"{DEBEZIUM}Timestamp"),
    ]
    rows = [((one, 1_774_749_599_123, [0, None]), None) for one, _ in zoned]
    there = spark.newSession()
    there.conf.set("spark.sql.session.timeZone", "America/New_York")
    frame = there.createDataFrame(rows, "value struct<z:string,m:bigint,local:array<bigint>>, problem string")
    texts = with_meant(frame, "value", meanings).selectExpr(
        "to_utc_timestamp(value.z, 'America/New_York')::string",
        "to_utc_timestamp(value.m, 'America/New_York')::string",
        "value.local::string",
        "problem",
    )
    found = texts.collect()
    assert [row[0] for row in found] == [wanted for _, wanted in zoned]
    assert {row[1] for row in found} == {"2026-03-29 01:59:59.123"}
    assert {row[2] for row in found} == {"[1970-01-01 00:00:00, null]"}
    assert [row["problem"] is None for row in found] == [wanted is not None for _, wanted in zoned]


def test_items_and_rows_within_rows(spark: SparkSession) -> None:
    meanings = [(("after", "times", "[]"), f"{DEBEZIUM}Date"), (("gone",), f"{DEBEZIUM}Date")]
    rows = [({"after": {"times": days}}, None) for days in ([0, None], [10**9], None)] + [(None, None)]
    frame = spark.createDataFrame(rows, "value struct<after:struct<times:array<int>>>, problem string")
    found = with_meant(frame, "value", meanings).collect()
    assert found[0]["value"]["after"]["times"] == [datetime.date(1970, 1, 1), None]
    assert [row["problem"] is None for row in found] == [True, False, True, True]
    assert found[3]["value"] is None
