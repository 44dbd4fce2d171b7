"""Net changes of a range, case by case. For random histories see `test_overlay` and `test_base`."""

from __future__ import annotations

import datetime
import decimal
import struct
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from tests.tables.model import COLUMNS, KEYED, KEYLESS, NOON, History, row

from penstock.errors import UsageError
from penstock.model import COUNT, FROM, GONE, UNCHANGED, Image, TableName, TableSchema, image_schema
from penstock.tables.contents import Contents, survey
from penstock.tables.fold import fold

Net = dict[str, dict[str, Any]]


def net(spark: SparkSession, history: History, after: int = 0, contents: Contents | None = None) -> Net:
    """Fold; return the net changes as dicts, by the second column of the key."""
    images = history.frame(spark, after)
    rows = fold(images, KEYED, contents or survey(images)).collect()
    found = {one["a.key"]: one.asDict(recursive=True) for one in rows}
    assert len(found) == len(rows)
    return found


def started(*keys: str, full: bool = False) -> tuple[History, int]:
    """Return a history with a row for each of `keys`, and the position of its base."""
    history = History(full=full)
    for key in keys:
        history.insert(row(1, key, 0, f"body {key}", key.encode()))
    return history, history.commit()


def test_last_image_of_a_key_wins(spark: SparkSession) -> None:
    history, base = started("a", "b")
    history.update(history.find(1, "a"), {"n": 1})
    history.delete(history.find(1, "b"))
    history.insert(row(1, "c", 3, None, b"c"))
    history.commit()
    history.update(history.find(1, "a"), {"n": 2, "body": "new"})
    history.commit()
    found = net(spark, history, base)
    assert found["a"] == {GONE: False, UNCHANGED: None, FROM: None, **row(1, "a", 2, "new", b"a")}
    assert found["b"] == {GONE: True, UNCHANGED: None, FROM: None, **row(1, "b", None, None, None)}  # type: ignore[arg-type]
    assert found["c"] == {GONE: False, UNCHANGED: None, FROM: None, **row(1, "c", 3, None, b"c")}


def test_deleted_rows_have_no_values(spark: SparkSession) -> None:
    history, base = started("a", full=True)
    history.delete(history.find(1, "a"))
    history.commit()
    assert net(spark, history, base)["a"]["body"] is None


def test_unsent_values_come_from_the_newest_image_that_has_them(spark: SparkSession) -> None:
    history, base = started("a", "b")
    one = history.update(history.find(1, "a"), {"body": "sent"}, [4])
    history.update(one, {"n": 5}, [0, 4])
    history.update(history.find(1, "b"), {"n": 6}, [0, 4])
    history.commit()
    found = net(spark, history, base)
    assert (found["a"]["body"], found["a"][UNCHANGED], found["a"]["n"]) == ("sent", [4], 5)
    assert (found["b"]["body"], found["b"][UNCHANGED], found["b"][FROM]) == (None, [0, 4], None)


def test_null_that_was_sent_is_a_value(spark: SparkSession) -> None:
    history, base = started("a")
    one = history.update(history.find(1, "a"), {"body": None, "big `one`": None})
    history.update(one, {"n": 5}, [0, 4])
    history.commit()
    assert net(spark, history, base)["a"][UNCHANGED] is None


@pytest.mark.parametrize("contents", [Contents(), Contents(moved=False)])
def test_values_before_a_delete_are_not_used(spark: SparkSession, contents: Contents) -> None:
    history, base = started("a")
    one = history.update(history.find(1, "a"), {"body": "old", "big `one`": b"old"})
    history.delete(one)
    history.insert(row(1, "a", 1, None, b"new"))
    history.commit()
    history.update(history.find(1, "a"), {"n": 2}, [0, 4])
    history.commit()
    found = net(spark, history, base, contents)["a"]
    assert (found["body"], found["big `one`"], found[UNCHANGED]) == (None, b"new", None)


def test_old_row_provides_unsent_values(spark: SparkSession) -> None:
    history, base = started("a", full=True)
    history.update(history.find(1, "a"), {"n": 1}, [0])
    history.commit()
    found = net(spark, history, base)["a"]
    assert (found["body"], found[UNCHANGED]) == ("body a", None)


