"""Option transform: the rows of changes pass through a function in real Spark, and stay a history."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from tests.sinks.images import Change, images_of
from tests.sinks.test_row_filter import COLUMNS, KEYED, history

from penstock.errors import PenstockError, UsageError
from penstock.model import Image, copied_images
from penstock.sinks.changes import changes_messages
from penstock.sinks.kafka.output import SinkSource, TableEncoder
from penstock.sinks.kafka.spec import KafkaSink
from penstock.sinks.transactions import transaction_messages
from penstock.sinks.transform import Transform
from penstock.sinks.upsert import upsert_messages

CANARY = "canary-4711"
Row = dict[str, Any]


def functions(name: str) -> str:
    return f"tests.sinks.row_functions:{name}"


@pytest.fixture
def transform(spark: SparkSession) -> Callable[..., Transform]:
    def make(name: str, columns: pa.Schema = COLUMNS) -> Transform:
        return Transform(functions(name), columns, ["id"], lambda: spark)

    return make


def random_history(*, full: bool) -> tuple[dict[int, Row], pa.RecordBatch]:
    chance, table = random.Random(4711), dict[int, Row]()

    def row() -> Row:
        return {
            "id": chance.randint(1, 9),
            "status": chance.choice(["draft", "paid", None]),
            "note": chance.choice(["a", "é", None]),
        }

    steps = [(chance.choice(["insert", "insert", "update", "update", "delete"]), row(), row()) for _ in range(400)]
    images = images_of(COLUMNS, [one for change in history(table, steps, full=full) for one in change])
    assert len(images) > 100
    return table, images


def expected(table: dict[int, Row]) -> dict[int, Row]:
    return {
        row["id"]: {"id": row["id"], "status": row["status"], "shout": row["note"] and row["note"].upper()}
        for row in table.values()
        if row["status"] not in ("draft", None)
    }


@pytest.mark.parametrize("full", [True, False])
def test_last_message_of_each_key_is_what_the_function_returns(transform: Callable[..., Transform], full: bool) -> None:
    function = transform("without_drafts")
    assert function.columns.names == ["id", "status", "shout"]
    table, images = random_history(full=full)
    messages = upsert_messages(function.images(images), ["id"], function.columns.names)
    assert messages.keys is not None
    found: dict[int, Row] = {}
    for key, value in zip(messages.keys.to_pylist(), messages.values.to_pylist(), strict=True):
        if value is None:
            found.pop(key["id"], None)
        else:
            found[key["id"]] = value
    assert found == expected(table)


def test_changes_with_whole_old_rows_are_a_history(transform: Callable[..., Transform]) -> None:
    function = transform("without_drafts")
    table, images = random_history(full=True)
    messages = changes_messages(function.images(images), ["id"], function.columns.names, "public.orders")
    found: dict[int, Row] = {}
    for change in messages.values.to_pylist():
        if change["op"] in ("update", "delete"):
            assert found.pop(change["before"]["id"]) == change["before"]
        if change["op"] != "delete":
            assert change["after"]["id"] not in found
            found[change["after"]["id"]] = change["after"]
    assert found == expected(table)


def test_images_without_rows(transform: Callable[..., Transform]) -> None:
    function = transform("without_drafts")
    changes = [Change(1, 0, Image.DELETED_KEY, {"id": 1}), Change(2, 0, Image.TRUNCATE, None)]
    found = function.images(images_of(COLUMNS, changes))
    assert found.column("_image").to_pylist() == [Image.DELETED_KEY, Image.TRUNCATE]
    assert found.column("row").to_pylist() == [{"id": 1, "status": None, "shout": None}, None]
    assert len(function.images(images_of(COLUMNS, []))) == 0
    drafts = pa.RecordBatch.from_pylist([{"id": 1, "status": "draft", "note": "a"}], COLUMNS)
    assert len(function.images(copied_images(drafts, 5))) == 0


def test_values_of_all_types_are_kept(transform: Callable[..., Transform]) -> None:
    columns = pa.schema(
        [
            pa.field("id", pa.string(), nullable=False),
            ("small", pa.int16()),
            ("price", pa.decimal128(38, 10)),
            ("ratio", pa.float32()),
            ("flag", pa.bool_()),
            ("day", pa.date32()),
            ("at", pa.timestamp("us", "UTC")),
            ("noted", pa.timestamp("us")),
            ("data", pa.binary()),
            ("tags", pa.list_(pa.string())),
            ("span", pa.struct([("lower", pa.int64()), ("empty", pa.bool_())])),
            ("pairs", pa.map_(pa.string(), pa.string())),
        ]
    )
    row = {
        "id": "ü",
        "small": -1,
        "price": Decimal("-12345678901234567890.0123456789"),
        "ratio": 0.5,
        "flag": True,
        "day": date(1, 1, 1),
        "at": datetime(2026, 11, 18, 3, 0, 0, 1, tzinfo=UTC),
        "noted": datetime.fromisoformat("9999-12-31T23:59:59.999999"),
        "data": b"\0\xff",
        "tags": ["a", None],
        "span": {"lower": None, "empty": False},
        "pairs": [("a", None)],
    }
    rows = [row, {**dict.fromkeys(row), "id": "x"}]
    function = transform("unchanged", columns)
    found = function.images(copied_images(pa.RecordBatch.from_pylist(rows, columns), 5))
    assert found.column("row").to_pylist() == rows
    assert [(field.name, field.type) for field in function.columns if not field.type.num_fields] == [
        (field.name, field.type) for field in columns if not field.type.num_fields
    ]


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("without_row_number", 'does not return column "_row_number"'),
        ("without_key", 'does not return column "id"'),
        ("with_key_as_text", 'changes the type of column "id"'),
        ("with_untyped_column", 'returns column "empty" without a type'),
        ("with_unknown_column", "failed: AnalysisException: .*nonsense"),
        ("that_returns_none", "returned NoneType, not a DataFrame"),
        ("that_raises", "failed: RuntimeError: out of order"),
    ],
)
def test_errors_before_the_first_row(transform: Callable[..., Transform], function: str, message: str) -> None:
    with pytest.raises(PenstockError, match=message) as caught:
        transform(function)
    assert functions(function) in caught.value.message
    assert caught.value.hint


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("with_another_key", 'changed key column "id"'),
        ("with_duplicates", 'returned rows whose "_row_number" is not that of one row'),
        ("with_columns_that_vary", "returned other columns than for an empty DataFrame"),
        ("that_fails_for_values", r"failed: NumberFormatException \[CAST_INVALID_INPUT\]"),
        ("that_raises_values", "failed: ValueError\n"),
    ],
)
def test_errors_for_rows_contain_no_values(transform: Callable[..., Transform], function: str, message: str) -> None:
    made = transform(function)
    with pytest.raises(PenstockError) as caught:
        made.images(images_of(COLUMNS, [Change(1, 0, Image.INSERTED, {"id": 1, "status": "a", "note": CANARY})]))
    assert caught.match(message)
    assert CANARY not in str(caught.value)
    assert caught.value.__suppress_context__


def test_reserved_name_and_missing_session() -> None:
    with pytest.raises(UsageError, match='adds column "_row_number"'):
        Transform(functions("unchanged"), COLUMNS.append(pa.field("_Row_Number", pa.int64())), ["id"], lambda: None)  # type: ignore[arg-type, return-value]
    with pytest.raises(PenstockError, match="requires Spark, and this process has no session"):
        Transform(functions("unchanged"), COLUMNS, KEYED.key, None)


def encoder(spark: SparkSession, function: str, envelope: str, **options: Any) -> TableEncoder:
    options = {"broker": "k:9092", "topic": "t", "format": "json", "envelope": envelope, **options}
    sink = KafkaSink.of("out", "shop", "orders", transform=functions(function), **options)
    return TableEncoder(sink, SinkSource("shop", "shop", lambda table: table.name), KEYED, None, lambda: spark)


def test_function_gets_rows_that_pass_with_redacted_values_and_new_names(spark: SparkSession) -> None:
    table = encoder(
        spark,
        "with_copy_of_note",
        "upsert",
        where="status = 'paid'",
        redact={"note": "fixed:gone"},
        rename_columns={"status": "state"},
    )
    rows = [{"id": number, "status": status, "note": CANARY} for number, status in ((1, "paid"), (2, "draft"))]
    images = images_of(COLUMNS, [Change(1, 0, Image.INSERTED, row) for row in rows])
    messages = table.messages(table.passing(images))
    assert messages.values.to_pylist() == [{"id": 1, "state": "paid", "note": "gone", "copy": "gone"}]


@pytest.mark.parametrize("envelope", ["upsert", "changes", "transactions"])
def test_no_row_is_left(spark: SparkSession, envelope: str) -> None:
    table = encoder(spark, "without_drafts", envelope)
    row = {"id": 1, "status": "draft", "note": "a"}
    messages = table.messages(images_of(COLUMNS, [Change(1, 0, Image.INSERTED, row)]))
    assert len(messages) == 0
    if envelope == "transactions":
        assert len(transaction_messages([messages], 1000)) == 0
    else:
        assert [len(each or ()) for each in table.encode(messages)] == [0, 0]
