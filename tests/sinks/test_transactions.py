"""ENVELOPE TRANSACTIONS: the changes of all tables in commit order, whole transactions in parts of limited size."""

from __future__ import annotations

import json
import random
from itertools import groupby
from typing import Any

import pyarrow as pa
import pytest
from tests.sinks.images import Change, images_of

from penstock.model import Image, copied_images
from penstock.sinks.changes import changes_messages
from penstock.sinks.messages import SinkMessages
from penstock.sinks.transactions import TransactionMessages, transaction_messages

TABLES = {
    "public.a": pa.schema([("id", pa.int64()), ("v", pa.string())]),
    "public.b": pa.schema([("n", pa.int32()), ("flag", pa.bool_())]),
}
LARGE = 1 << 20


def messages(table: str, changes: list[Change]) -> SinkMessages:
    columns = TABLES[table]
    return changes_messages(images_of(columns, changes), columns.names[:1], columns.names, table)


def values(found: TransactionMessages) -> list[dict[str, Any]]:
    return [json.loads(value) for value in found.values.to_pylist()]


def test_one_transaction_over_two_tables() -> None:
    first = messages(
        "public.a", [Change(16, 0, Image.INSERTED, {"id": 1, "v": '"'}), Change(16, 2, Image.TRUNCATE, None)]
    )
    second = messages("public.b", [Change(16, 1, Image.INSERTED, {"n": 2, "flag": True})])
    found = transaction_messages([first, second], LARGE)
    assert found.keys.to_pylist() == [b"0/10"]
    assert found.positions.tolist() == [16]
    head = {"position": "0/10", "xid": 16, "committed_at": "1970-01-01T00:00:00.000016Z", "snapshot": False}
    assert values(found) == [
        {
            **head,
            "part": 1,
            "last": True,
            "changes": [
                {"op": "insert", "table": "public.a", "ordinal": 0, "before": None, "after": {"id": 1, "v": '"'}},
                {"op": "insert", "table": "public.b", "ordinal": 1, "before": None, "after": {"n": 2, "flag": True}},
                {"op": "truncate", "table": "public.a", "ordinal": 2, "before": None, "after": None},
            ],
        }
    ]


@pytest.mark.parametrize("seed", range(30))
def test_parts_of_random_transactions(seed: int) -> None:
    rng = random.Random(seed)
    histories: dict[str, list[Change]] = {table: [] for table in TABLES}
    expected: list[tuple[str, int, str]] = []
    for position in sorted(rng.sample(range(1, 1 << 40), rng.randrange(8))):
        for ordinal in range(rng.choice([1, 2, 5, 60])):
            table = rng.choice(list(TABLES))
            row = {"id": ordinal, "v": "x" * rng.choice([0, 5, 900])} if table == "public.a" else {"n": 1, "flag": None}
            histories[table].append(Change(position, ordinal, Image.INSERTED, row))
            expected.append((f"{position >> 32:X}/{position & 0xFFFFFFFF:X}", ordinal, table))
    limit = rng.choice([300, 2_000, LARGE])
    found = transaction_messages([messages(table, history) for table, history in histories.items()], limit)
    assert [
        (value["position"], change["ordinal"], change["table"])
        for value in values(found)
        for change in value["changes"]
    ] == expected
    for key, parts in groupby(zip(found.keys.to_pylist(), values(found), strict=True), lambda pair: pair[0]):
        held = [value for _, value in parts]
        assert {value["position"].encode() for value in held} == {key}
        assert [value["part"] for value in held] == list(range(1, len(held) + 1))
        assert [value["last"] for value in held] == [False] * (len(held) - 1) + [True]
    for text, value in zip(found.values.to_pylist(), values(found), strict=True):
        assert len(text) <= limit or len(value["changes"]) == 1
    if limit == LARGE:
        assert len(found) == len({position for position, _, _ in expected})


def test_rows_of_the_snapshot_are_one_message() -> None:
    rows = [
        pa.RecordBatch.from_pylist([{"id": n, "v": None} for n in range(3)], schema=TABLES["public.a"]),
        pa.RecordBatch.from_pylist([{"n": 1, "flag": None}], schema=TABLES["public.b"]),
    ]
    parts = [
        changes_messages(copied_images(one, 16), [], one.schema.names, table)
        for one, table in zip(rows, TABLES, strict=True)
    ]
    [value] = values(transaction_messages(parts, LARGE))
    assert (value["snapshot"], value["xid"], value["committed_at"], value["last"]) == (True, None, None, True)
    assert [change["table"] for change in value["changes"]] == ["public.a"] * 3 + ["public.b"]


def test_no_changes() -> None:
    assert len(transaction_messages([], LARGE)) == 0
    assert len(transaction_messages([messages("public.a", [])], LARGE)) == 0
