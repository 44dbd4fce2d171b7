"""Reference model of tables in plain Python: random histories, their images, and the rows at every position.

One table has many small groups of keys. Every transaction changes many groups, so that one Spark job checks hundreds of
short histories at once. A group has few keys, so that keys are often released, reused and swapped.
"""

from __future__ import annotations

import datetime
import random
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from penstock.model import Image, TableName, TableSchema, image_schema

COLUMNS = pa.schema(
    [
        pa.field("body", pa.string()),
        pa.field("grp", pa.int32()),
        pa.field("n", pa.int64()),
        pa.field("a.key", pa.string()),
        pa.field("big `one`", pa.binary()),
    ]
)
KEYED = TableSchema(TableName("public", "t"), COLUMNS, ("grp", "a.key"))
KEYLESS = TableSchema(TableName("public", "t"), COLUMNS, ())
TOAST = {0: "body", 4: "big `one`"}
NOON = datetime.datetime(2026, 1, 1, 12, tzinfo=datetime.UTC)

Row = dict[str, Any]
Key = tuple[int, str]


def row(grp: int, key: str, n: int = 0, body: str | None = "", big: bytes | None = b"") -> Row:
    return {"body": body, "grp": grp, "n": n, "a.key": key, "big `one`": big}


def key_of(values: Row) -> Key:
    return values["grp"], values["a.key"]


def plain(rows: Iterable[Any]) -> Counter[tuple[Any, ...]]:
    """Count rows of Spark or of the model, as tuples in the order of the columns."""
    found: Counter[tuple[Any, ...]] = Counter()
    for one in rows:
        values = one.asDict() if hasattr(one, "asDict") else one
        found[tuple(_plain(values[name]) for name in COLUMNS.names)] += 1
    return found


def _plain(value: Any) -> Any:
    return bytes(value) if isinstance(value, bytearray) else value


@dataclass
class History:
    """Writes to one table, as recorded in the change log."""

    full: bool = False
    """Replica identity FULL, else DEFAULT."""
    table: list[Row] = field(default_factory=list)
    images: list[dict[str, Any]] = field(default_factory=list)
    states: dict[int, list[Row]] = field(default_factory=dict)
    lsn: int = 1000
    ordinal: int = 0

    def commit(self) -> int:
        """End the transaction, record the rows of the table, and return the position."""
        self.states[self.lsn] = [dict(one) for one in self.table]
        at, self.lsn, self.ordinal = self.lsn, self.lsn + 8, 0
        return at

    def find(self, grp: int, key: str) -> Row:
        return next(one for one in self.table if key_of(one) == (grp, key))

    def insert(self, new: Row) -> None:
        self.table.append(new)
        self._image(Image.INSERTED, new)
        self.ordinal += 1

    def delete(self, old: Row) -> None:
        self.table.remove(old)
        self._old(Image.DELETED, Image.DELETED_KEY, old)
        self.ordinal += 1

    def update(self, old: Row, values: Row, unsent: Iterable[int] = ()) -> Row:
        """Set `values`; the columns `unsent` did not change and are not sent."""
        new = {**old, **values}
        unsent = [index for index in unsent if TOAST[index] not in values]
        self.table[next(i for i, one in enumerate(self.table) if one is old)] = new
        if self.full or key_of(old) != key_of(new):
            self._old(Image.BEFORE, Image.BEFORE_KEY, old)
        sent = {**new, **{TOAST[index]: None for index in unsent}}
        self._image(Image.UPDATED, sent, list(unsent) or None)
        self.ordinal += 1
        return new

    def truncate(self) -> None:
        self.table.clear()
        self._image(Image.TRUNCATE, None)
        self.ordinal += 1

    def frame(self, spark: SparkSession, after: int = 0, upto: int = 1 << 62) -> DataFrame:
        """Return the images of (after, upto], in random order."""
        chosen = [image for image in self.images if after < image["_lsn"] <= upto]
        random.Random(0).shuffle(chosen)
        return spark.createDataFrame(pa.Table.from_pylist(chosen, image_schema(COLUMNS)))

    def base(self, spark: SparkSession, at: int) -> DataFrame:
        return rows_frame(spark, self.states[at])

    def _old(self, whole: Image, key_only: Image, old: Row) -> None:
        self._image(whole, old) if self.full else self._image(key_only, {"grp": old["grp"], "a.key": old["a.key"]})

    def _image(self, kind: Image, values: Row | None, unchanged: list[int] | None = None) -> None:
        place = {"_lsn": self.lsn, "_ordinal": self.ordinal, "_image": int(kind), "_xid": 7, "_committed_at": NOON}
        self.images.append({**place, "_unchanged": unchanged, "row": None if values is None else dict(values)})