def test_values_follow_a_changed_key(spark: SparkSession) -> None:
    history, base = started("a")
    history.update(history.find(1, "a"), {"a.key": "b"}, [0, 4])
    history.commit()
    history.update(history.find(1, "b"), {"a.key": "c", "big `one`": b"sent"}, [0])
    history.commit()
    found = net(spark, history, base)
    assert found["a"][GONE] and found["b"][GONE]
    assert found["c"][UNCHANGED] == [0]
    assert found["c"][FROM] == {"grp": 1, "a.key": "a"}
    assert found["c"]["big `one`"] == b"sent"


def test_row_that_returns_to_its_key_is_its_own_source(spark: SparkSession) -> None:
    history, base = started("a")
    one = history.update(history.find(1, "a"), {"a.key": "b"}, [0, 4])
    history.update(one, {"a.key": "a", "n": 9}, [0, 4])
    history.commit()
    found = net(spark, history, base)
    source = found["a"][FROM]
    assert (source["a.key"], found["a"][UNCHANGED], found["a"]["n"]) == ("a", [0, 4], 9)
    assert found["b"][GONE]


@pytest.mark.parametrize("full", [False, True])
def test_swapped_rows(spark: SparkSession, full: bool) -> None:
    history, base = started("a", "b", full=full)
    a, b = history.find(1, "a"), history.find(1, "b")
    a = history.update(a, {"a.key": "x"}, [0, 4])
    history.update(b, {"a.key": "a"}, [0, 4])
    history.update(a, {"a.key": "b"}, [0, 4])
    history.commit()
    found = net(spark, history, base)
    if full:
        assert (found["a"]["body"], found["b"]["body"]) == ("body b", "body a")
        assert found["a"][UNCHANGED] is None
    else:
        assert found["a"][FROM] == {"grp": 1, "a.key": "b"}
        assert found["b"][FROM] == {"grp": 1, "a.key": "a"}
    assert found["x"][GONE]


def test_previous_row_of_a_key_provides_no_value(spark: SparkSession) -> None:
    history, base = started("a", "b")
    history.delete(history.update(history.find(1, "b"), {"body": "of another row"}))
    history.update(history.find(1, "a"), {"a.key": "b"}, [0, 4])
    history.insert(row(1, "a", 5, "of yet another", b""))
    history.commit()
    found = net(spark, history, base)
    assert (found["b"]["body"], found["b"][FROM]) == (None, {"grp": 1, "a.key": "a"})
    assert found["a"]["body"] == "of yet another"


def test_long_chains_of_key_changes(spark: SparkSession) -> None:
    history, base = started("k0")
    for step in range(1, 38):
        values = {"a.key": f"k{step}", **({"body": "sent on the way"} if step == 5 else {})}
        history.update(history.find(1, f"k{step - 1}"), values, [0, 4])
        history.commit()
    found = net(spark, history, base)
    assert (found["k37"]["body"], found["k37"][UNCHANGED]) == ("sent on the way", [4])
    assert found["k37"][FROM] == {"grp": 1, "a.key": "k0"}


def test_changes_before_a_truncate_are_ignored(spark: SparkSession) -> None:
    history, base = started("a", "b")
    history.update(history.find(1, "a"), {"n": 5}, [0])
    history.truncate()
    history.insert(row(1, "b", 7))
    history.truncate()
    history.insert(row(1, "c", 8))
    history.commit()
    images = history.frame(spark, base)
    assert survey(images).truncated == (history.lsn - 8, 3)
    assert {key: one["n"] for key, one in net(spark, history, base).items()} == {"c": 8}


def test_an_empty_range(spark: SparkSession) -> None:
    history, base = started("a")
    for contents in (Contents(), Contents(unchanged=False), Contents(inserts_only=True)):
        assert net(spark, history, base, contents) == {}
    assert survey(history.frame(spark, base)) == Contents(0, True, False, False, None)


def test_inserts_only(spark: SparkSession) -> None:
    history, _ = started("a", "b")
    images = history.frame(spark)
    assert survey(images) == Contents(2, True, False, False, None)
    assert net(spark, history) == net(spark, history, contents=Contents())


def test_contents_of_two_ranges() -> None:
    first = Contents(3, True, False, False, (1, 2))
    assert first.then(Contents(4, False, True, False, None)) == Contents(7, False, True, False, (1, 2))
    assert first.then(Contents()) == Contents(None, False, True, True, (1, 2))
    assert first.then(Contents(1, True, False, False, (5, 0))).truncated == (5, 0)


