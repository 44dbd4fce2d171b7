"""The fold in Arrow against the reference model, and against plain Python for keys of every type."""

from __future__ import annotations

import datetime
import decimal
import random
import uuid
from collections import Counter
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from tests.tables.model import COLUMNS, KEYED, KEYLESS, NOON, History, Row, key_of, plain, random_history, row

from penstock.model import RESERVED, Image, TableName, TableSchema, image_schema
from penstock.tables.contents import Contents
from penstock.tables.small_fold import can_fold_small, fold_small

Images = list[dict[str, Any]]


def contents_of(images: Images, *, exact: bool = True) -> Contents:
    """What the log knows of these images; where not `exact`, only what is never wrong."""
    kinds = {image["_image"] for image in images}
    truncates = [(image["_lsn"], image["_ordinal"]) for image in images if image["_image"] == Image.TRUNCATE]
    return Contents(
        rows=len(images),
        inserts_only=exact and kinds == {Image.INSERTED},
        unchanged=False,
        moved=not exact or bool(kinds & {Image.BEFORE, Image.BEFORE_KEY}),
        truncated=truncates[-1] if truncates else None,
    )


def folded(images: Images, schema: TableSchema, *, exact: bool = True, chunks: int = 1) -> list[Row]:
    contents = contents_of(images, exact=exact)
    assert can_fold_small(schema, contents)
    size = max(1, -(-len(images) // chunks))
    arrow = image_schema(schema.columns)
    batches = [pa.RecordBatch.from_pylist(images[at : at + size], arrow) for at in range(0, len(images), size)]
    net = fold_small(pa.Table.from_batches(batches, arrow), schema, contents)
    assert net.schema.names == ["_gone", *schema.columns.names]
    assert net.schema.types == [pa.bool_(), *schema.columns.types]
    return list(net.to_pylist())


def applied(base: list[Row], net: list[Row], key: Callable[[Row], Any], *, truncated: bool) -> list[Row]:
    """The rows of a table after a net effect; a key stands in it at most once."""
    touched = [key(one) for one in net]
    assert len(set(touched)) == len(touched)
    kept = [] if truncated else [one for one in base if key(one) not in set(touched)]
    return kept + [{name: value for name, value in one.items() if name != "_gone"} for one in net if not one["_gone"]]


def check(history: History, after: int, upto: int, **options: Any) -> None:
    images = [image for image in history.images if after < image["_lsn"] <= upto]
    net = folded(images, KEYED, **options)
    truncated = any(image["_image"] == Image.TRUNCATE for image in images)
    assert plain(applied(history.states[after], net, key_of, truncated=truncated)) == plain(history.states[upto])


@pytest.mark.parametrize("truncate", [False, True])
@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_random_histories(seed: int, full: bool, truncate: bool) -> None:
    history = random_history(seed, full=full, groups=40, transactions=12, truncate=truncate, whole=True)
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


def test_a_truncate_and_nothing_after_it() -> None:
    history = History()
    history.insert(row(1, "a"))
    before = history.commit()
    history.insert(row(1, "b"))
    history.truncate()
    after = history.commit()
    check(history, before, after)
    assert folded(history.images, KEYED) == []


def test_nothing_at_all() -> None:
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
}


def random_changes(
    dice: random.Random, keys: list[tuple[Any, ...]], names: list[str]
) -> tuple[list[Row], Images, list[Row]]:
    """Return the rows of a table, changes of it, and the rows that it holds then."""
    full, there = dice.random() < 0.5, {key: 0 for key in keys if dice.random() < 0.5}
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

    for n in range(1, dice.choice((2, 10, 60))):
        key = dice.choice(keys)
        target = dice.choice([other for other in keys if other == key or other not in there])
        if dice.random() < 0.03:
            there.clear()
            image(Image.TRUNCATE, None, None, n)
        elif key not in there:
            there[key] = n
            image(Image.INSERTED, key, n, n)
        elif dice.random() < 0.4:
            old(Image.DELETED, Image.DELETED_KEY, key, n)
        else:
            if full or target != key:
                old(Image.BEFORE, Image.BEFORE_KEY, key, n)
            there[target] = n
            image(Image.UPDATED, target, n, n)
    return base, images, table_of(there, names)


def bag(rows: list[Row], names: list[str]) -> Counter[tuple[Any, ...]]:
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
        dice = random.Random(seed)
        keys = sorted({tuple(dice.choice(KEYS[kind][1]) for kind in kinds) for _ in range(8)})
        base, images, expected = random_changes(dice, keys, names)
        truncated = any(image["_image"] == Image.TRUNCATE for image in images)
        net = folded(images, schema, chunks=3)
        found = applied(base, net, lambda one: tuple(one[name] for name in names), truncated=truncated)
        order = schema.columns.names
        assert bag(found, order) == bag(expected, order), f"seed {seed}"


WHOLE = Contents(unchanged=False)


def keyed_by(kind: pa.DataType) -> TableSchema:
    return TableSchema(TableName("public", "t"), pa.schema([("id", pa.int32()), ("k", kind)]), ("id", "k"))


def test_what_it_refuses() -> None:
    assert can_fold_small(KEYED, WHOLE)
    assert not can_fold_small(KEYED, Contents())
    assert not can_fold_small(KEYLESS, WHOLE)
    assert can_fold_small(keyed_by(pa.string()), WHOLE)
    assert not can_fold_small(keyed_by(pa.float32()), WHOLE)
    assert not can_fold_small(keyed_by(pa.float64()), WHOLE)


@pytest.mark.parametrize("name", sorted(RESERVED))
def test_columns_with_names_of_ours_are_left_to_fold_which_refuses_them(name: str) -> None:
    columns = COLUMNS.append(pa.field(name.title(), pa.int32()))
    assert not can_fold_small(TableSchema(KEYED.table, columns, KEYED.key), WHOLE)