def rows_frame(spark: SparkSession, rows: list[Row]) -> DataFrame:
    return spark.createDataFrame(pa.Table.from_pylist(rows, COLUMNS))


def random_history(
    seed: int, *, full: bool, groups: int = 200, transactions: int = 24, truncate: bool = False, whole: bool = False
) -> History:
    """Return a history of inserts, updates, deletes and key changes (chains, swaps), with unique keys.

    Updates omit unchanged values, unless every image is `whole`.
    """
    rng = random.Random(seed)
    history = History(full=full)
    history.commit()
    for number in range(transactions):
        if truncate and number in (transactions // 3, transactions // 2):
            history.truncate()
        by_group: dict[int, dict[str, Row]] = {grp: {} for grp in range(groups)}
        for one in history.table:
            by_group[one["grp"]][one["a.key"]] = one
        for grp in range(groups):
            for _ in range(rng.choice((0, 0, 1, 1, 2, 4))):
                _random_change(history, rng, grp, by_group[grp], () if whole else TOAST)
        history.commit()
    return history


def _random_change(history: History, rng: random.Random, grp: int, there: dict[str, Row], toast: Iterable[int]) -> None:
    free = [key for key in "abcd" if key not in there]
    action = rng.choice(("insert", "update", "update", "move", "move", "delete"))
    if action == "insert" and free:
        key = rng.choice(free)
        there[key] = row(grp, key, rng.randrange(9), _text(rng), _bytes(rng))
        history.insert(there[key])
    elif action == "delete" and there:
        history.delete(there.pop(rng.choice(sorted(there))))
    elif action in ("update", "move") and there:
        old = there.pop(rng.choice(sorted(there)))
        values: Row = {"n": rng.randrange(9)}
        if action == "move" and free:
            values["a.key"] = rng.choice(free)
        if rng.random() < 0.3:
            values["body"] = _text(rng)
        if rng.random() < 0.3:
            values["big `one`"] = _bytes(rng)
        new = history.update(old, values, [index for index in toast if rng.random() < 0.8])
        there[new["a.key"]] = new


def _text(rng: random.Random) -> str | None:
    return rng.choice((None, f"text {rng.randrange(10**6)}"))


def _bytes(rng: random.Random) -> bytes | None:
    return rng.choice((None, str(rng.randrange(10**6)).encode()))


def random_keyless_history(seed: int, transactions: int = 12, changes: int = 60) -> History:
    """Return a history of a keyless table: few distinct rows, many copies, replica identity FULL."""
    rng = random.Random(seed)
    history = History(full=True)
    history.commit()
    for _ in range(transactions):
        for _ in range(changes):
            action = rng.choice(("insert", "insert", "update", "delete"))
            new = row(rng.randrange(2), rng.choice("ab"), rng.randrange(2), rng.choice((None, "x")), None)
            if action == "insert" or not history.table:
                history.insert(new)
            elif action == "update":
                unsent = [index for index in TOAST if rng.random() < 0.5]
                values = {name: v for name, v in new.items() if name not in (TOAST[index] for index in unsent)}
                history.update(rng.choice(history.table), values, unsent)
            else:
                history.delete(rng.choice(history.table))
        history.commit()
    return history