def test_rows_of_a_keyless_table_are_counted(spark: SparkSession) -> None:
    history = History(full=True)
    for _ in range(3):
        history.insert(row(1, "a"))
    base = history.commit()
    history.delete(history.table[0])
    history.update(history.table[0], {"n": 4}, [0, 4])
    history.insert(row(1, "b"))
    history.insert(row(1, "b"))
    history.update(history.table[1], {})
    history.commit()
    rows = fold(history.frame(spark, base), KEYLESS).collect()
    assert {(one["a.key"], one["n"], one["body"], one[COUNT]) for one in rows} == {
        ("a", 0, "", -2),
        ("a", 4, "", 1),
        ("b", 0, "", 2),
    }


def test_reserved_column_name_is_rejected(spark: SparkSession) -> None:
    schema = TableSchema(TableName("public", "t"), pa.schema([(GONE.upper(), pa.int32())]), (GONE.upper(),))
    with pytest.raises(UsageError, match=GONE.upper()):
        fold(spark.range(0), schema)


KEYS: list[tuple[pa.DataType, Any, Any]] = [
    (pa.bool_(), True, False),
    (pa.int16(), 1, 2),
    (pa.int64(), 2**62, -1),
    (pa.float64(), float("nan"), -1.5),
    (pa.float32(), 0.5, float("inf")),
    (pa.string(), "", "é"),
    (pa.binary(), b"\x00", b""),
    (pa.date32(), datetime.date(2026, 1, 1), datetime.date(1, 1, 1)),
    (pa.timestamp("us", "UTC"), NOON, NOON + datetime.timedelta(microseconds=1)),
    (pa.timestamp("us"), NOON.replace(tzinfo=None), NOON.replace(year=1600, tzinfo=None)),
    (pa.decimal128(38, 2), decimal.Decimal("1.10"), decimal.Decimal("-1.10")),
]


@pytest.mark.parametrize(("kind", "one", "other"), KEYS, ids=[str(kind) for kind, _, _ in KEYS])
@pytest.mark.parametrize(
    "contents",
    [pytest.param(Contents(), id="any"), pytest.param(Contents(unchanged=False), id="simple", marks=pytest.mark.deep)],
)
def test_keys_of_any_type(spark: SparkSession, kind: pa.DataType, one: Any, other: Any, contents: Contents) -> None:
    schema = TableSchema(TableName("public", "t"), pa.schema([("k", kind), ("v", pa.string())]), ("k",))
    place = {"_xid": 1, "_committed_at": NOON, "_unchanged": None}
    images = [
        {**place, "_lsn": 1, "_ordinal": 0, "_image": int(Image.UPDATED), "row": {"k": one, "v": "x"}},
        {**place, "_lsn": 2, "_ordinal": 0, "_image": int(Image.UPDATED), "row": {"k": one, "v": "y"}},
        {**place, "_lsn": 1, "_ordinal": 1, "_image": int(Image.DELETED_KEY), "row": {"k": other, "v": None}},
    ]
    table = pa.Table.from_pylist(images, image_schema(schema.columns))
    rows = fold(spark.createDataFrame(table), schema, contents).collect()
    assert sorted((found[GONE], found["v"]) for found in rows if not found[GONE]) == [(False, "y")]
    assert [found[GONE] for found in rows].count(True) == 1


def test_a_float_key_keeps_its_sign(spark: SparkSession) -> None:
    schema = TableSchema(TableName("public", "t"), pa.schema([("k", pa.float64()), ("v", pa.string())]), ("k",))
    place = {"_xid": 1, "_committed_at": NOON, "_unchanged": None, "_ordinal": 0, "_image": int(Image.UPDATED)}
    images = [{**place, "_lsn": lsn, "row": {"k": k, "v": ""}} for lsn, k in ((1, 0.0), (2, -0.0))]
    found = fold(spark.createDataFrame(pa.Table.from_pylist(images, image_schema(schema.columns))), schema).collect()
    assert [struct.pack(">d", one["k"]) for one in found] == [struct.pack(">d", -0.0)]


def test_columns_are_in_the_order_of_the_schema(spark: SparkSession) -> None:
    history, _ = started("a")
    for contents in (Contents(), Contents(unchanged=False), Contents(moved=False), Contents(inserts_only=True)):
        folded = fold(history.frame(spark), KEYED, contents)
        assert folded.columns == [GONE, UNCHANGED, FROM, *COLUMNS.names]
