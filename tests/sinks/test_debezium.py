"""ENVELOPE DEBEZIUM: the messages of each change, and the representation of each type."""

from __future__ import annotations

import random
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from penstock.errors import DefiniteError
from penstock.model import Image, TableName, TableSchema, copied_images, image_schema, with_not_null, with_type_name
from penstock.sinks.debezium import DebeziumTable, debezium_messages, transaction_messages, with_transactions
from penstock.sinks.debezium_types import UNAVAILABLE, debezium_type
from penstock.sinks.messages import SinkMessages

NOW = 1_800_000_000_123_456_789
COLUMNS = pa.schema(
    [
        with_not_null(with_type_name(pa.field("id", pa.int32()), "integer")),
        with_not_null(with_type_name(pa.field("n", pa.int32()), "integer")),
        with_type_name(pa.field("v", pa.string()), "text"),
    ]
)
TABLE = DebeziumTable(TableSchema(TableName("public", "orders"), COLUMNS, ("id",)), ("id",), "t", "shop", "db")
ITEMS = DebeziumTable(TableSchema(TableName("public", "items"), COLUMNS, ("id",)), ("id",), "t", "shop", "db")
Row = dict[str, Any]


def images(*changes: tuple[Image, Row | None] | tuple[Image, Row, list[int]], lsn: int = 100) -> pa.RecordBatch:
    """Images of one transaction; images of an UPDATE share its number."""
    rows, ordinal = [], -1
    for place, (kind, row, *unchanged) in enumerate(changes):
        ordinal += place == 0 or changes[place - 1][0] not in (Image.BEFORE, Image.BEFORE_KEY)
        rows.append(
            {"_lsn": lsn, "_ordinal": ordinal, "_image": kind, "_xid": 7, "_committed_at": 5_000_001, "row": row}
            | ({"_unchanged": unchanged[0]} if unchanged else {})
        )
    return pa.RecordBatch.from_pylist(rows, schema=image_schema(COLUMNS))


def row(id_: int, n: int | None = 0, v: str | None = None) -> Row:
    return {"id": id_, "n": n, "v": v}


def messages(batch: pa.RecordBatch, table: DebeziumTable = TABLE) -> list[tuple[Any, Any]]:
    """Key, and operation with old and new row; the value None for a tombstone."""
    found = debezium_messages(batch, table, NOW)
    found.values.validate(full=True)
    keys = [None] * len(found) if found.keys is None else [key["id"] for key in found.keys.to_pylist()]
    values = [value and (value["op"], value["before"], value["after"]) for value in found.values.to_pylist()]
    return list(zip(keys, values, strict=True))


def test_each_change() -> None:
    batch = images(
        (Image.COPIED, row(1, 0)),
        (Image.INSERTED, row(2, 0)),
        (Image.UPDATED, row(2, 1)),
        (Image.TRUNCATE, None),
        (Image.BEFORE, row(2, 1)),
        (Image.UPDATED, row(2, 2)),
        (Image.BEFORE, row(2, 2, "x")),
        (Image.UPDATED, row(3, 3, "x")),
        (Image.BEFORE_KEY, {"id": 3}),
        (Image.UPDATED, row(4, 4)),
        (Image.DELETED, row(4, 4)),
        (Image.DELETED_KEY, {"id": 1}),
    )
    assert messages(batch) == [
        (1, ("r", None, row(1, 0))),
        (2, ("c", None, row(2, 0))),
        (2, ("u", None, row(2, 1))),
        (2, ("u", row(2, 1), row(2, 2))),
        (2, ("d", row(2, 2, "x"), None)),
        (2, None),
        (3, ("c", None, row(3, 3, "x"))),
        (3, ("d", row(3, 0), None)),
        (3, None),
        (4, ("c", None, row(4, 4))),
        (4, ("d", row(4, 4), None)),
        (4, None),
        (1, ("d", row(1, 0), None)),
        (1, None),
    ]
    without = [pair for pair in messages(batch) if pair[1] is not None]
    assert messages(batch, DebeziumTable(TABLE.schema, ("id",), "t", "shop", "db", tombstones=False)) == without


def test_keyless_table_has_no_keys() -> None:
    table = DebeziumTable(TableSchema(TABLE.schema.table, COLUMNS, ()), (), "t", "shop", "db")
    batch = images((Image.BEFORE, row(1)), (Image.UPDATED, row(2)), (Image.DELETED, row(2)))
    assert messages(batch, table) == [(None, ("u", row(1), row(2))), (None, ("d", row(2), None)), (None, None)]


