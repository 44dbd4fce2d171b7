"""Random histories of a table: a Hypothesis strategy, the expected rows at every position, and a real change log.

Hypothesis draws a `Plan`: a list of transactions with steps. A plan is small, prints completely, and shrinks. Steps
refer to rows by number; a step that does not apply (an insert of an existing key, an update of an empty table) is
skipped, so every part of a plan is a valid plan. `History` executes the plan on a list of rows, the model, and writes
the images that capture would write into a change log, in chunks as specified by the plan.

Rows belong to *groups*, and a step affects one group. Each group is a short history with few keys, so that keys are
often released, reused and swapped. One Spark job checks all groups.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import closing
from decimal import Decimal
from typing import Any, NamedTuple

import pyarrow as pa
from hypothesis import strategies as st
from tests.changelog import chunks

from penstock.changelog.interface import ChangeLog, ChangeLogWriter, Chunk, StagedCommit
from penstock.model import RESCUED, Image, TableName, TableSchema, missing_value, rescued_field, with_missing
from penstock.positions import Lsn

Row = dict[str, Any]

GROUPS = 20
COLUMNS = (
    pa.field("body", pa.string()),
    pa.field("grp", pa.int32()),
    pa.field("n", pa.int64()),
    pa.field("a.key", pa.string()),
    pa.field("id", pa.int64()),
    pa.field("big `one`", pa.binary()),
    pa.field("days", pa.list_(pa.int32())),
    pa.field("the 'amount'", pa.decimal128(9, 2)),
    rescued_field(),
    # the columns below are added later
    pa.field("note", pa.string()),
    with_missing(pa.field("level", pa.int32()), pa.array([7], pa.int32())),
    with_missing(pa.field("more; (text)", pa.string()), pa.array(["as it was"])),
    pa.field("spans", pa.struct([("lower", pa.int32())])),
)
NAMES = [field.name for field in COLUMNS]
_INITIAL_COLUMNS = 9
_RESCUABLE = ("days", "the 'amount'", "spans")
"""Columns with values that their types cannot hold: they are null, and `RESCUED` has their texts."""
_LARGE = ({"body", "note", "days"}, {"big `one`", "more; (text)", "the 'amount'", "spans"})
"""Two sets of columns whose unchanged values an UPDATE may not send."""
_KEYS = "abcd"
_TEMPORARY_KEY = "z"
"""A key that is unused between steps: the temporary key of a row during a swap."""
_FIRST = 1000


class Shape(NamedTuple):
    """The key and the replica identity of a table."""

    key: tuple[str, ...]
    full: bool
    """Replica identity FULL, else DEFAULT."""


KEYED = [Shape(key, full) for key in (("id",), ("a.key",), ("a.key", "grp")) for full in (False, True)]
KEYLESS = Shape((), True)


class Step(NamedTuple):
    """One statement of a transaction."""

    action: str
    """insert, update, move, swap or delete; for the whole table: truncate or widen."""
    group: int = 0
    row: int = 0
    """The index of the row in its group, modulo the number of rows."""
    key: int = 0
    """The new key; in a swap, the index of the other row."""
    value: int = 0
    """The value to write; null for 0."""
    left: int = 0
    """Bits: the sets of large columns that stay unchanged."""


class Transaction(NamedTuple):
    """Some steps, and how they are written to the log."""

    steps: tuple[Step, ...]
    logged: str
    """whole: in one chunk; cut: one chunk per change; staged: the same, before its commit; later: with the next one."""


class Plan(NamedTuple):
    """A complete history."""

    shape: Shape
    transactions: tuple[Transaction, ...]


def plans(*shapes: Shape, widened: bool = False) -> st.SearchStrategy[Plan]:
    """Return a strategy for histories of tables of these shapes; with `widened`, columns are added."""
    few = st.integers(0, 3)
    action = st.sampled_from(("insert", "insert", "insert", "update", "update", "move", "move", "swap", "delete"))
    of_a_group = st.builds(Step, action, st.integers(0, GROUPS - 1), few, few, few, few)
    of_the_table = st.sampled_from([Step("truncate"), *[Step("widen")] * 3] if widened else [Step("truncate")])
    some = st.lists(st.one_of(of_a_group, of_the_table), max_size=GROUPS)  # possibly none; plans shrink to these
    many = st.lists(of_a_group, min_size=2 * GROUPS, max_size=4 * GROUPS)
    logged = st.sampled_from(("whole", "cut", "staged", "later"))
    transaction = st.builds(Transaction, st.one_of(some, many, many).map(tuple), logged)
    return st.builds(Plan, st.sampled_from(shapes), st.lists(transaction, min_size=2, max_size=6).map(tuple))


class Written(NamedTuple):
    """An image in the log."""

    change: int
    kind: Image
    row: Row | None
    unsent: tuple[int, ...]
    width: int
    """The number of columns of the table at this point."""


class History:
    """A plan, executed on a list of rows."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.states: dict[Lsn, list[Row]] = {Lsn(_FIRST): []}
        """The rows at every position: at the start, and after each transaction."""
        self.schemas = {Lsn(_FIRST): self._schema(_INITIAL_COLUMNS)}
        """The columns at every position in the log: an added column appears with the first image that has it."""
        self.images: dict[Lsn, list[Written]] = {}
        self._rows: list[Row] = []
        self._width = _INITIAL_COLUMNS
        for number, transaction in enumerate(plan.transactions, 1):
            self._execute(transaction, Lsn(_FIRST + 8 * number))

    @property
    def positions(self) -> list[Lsn]:
        """Return all positions, in order."""
        return list(self.states)

    def at(self, position: Lsn) -> pa.Table:
        """Return the rows at a position, with the columns that the log has there."""
        columns = self.schemas[position].columns
        rows = [{name: row[name] for name in columns.names} for row in self.states[position]]
        return pa.Table.from_pylist(rows, columns)

    def _schema(self, width: int) -> TableSchema:
        return TableSchema(TableName("public", "t"), pa.schema(COLUMNS[:width]), self.plan.shape.key)

    def write(self, log: ChangeLog) -> None:
        """Write the history to a log."""
        log.create(Lsn(_FIRST))
        with closing(log.writer()) as writer:
            writer.define(self._schema(_INITIAL_COLUMNS), Lsn(_FIRST))
            waiting: list[Chunk] = []
            for transaction, (lsn, images) in zip(self.plan.transactions, self.images.items(), strict=True):
                staged = transaction.logged == "staged" and bool(images)
                written = list(self._chunks(writer, images, -1 if staged else lsn, transaction.logged))
                if staged:
                    writer.stage(int(lsn), written)
                else:
                    waiting += written
                if transaction.logged != "later" or lsn == self.positions[-1]:
                    commits = {int(lsn): StagedCommit(lsn, int(lsn))} if staged else {}
                    writer.publish(waiting, lsn, committed_at=int(lsn), staged=commits)
                    waiting = []

    # -- the model --------------------------------------------------------------------------------------------------

    def _execute(self, transaction: Transaction, at: Lsn) -> None:
        before = self.schemas[self.positions[-1]]
        written = self._written = self.images[at] = []
        for step in transaction.steps:
            self._run(step)
        self.states[at] = [dict(row) for row in self._rows]
        self.schemas[at] = self._schema(written[-1].width) if written else before

    def _run(self, step: Step) -> None:
        there = [row for row in self._rows if row["grp"] == step.group]
        key = _key(step.group, _KEYS[step.key])
        free = not self.plan.shape.key or all(row["id"] != key["id"] for row in there)
        if step.action == "truncate":
            self._rows.clear()
            self._write(Image.TRUNCATE, None)
        elif step.action == "widen":
            self._widen()
        elif step.action == "insert" and free:
            self._rows.append(_with_values({}, self._values(step) | key))
            self._write(Image.INSERTED, self._rows[-1])
        elif there and step.action != "insert":
            self._change(step, there[step.row % len(there)], there[step.key % len(there)], key if free else {})

    def _change(self, step: Step, old: Row, other: Row, key: Row) -> None:
        if step.action == "delete":
            self._rows.remove(old)
            self._write_old(Image.DELETED, Image.DELETED_KEY, old)
        elif step.action == "swap" and old is not other:
            here, there = ({name: row[name] for name in _key(0, _TEMPORARY_KEY)} for row in (old, other))
            moved = self._update(step, old, _key(step.group, _TEMPORARY_KEY))
            self._update(step, other, here)
            self._update(step, moved, there)
        elif step.action != "swap":
            values = {name: value for name, value in self._values(step).items() if name not in _left(step)}
            self._update(step, old, values | (key if step.action == "move" else {}))

    def _update(self, step: Step, old: Row, values: Row) -> Row:
        """Set values; large values that the step leaves unchanged are not sent."""
        new = _with_values(old, values)
        self._rows[next(at for at, row in enumerate(self._rows) if row is old)] = new
        if self.plan.shape.full or any(old[name] != new[name] for name in self.plan.shape.key):
            self._write_old(Image.BEFORE, Image.BEFORE_KEY, old)
        unsent = [name for name in NAMES if name in new and name in _left(step) and name not in values]
        sent = {name: None if name in unsent else value for name, value in new.items()}
        sent[RESCUED] = _texts({name: text for name, text in new[RESCUED] or () if name not in unsent})
        self._write(Image.UPDATED, sent, tuple(map(NAMES.index, unsent)))
        return new

    def _widen(self) -> None:
        """Add a column. Existing rows get its default value."""
        if self._width < len(COLUMNS):
            field = COLUMNS[self._width]
            self._width += 1
            for row in self._rows:
                row[field.name] = missing_value(field)[0].as_py()

    def _values(self, step: Step) -> Row:
        """Return the values that a step writes, without the key."""
        text, data = (f"text {step.value}", b"data %d" % step.value) if step.value else (None, None)
        values = {"body": text, "n": step.value, "big `one`": data, "note": text, "more; (text)": text}
        values["level"] = step.value or None
        values |= dict(zip(_RESCUABLE, _RESCUED_VALUES[step.value], strict=True))
        return {name: value for name, value in values.items() if name in NAMES[: self._width]}

    # -- images -----------------------------------------------------------------------------------------------------

    def _write_old(self, whole: Image, key_only: Image, old: Row) -> None:
        full = self.plan.shape.full
        self._write(whole if full else key_only, old if full else {name: old[name] for name in self.plan.shape.key})

    def _write(self, kind: Image, row: Row | None, unsent: tuple[int, ...] = ()) -> None:
        """Record an image; the image of a new row that follows an old row belongs to the same change."""
        last = self._written[-1] if self._written else None
        same_change = kind is Image.UPDATED and last is not None and last.kind in (Image.BEFORE, Image.BEFORE_KEY)
        change = 0 if last is None else last.change + (not same_change)
        self._written.append(Written(change, kind, row and dict(row), unsent, self._width))

    def _chunks(self, writer: ChangeLogWriter, images: list[Written], lsn: int, how: str) -> Iterator[Chunk]:
        """Yield chunks of images: one for each version of the columns, or one for each change."""
        every = how in ("cut", "staged")
        for (width, _), some in itertools.groupby(images, lambda image: (image.width, every and image.change)):
            schema = self._schema(width)
            rows = [
                chunks.Row(lsn, image.change, image.kind, _in_order(image.row, schema), image.unsent or None)
                for image in some
            ]
            yield chunks.chunk(schema, rows, writer.define(schema))


