"""The fold of small ranges, compared with the reference model, and with plain Python for keys of every type."""

from __future__ import annotations

import datetime
import decimal
import math
import random
import uuid
from collections import Counter
from typing import Any

import pyarrow as pa
import pytest
from tests.tables.model import COLUMNS, KEYED, KEYLESS, NOON, History, Row, key_of, plain, random_history, row

from penstock.errors import UsageError
from penstock.model import COUNT, FROM, GONE, UNCHANGED, Image, TableName, TableSchema, image_schema
from penstock.tables.contents import Contents
from penstock.tables.log_tail import fold_small

Images = list[dict[str, Any]]


def contents_of(images: Images, *, exact: bool = True) -> Contents:
    """Return the contents of these images; if not `exact`, with conservative values."""
    kinds = {image["_image"] for image in images}
    truncates = [(image["_lsn"], image["_ordinal"]) for image in images if image["_image"] == Image.TRUNCATE]
    return Contents(
        rows=len(images),
        inserts_only=exact and kinds == {Image.INSERTED},
        unchanged=not exact or any(image["_unchanged"] for image in images),
        moved=not exact or bool(kinds & {Image.BEFORE, Image.BEFORE_KEY}),
        truncated=truncates[-1] if truncates else None,
    )


def folded(images: Images, schema: TableSchema, *, exact: bool = True, chunks: int = 1) -> list[Row]:
    size = max(1, -(-len(images) // chunks))
    arrow = image_schema(schema.columns)
    batches = [pa.RecordBatch.from_pylist(images[at : at + size], arrow) for at in range(0, len(images), size)]
    net, known = fold_small(pa.Table.from_batches(batches, arrow), schema, contents_of(images, exact=exact))
    net.validate(full=True)
    assert [net.schema.field(name).type for name in schema.columns.names] == schema.columns.types
    rows = list(net.to_pylist())
    assert known.rows == len(rows)
    if schema.key:
        assert known.unchanged == any(one.get(UNCHANGED) for one in rows)
        assert known.moved == any(one.get(FROM) for one in rows)
    return rows


def applied(base: list[Row], net: list[Row], schema: TableSchema, *, truncated: bool) -> list[Row]:
    """Return the rows of a table after applying net changes; assert that each key occurs at most once."""
    there = {key_in(schema, one): one for one in base}
    touched = [key_in(schema, one) for one in net]
    assert len(set(touched)) == len(touched)
    kept = [] if truncated else [one for key, one in there.items() if key not in set(touched)]
    return kept + [filled(there, one, schema) for one in net if not one[GONE]]


def filled(there: dict[Any, Row], new: Row, schema: TableSchema) -> Row:
    missing = [schema.columns.names[index] for index in new.get(UNCHANGED) or ()]
    source = there[key_in(schema, new.get(FROM) or new)] if missing else {}
    return {name: (source if name in missing else new)[name] for name in schema.columns.names}


def key_in(schema: TableSchema, values: Row) -> tuple[Any, ...]:
    return tuple(values[name] for name in schema.key)


def check(history: History, after: int, upto: int, **options: Any) -> None:
    images = [image for image in history.images if after < image["_lsn"] <= upto]
    net = folded(images, KEYED, **options)
    truncated = any(image["_image"] == Image.TRUNCATE for image in images)
    assert plain(applied(history.states[after], net, KEYED, truncated=truncated)) == plain(history.states[upto])


@pytest.mark.parametrize("truncate", [False, True])
@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_random_histories(seed: int, full: bool, truncate: bool) -> None:
    history = random_history(seed, full=full, groups=40, transactions=12, truncate=truncate, whole=seed % 2 == 0)
    positions = sorted(history.states)
    for start, after in enumerate(positions):
        check(history, after, positions[-1], chunks=1 + start % 4)
        for upto in positions[start + 1 : start + 4]:
            check(history, after, upto, exact=bool(start % 2), chunks=3)


def test_delete_and_insert_again() -> None:
    history = History()
    history.insert(row(1, "a", 1))
    before = history.commit()
    history.delete(history.find(1, "a"))
    history.insert(row(1, "a", 2))
    history.delete(history.find(1, "a"))
    gone = history.commit()
    history.insert(row(1, "a", 3))
    back = history.commit()
    for after, upto in ((before, gone), (gone, back), (before, back)):
        check(history, after, upto)


def test_keys_are_swapped() -> None:
    history = History()
    one, other = row(1, "a", 1), row(1, "b", 2)
    history.insert(one)
    history.insert(other)
    before = history.commit()
    one = history.update(one, {"a.key": "c"})
    history.update(other, {"a.key": "a"})
    history.update(one, {"a.key": "b"})
    swapped = history.commit()
    check(history, before, swapped)
    assert {(key_of(one), one["n"]) for one in history.states[swapped]} == {((1, "a"), 2), ((1, "b"), 1)}


def test_truncate_as_the_last_change() -> None:
    history = History()
    history.insert(row(1, "a"))
    before = history.commit()
    history.insert(row(1, "b"))
    history.truncate()
    after = history.commit()
    check(history, before, after)
    assert folded(history.images, KEYED) == []


def test_empty_range() -> None:
    assert folded([], KEYED) == []


KEYS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "int16": (pa.int16(), [-(2**15), -1, 0, 1, 2**15 - 1]),
    "int64": (pa.int64(), [-(2**63), -1, 0, 2**63 - 1]),
    "text": (pa.string(), ["", " ", "a", "A", "á", "a\u0301", "a" * 3000]),
    "uuid": (pa.string(), [str(uuid.UUID(int=n)) for n in (0, 1, 2**127)]),
    "decimal": (pa.decimal128(38, 4), [decimal.Decimal(n) for n in ("0", "-0.0001", "0.0001", "9" * 34, "1.5")]),
    "date": (pa.date32(), [datetime.date(1, 1, 1), datetime.date(1970, 1, 1), datetime.date(9999, 12, 31)]),
    "timestamp": (pa.timestamp("us"), [datetime.datetime(2026, 1, 1, 0, 0, 0, n) for n in range(3)]),  # noqa: DTZ001
    "timestamptz": (pa.timestamp("us", "UTC"), [NOON + datetime.timedelta(microseconds=n) for n in range(3)]),
    "binary": (pa.binary(), [b"", b"\0", b"\0\0", b"\xff", b"a" * 3000]),
    "bool": (pa.bool_(), [False, True]),
    "float": (pa.float64(), [-1.5, 0.0, 1.5, math.inf, -math.inf]),
}


def random_changes(
    rng: random.Random, keys: list[tuple[Any, ...]], names: list[str]
) -> tuple[list[Row], Images, list[Row]]:
    """Return the rows of a table, changes, and the rows after the changes."""
    full, there = rng.random() < 0.5, {key: 0 for key in keys if rng.random() < 0.5}
    base = table_of(there, names)
    images: Images = []

    def image(kind: Image, key: tuple[Any, ...] | None, value: int | None, ordinal: int) -> None:
        place = {"_lsn": 8, "_ordinal": ordinal, "_image": int(kind), "_xid": 1, "_committed_at": NOON}
        values = None if key is None else {"v": value, **dict(zip(names, key, strict=True))}
        images.append({**place, "_unchanged": None, "row": values})

    def old(whole: Image, key_only: Image, key: tuple[Any, ...], ordinal: int) -> int:
        value = there.pop(key)
        image(whole if full else key_only, key, value if full else None, ordinal)
        return value

    for n in range(1, rng.choice((2, 10, 60))):
        key = rng.choice(keys)
        target = rng.choice([other for other in keys if other == key or other not in there])
        if rng.random() < 0.03:
            there.clear()
            image(Image.TRUNCATE, None, None, n)
        elif key not in there:
            there[key] = n
            image(Image.INSERTED, key, n, n)
        elif rng.random() < 0.4:
            old(Image.DELETED, Image.DELETED_KEY, key, n)
        else:
            if full or target != key:
                old(Image.BEFORE, Image.BEFORE_KEY, key, n)
            there[target] = n
            image(Image.UPDATED, target, n, n)
    return base, images, table_of(there, names)


def row_counts(rows: list[Row], names: list[str]) -> Counter[tuple[Any, ...]]:
    return Counter(tuple(one[name] for name in names) for one in rows)


def table_of(there: dict[tuple[Any, ...], int], names: list[str]) -> list[Row]:
    return [{"v": value, **dict(zip(names, key, strict=True))} for key, value in there.items()]


@pytest.mark.parametrize(
    "kinds", [*([kind] for kind in KEYS), ["text", "int16"], ["bool", "binary", "date"]], ids="+".join
)
def test_keys_of_every_type(kinds: list[str]) -> None:
    names = [f"k.{number}" for number, _ in enumerate(kinds)]
    fields = [(name, KEYS[kind][0]) for name, kind in zip(names, kinds, strict=True)]
    schema = TableSchema(TableName("public", "t"), pa.schema([("v", pa.int32()), *fields]), tuple(names))
    for seed in range(60):
        rng = random.Random(seed)
        keys = sorted({tuple(rng.choice(KEYS[kind][1]) for kind in kinds) for _ in range(8)})
        base, images, expected = random_changes(rng, keys, names)
        truncated = any(image["_image"] == Image.TRUNCATE for image in images)
        net = folded(images, schema, chunks=3)
        found = applied(base, net, schema, truncated=truncated)
        order = schema.columns.names
        assert row_counts(found, order) == row_counts(expected, order), f"seed {seed}"


def test_positive_and_negative_zero_are_the_same_key() -> None:
    schema = TableSchema(TableName("public", "t"), pa.schema([("k", pa.float64()), ("v", pa.int32())]), ("k",))
    place = {"_lsn": 8, "_xid": 1, "_committed_at": NOON, "_unchanged": None}
    images = [
        {**place, "_ordinal": 0, "_image": int(Image.INSERTED), "row": {"k": 0.0, "v": 1}},
        {**place, "_ordinal": 1, "_image": int(Image.DELETED_KEY), "row": {"k": -0.0, "v": None}},
    ]
    assert [(one[GONE], one["k"], one["v"]) for one in folded(images, schema)] == [(True, 0.0, None)]


def test_row_that_returns_to_its_key_is_its_own_source() -> None:
    """An overlay over rows read in between must know the source: another row may have had that key then."""
    history = History()
    history.insert(row(1, "a", 0, "body", b"big"))
    base = history.commit()
    one = history.update(history.find(1, "a"), {"a.key": "b"}, [0, 4])
    history.update(one, {"a.key": "a", "n": 9}, [0, 4])
    end = history.commit()
    net = {one["a.key"]: one for one in folded([image for image in history.images if image["_lsn"] > base], KEYED)}
    assert net["a"][FROM] == {"grp": 1, "a.key": "a"}
    assert (net["a"][UNCHANGED], net["a"]["n"], net["b"][GONE]) == ([0, 4], 9, True)
    check(history, base, end)


def test_value_that_was_sent_later_is_not_missing() -> None:
    """Then no value of the base is needed, and none is looked up."""
    history = History()
    history.insert(row(1, "a", 0, "body", b"big"))
    base = history.commit()
    one = history.update(history.find(1, "a"), {"a.key": "b"}, [0, 4])
    history.update(one, {"body": "sent", "big `one`": b"sent"})
    end = history.commit()
    images = [image for image in history.images if base < image["_lsn"] <= end]
    net, known = fold_small(
        pa.Table.from_pylist(images, image_schema(COLUMNS)), KEYED, contents_of(images, exact=False)
    )
    assert (known.unchanged, known.moved) == (False, False)
    assert UNCHANGED not in net.column_names


@pytest.mark.parametrize("copies", [0, 3])
def test_rows_of_a_keyless_table_are_counted(copies: int) -> None:
    history = History(full=True)
    for _ in range(copies):
        history.insert(row(1, "a"))
    history.insert(row(1, "b"))
    history.delete(history.find(1, "b"))
    history.commit()
    assert [(one[COUNT], one["a.key"]) for one in folded(history.images, KEYLESS)] == [(3, "a")] * (copies > 0)


@pytest.mark.parametrize("name", [GONE, UNCHANGED, FROM, COUNT])
def test_reserved_column_names_are_rejected(name: str) -> None:
    columns = COLUMNS.append(pa.field(name.title(), pa.int32()))
    with pytest.raises(UsageError, match="a name reserved by Penstock"):
        fold_small(image_schema(columns).empty_table(), TableSchema(KEYED.table, columns, KEYED.key), Contents())