def test_source_and_times() -> None:
    found = debezium_messages(images((Image.INSERTED, row(1)), lsn=90), TABLE, NOW)
    value = found.values.to_pylist()[0]
    assert value["source"] == {
        **{"version": "3.6.1.Final", "connector": "postgresql", "name": "shop", "db": "db"},
        **{"ts_ms": 5000, "ts_us": 5_000_001, "ts_ns": 5_000_001_000, "snapshot": "false"},
        **{"schema": "public", "table": "orders", "txId": 7, "lsn": 90, "sequence": '["89","90"]'},
        **dict.fromkeys(("xmin", "origin", "origin_lsn")),
    }
    assert (value["ts_ms"], value["ts_us"], value["ts_ns"]) == (NOW // 1_000_000, NOW // 1000, NOW)
    assert value["transaction"] is None
    assert (found.positions.tolist(), found.ordinals.tolist()) == ([90], [0])


def test_rows_of_a_snapshot() -> None:
    rows = pa.RecordBatch.from_pylist([row(1), row(2)], schema=COLUMNS)
    found = debezium_messages(copied_images(rows, 80), TABLE, NOW)
    sources = [value["source"] for value in found.values.to_pylist()]
    assert [(source["snapshot"], source["sequence"], source["txId"], source["ts_ms"]) for source in sources] == [
        ("true", '[null,"80"]', None, NOW // 1_000_000)
    ] * 2
    assert found.ordinals.tolist() == [0, 0]


def test_null_in_a_required_column_makes_it_optional() -> None:
    """NOT NULL was dropped upstream; the log does not show that."""

    def is_optional(batch: pa.RecordBatch) -> bool:
        values = debezium_messages(batch, TABLE, NOW).values.type
        return bool(values.field("after").type.field("n").nullable)

    assert not is_optional(images((Image.INSERTED, row(1)), (Image.DELETED_KEY, {"id": 1})))
    assert is_optional(images((Image.INSERTED, row(1, None))))
    assert messages(images((Image.INSERTED, row(1, None)))) == [(1, ("c", None, row(1, None)))]


def test_unchanged_toast_value() -> None:
    batch = images(
        (Image.UPDATED, row(1), [2]),
        (Image.BEFORE, row(1, 0, "old")),
        (Image.UPDATED, row(1, 1), [2]),
        (Image.UPDATED, row(1, 1, "new")),
    )
    after = [value[2]["v"] for _, value in messages(batch)]
    assert after == [UNAVAILABLE, "old", "new"]


def test_no_images() -> None:
    empty = debezium_messages(images(), TABLE, NOW)
    assert len(empty) == 0
    assert with_transactions([empty, empty])[1] is empty


def test_transaction_blocks() -> None:
    one = debezium_messages(
        images((Image.INSERTED, row(1)), (Image.BEFORE_KEY, {"id": 1}), (Image.UPDATED, row(2))), TABLE, NOW
    )
    other = debezium_messages(
        pa.concat_batches([images((Image.COPIED, row(1)), lsn=50), images((Image.DELETED, row(1)), lsn=100)]),
        ITEMS,
        NOW,
    )
    assert [numbers(each) for each in with_transactions([one, other])] == [
        [(1, 1), (3, 2), None, (4, 3)],
        [None, (2, 1), None],
    ]
    block = with_transactions([one])[0].values.field("transaction")[0].as_py()
    assert block == {"id": "7:100", "total_order": 1, "data_collection_order": 1}


def test_transaction_topic() -> None:
    first = images((Image.INSERTED, row(1)), (Image.BEFORE_KEY, {"id": 1}), (Image.UPDATED, row(2)))
    one = debezium_messages(pa.concat_batches([images((Image.COPIED, row(9)), lsn=50), first]), TABLE, NOW)
    other = debezium_messages(
        pa.concat_batches([images((Image.DELETED, row(1)), lsn=100), images((Image.INSERTED, row(1)), lsn=200)]),
        ITEMS,
        NOW,
    )
    found = transaction_messages([one, other])
    found.values.validate(full=True)
    assert [tuple(value.values()) for value in found.values.to_pylist()] == [
        ("BEGIN", "7:100", None, None, 5000),
        (
            "END",
            "7:100",
            4,
            [
                {"data_collection": "public.orders", "event_count": 3},
                {"data_collection": "public.items", "event_count": 1},
            ],
            5000,
        ),
        ("BEGIN", "7:200", None, None, 5000),
        ("END", "7:200", 1, [{"data_collection": "public.items", "event_count": 1}], 5000),
    ]
    assert found.keys is not None
    assert found.keys.to_pylist() == [{"id": id_} for id_ in ("7:100", "7:100", "7:200", "7:200")]
    assert found.positions.tolist() == [100, 100, 200, 200]
    assert len(transaction_messages([debezium_messages(images(), TABLE, NOW)])) == 0


def test_transaction_of_a_table_in_several_parts() -> None:
    batch = images(*((Image.INSERTED, row(number)) for number in range(5)))
    parts = [debezium_messages(batch.slice(first, count), TABLE, NOW) for first, count in ((0, 2), (2, 0), (2, 3))]
    other = debezium_messages(images((Image.DELETED, row(1))), ITEMS, NOW)
    blocks = [numbers(each) for each in with_transactions([*parts, other])]
    assert blocks == [[(1, 1), (3, 2)], [], [(4, 3), (5, 4), (6, 5)], [(2, 1), None]]
    end = transaction_messages([*parts, other]).values.to_pylist()[1]
    assert (end["event_count"], end["data_collections"]) == (
        6,
        [
            {"data_collection": "public.orders", "event_count": 5},
            {"data_collection": "public.items", "event_count": 1},
        ],
    )


def numbers(found: SinkMessages) -> list[tuple[int, int] | None]:
    blocks = [value and value["transaction"] for value in found.values.to_pylist()]
    return [block and (block["total_order"], block["data_collection_order"]) for block in blocks]


# -- types -------------------------------------------------------------------------------------------------------------


def converted(name: str | None, values: Sequence[Any], arrow: pa.DataType) -> list[Any]:
    """Convert values, and the same as a part of a longer array; the results must agree."""
    field = pa.field("c", arrow) if name is None else with_type_name(pa.field("c", arrow), name)
    kind = debezium_type(field)
    whole = kind.convert(pa.array(values, arrow))
    whole.validate(full=True)
    assert whole.type == kind.arrow
    part = kind.convert(pa.array([values[-1], *values, values[0]], arrow).slice(1, len(values)))
    assert part.to_pylist() == whole.to_pylist()
    return list(whole.to_pylist())


def unscaled(number: bytes) -> int:
    return int.from_bytes(number, "big", signed=True)


def smallest(number: int) -> int:
    """The size of the array that Java's BigInteger.toByteArray returns."""
    return (number if number >= 0 else ~number).bit_length() // 8 + 1


@pytest.mark.parametrize("seed", range(5))
def test_numeric_without_precision(seed: int) -> None:
    rng = random.Random(seed)
    texts: list[str | None] = [
        None,
        "0",
        "0.00",
        "-1",
        "127",
        "128",
        "-128",
        "-129",
        "255",
        "256",
        "1000",
        "-0.5",
    ]
    for _ in range(300):
        digits = "".join(rng.choices("0000123456789", k=rng.choice([1, 2, 9, 18, 19, 20, 38, 77, 400])))
        at = rng.randrange(len(digits))
        texts.append(rng.choice(["", "-"]) + (digits[:at] or "0") + rng.choice(["", f".{digits[at:]}"]))
    for text, found in zip(texts, converted("numeric", texts, pa.string()), strict=True):
        if text is None:
            assert found is None
            continue
        exact = Decimal(text).as_tuple()
        number, scale = int("".join(map(str, exact.digits))) * (-1 if exact.sign else 1), -int(exact.exponent)
        while scale and number % 10 == 0:
            number, scale = number // 10, scale - 1
        scale = 0 if not number else scale
        assert (found["scale"] if number else 0, unscaled(found["value"])) == (scale, number)
        assert len(found["value"]) == smallest(number)


def test_zero_has_no_scale() -> None:
    assert converted("numeric", ["0.00", "0", "-0.0"], pa.string()) == [{"scale": 0, "value": b"\0"}] * 3


@pytest.mark.parametrize("special", ["NaN", "Infinity", "-Infinity", "", "-", "1.2.3", "1e5"])
def test_numeric_without_a_number_is_an_error(special: str) -> None:
    for name in ("numeric", "numeric(60,2)"):
        with pytest.raises(DefiniteError, match="Decimal"):
            converted(name, [special], pa.string())


def test_decimals() -> None:
    values = [Decimal("-12345678.90"), None, Decimal("0.05")]
    for name, arrow in (("numeric(10,2)", pa.decimal128(10, 2)), (None, pa.decimal128(10, 2))):
        found = converted(name, values, arrow)
        assert [each and unscaled(each) for each in found] == [-1234567890, None, 5]
    texts = ["1.10", None, "-" + "9" * 58 + ".00"]
    found = converted("numeric(60,2)", texts, pa.string())
    assert [each and unscaled(each) for each in found] == [110, None, -int("9" * 58 + "00")]
    assert [unscaled(each) for each in converted("money", ["$1,234.50", "-$0.07", "1.234,50 €"], pa.string())] == [
        123450,
        -7,
        123450,
    ]


@pytest.mark.parametrize(
    ("name", "values", "expected"),
    [
        (
            "time without time zone",
            ["00:00:00", None, "24:00:00", "03:04:05.1"],
            [0, None, 86_400_000_000, 11045100000],
        ),
        ("time(3) without time zone", ["00:00:00.001", None], [1, None]),
        ("time with time zone", ["01:00:00.5+02", None, "00:00:00-01:00:30"], ["23:00:00.5Z", None, "01:00:30Z"]),
        ("time(2) with time zone", ["01:00:10+00"], ["01:00:10Z"]),
        ("bit(1)", ["1", "0", None], [True, False, None]),
        ("bit(11)", ["00000000000", "10000000001", None], [b"", b"\x01\x04", None]),
        ("bit varying", ["", "1", "0" * 40 + "1"], [b"", b"\x01", b"\x01"]),
        ("point", ["(1e+300,-2.5)", None], [1e300, None]),
        ("jsonb", ["{}", None], ["{}", None]),
        ("public.ltree", ["a.b", None], ["a.b", None]),
        ("unknown", ["a", None], ["a", None]),
        ("integer", ["12", None], ["12", None]),
    ],
)
def test_types_that_the_log_holds_as_text(name: str, values: list[str | None], expected: list[Any]) -> None:
    found = converted(name, values, pa.string())
    assert [each["x"] if isinstance(each, dict) else each for each in found] == expected


def test_timestamps() -> None:
    values = [-1, None, 1_000_000, 1_234_567]
    local, zoned = pa.timestamp("us"), pa.timestamp("us", "UTC")
    assert converted("timestamp without time zone", values, local) == values
    assert converted("timestamp(3) without time zone", values, local) == [-1, None, 1000, 1234]
    tail = ["59.999999Z", None, "01.000000Z", "01.234567Z"]
    assert [each and each[17:] for each in converted("timestamp with time zone", values, zoned)] == tail
    assert converted("timestamp(3) with time zone", values, zoned)[3] == "1970-01-01T00:00:01.234Z"
    assert converted("timestamp(0) with time zone", [0, None], zoned) == ["1970-01-01T00:00:00Z", None]


def test_intervals_ranges_and_maps() -> None:
    interval = pa.struct([("months", pa.int32()), ("days", pa.int32()), ("microseconds", pa.int64())])
    values = [
        {"months": 12, "days": -1, "microseconds": 3_600_000_001},
        None,
        {"months": 0, "days": 0, "microseconds": -1},
    ]
    expected = [int(364.25 * 86_400_000_000) + 3_600_000_001, None, -1]
    assert converted("interval day to second(3)", values, interval) == expected
    flags = [(name, pa.bool_()) for name in ("lower_inclusive", "upper_inclusive", "empty")]
    bounds = pa.struct([("lower", pa.timestamp("us", "UTC")), ("upper", pa.timestamp("us", "UTC")), *flags])
    ranges = [
        {"lower": 0, "upper": 1_500_000, "lower_inclusive": True, "upper_inclusive": False, "empty": False},
        {"lower": None, "upper": None, "lower_inclusive": False, "upper_inclusive": False, "empty": True},
        {"lower": None, "upper": None, "lower_inclusive": False, "upper_inclusive": False, "empty": False},
        None,
    ]
    texts = ['["1970-01-01 00:00:00+00","1970-01-01 00:00:01.5+00")', "empty", "(,)", None]
    assert converted("tstzrange", ranges, bounds) == texts
    maps = [[("a", '"'), ("b", None)], [], None]
    assert converted("hstore", maps, pa.map_(pa.string(), pa.string())) == ['{"a":"\\"","b":null}', "{}", None]


def test_arrays() -> None:
    texts = pa.list_(pa.string())
    assert converted("time without time zone[]", [["00:00:01", None], None, []], texts) == [[1_000_000, None], None, []]
    assert converted("numeric[]", [["1.50"]], texts) == [[{"scale": 1, "value": b"\x0f"}]]
    assert converted("interval[]", [[1, None]], pa.list_(pa.int64())) == [[1, None]]