class Rescued(str):
    """The text of a value that the type of its column cannot hold."""


_RESCUED_VALUES: list[list[Any]] = [
    [None, None, None],
    [[1, 2], Decimal("1.50"), {"lower": 1}],
    [Rescued("days 2"), Decimal("2.50"), Rescued("spans 2")],
    [Rescued("days 3"), Rescued("NaN"), {"lower": 3}],
]
"""The values of the rescuable columns that a step writes."""


def _with_values(old: Row, values: Row) -> Row:
    """Return a row with other values; the text of a value that cannot be held replaces the earlier text."""
    texts = {name: text for name, text in old.get(RESCUED) or () if name not in values}
    texts |= {name: str(value) for name, value in values.items() if isinstance(value, Rescued)}
    held = {name: None if isinstance(value, Rescued) else value for name, value in values.items()}
    return old | held | {RESCUED: _texts(texts)}


def _texts(texts: dict[str, str]) -> list[tuple[str, str]] | None:
    return sorted(texts.items()) or None


def comparable(value: Any) -> Any:
    """Return a value that can be compared and hashed; the entries of a map have no order."""
    if isinstance(value, dict):
        return tuple(value.items())
    if isinstance(value, list):
        return tuple(sorted(value)) if value and isinstance(value[0], tuple) else tuple(value)
    return value


def _key(group: int, letter: str) -> Row:
    """Return the key columns."""
    return {"grp": group, "a.key": f"{group} {letter}", "id": 10 * group + ord(letter) - ord("a")}


def _left(step: Step) -> set[str]:
    """Return the large columns that a step leaves unchanged."""
    return {name for bit, names in enumerate(_LARGE) if step.left >> bit & 1 for name in names}


def _in_order(row: Row | None, schema: TableSchema) -> tuple[Any, ...] | None:
    return None if row is None else tuple(row.get(name) for name in schema.columns.names)
