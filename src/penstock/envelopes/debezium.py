"""ENVELOPE DEBEZIUM: changes with the row before and after them, each exactly once, from a state of fixed size.

::

    messages ──▶ records ──▶ usable? ──▶ new, replayed or out of order? ──▶ rows there? ──▶ images
                    │           │                    │       ▲                  │
                    │           └────────────────────┼───────┼──────────────────┴─────────▶ refused
                    └ tombstones: dropped            ▼       │
                                                   state (and keys of the snapshot while it lasts)

What makes it exact is described below; what must hold for that is checked here and in
`penstock.envelopes.upstream`, and each refusal says the way out: records with keys, ``before`` and ``after``, of
Postgres or MySQL, from a recent Debezium, not compacted, and in order but for what Debezium repeats when it starts
anew.

The state counts what was refused as read: a record that is refused is refused once, and its replay is a replay.

What ENVELOPE DEBEZIUM remembers between batches: per partition, how far the upstream log has been followed.

It is of one size, whatever number of records was read: a position, the keys at just that position (two where a key
changed, at most a page of rows after a COPY), a time and a mark. Keys of a first snapshot are not in it: while that
lasts, they are those of the table that the records make. Stored in one step with that table, a state is all that is
needed to go on. Whoever has no such state begins from zero, with ``DebeziumState()`` and an empty table: also exact.

Which records of Debezium are new, which were there before, and which should not be where they are.

Debezium notes how far it came now and then, and writes what lies after that note again when it starts anew. So a
partition looks like this, by upstream positions::

    snapshot          changes                    replay               changes
    S S S S S S S  │  1 2 3 4 5 6 7  │  (start)  4 5 6 7  │           8 9 …

- **A change** is new if its position is above all before it, or is the highest one and its key was not yet there.
- **A replay comes to its end**: it goes up to the highest position before anything new follows. If a new position
  follows one that lies below, a record was out of order; it was dropped, so what follows is refused.
- **A replay is old**: a record below the highest position that is later, by the database's clock, than all records read
  so far was never read. The positions began anew (another server), and the record is refused.
- **A row of the snapshot** is new if its key was not yet there. After the first change of a partition no more are new.
- **A second snapshot**, at another position, does not say which rows have gone since the first: its rows are refused.

All of it is decided by windows over one partition in the order of offsets, from the state before, and by the keys of
the snapshot while that lasts. No record is compared with more than what came before it, so batches can end anywhere.

Each partition stands for itself. If a topic gets more partitions, and Debezium then repeats records of before, some of
them come where they never were, and are taken for new: `penstock.envelopes.retractions` finds them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pyspark.sql import Column, DataFrame, Window, WindowSpec
from pyspark.sql import functions as F

from penstock.envelopes.debezium_records import RecordType, missing_row, opened, record_type, unknown_op
from penstock.envelopes.messages import Enveloped, enveloped, image, judged
from penstock.envelopes.shape import Shape, contradiction, key_problem, quoted, unavailable
from penstock.envelopes.upsert import truncate_refused
from penstock.envelopes.upstream import event_time, in_snapshot, upstream_position, upstream_problem
from penstock.errors import DefiniteError, UsageError
from penstock.model import Image

__all__ = ["DebeziumState", "Deduplicated", "Progress", "debezium", "followed", "progress"]

_KEY_TEXT = {
    "timeZone": "UTC",
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}
_FULL = (
    "ALTER TABLE … REPLICA IDENTITY FULL (Postgres), binlog_row_image = FULL (MySQL), "
    "or choose ENVELOPE DEBEZIUM UPSERT"
)


@dataclass(frozen=True)
class Deduplicated(Enveloped):
    """What messages say, and what to remember for those that follow them."""

    known: DataFrame
    """The messages, each held against what was before it (`penstock.envelopes.debezium`)."""
    before: DebeziumState

    @cached_property
    def state(self) -> DebeziumState:
        """What to remember: to be stored with the images, in one step. Runs a job when it is first asked for."""
        return self.before.then(progress(self.known))


def debezium(messages: DataFrame, shape: Shape, state: DebeziumState, rows: DataFrame | None = None) -> Deduplicated:
    """Return the images of records that are new; `shape` is that of `debezium_shape`.

    `messages` follow, in each partition, those that made `state`. While a first snapshot lasts, `rows` of the table, as
    those messages made it, tell which of the snapshot's rows were there; else they are not needed. Rows that are taken
    away should be held against the table: `penstock.envelopes.retractions`.
    """
    types = record_type(messages)
    _refuse_unfit(types)
    if state.snapshot_lasts and rows is None:
        message = "a state in the middle of a snapshot was given without the rows of that snapshot"
        raise UsageError(message, "begin from zero: DebeziumState() and an empty table")
    seen = _seen(rows, shape) if rows is not None and state.snapshot_lasts else None
    known = followed(_records(messages, types, shape), state, seen)
    checked = judged(known, F.col("disorder"), F.when(F.col("usable") & ~F.col("replayed"), _row_problem(types, shape)))
    made = enveloped(
        checked.filter(F.col("problem").isNotNull() | F.col("usable") & ~F.col("replayed")), _changes(shape)
    )
    return Deduplicated(made.told, known, state)


def _records(messages: DataFrame, types: RecordType, shape: Shape) -> DataFrame:
    """Return messages as records, with what tells their place; a problem where that cannot be told."""
    assert types.source is not None
    whole_table = F.coalesce(F.col("op") == "t", F.lit(False))
    problems = [unknown_op(), F.when(~whole_table, key_problem(F.col("key"), shape)), upstream_problem(types.source)]
    record = [F.when(~F.col("tombstone"), problem) for problem in problems]
    checked = judged(opened(messages), *record)
    return checked.withColumns(
        {
            "usable": F.col("problem").isNull() & ~F.col("tombstone"),
            "copied": F.coalesce(in_snapshot(types.source), F.lit(False)),
            "position": F.coalesce(upstream_position(types.source), F.lit("")),
            "digest": _digest(F.col("key")),
            "time": event_time(types.source),
        }
    )


def _row_problem(types: RecordType, shape: Shape) -> Column:
    """Say of a new record that rows are missing in it."""
    op, before, after = F.col("op"), F.col("before"), F.col("after")
    no_before = F.when(op.isin("u", "d") & before.isNull(), F.lit(f"it has no 'before', the row as it was: {_FULL}"))
    names = types.after.names
    return F.coalesce(
        truncate_refused(),
        missing_row(),
        no_before,
        contradiction(F.col("key"), F.when(op == "d", before).otherwise(after), shape, names),
        F.when(op != "d", unavailable(after, types.after)),
    )


def _changes(shape: Shape) -> Column:
    op, before, after = F.col("op"), shape.whole(F.col("before")), shape.whole(F.col("after"))
    changed = F.array(image(Image.BEFORE, before), image(Image.UPDATED, after))
    return (
        F.when(op == "u", changed)
        .when(op == "d", F.array(image(Image.DELETED, before)))
        .otherwise(F.array(image(Image.INSERTED, after)))
    )


def _seen(rows: DataFrame, shape: Shape) -> DataFrame:
    """Return the digests of the keys of a table."""
    return rows.select(_digest(F.struct(*(F.col(quoted(name)).alias(name) for name in shape.key))).alias("digest"))


def _digest(key: Column) -> Column:
    return F.coalesce(F.md5(F.to_json(key, _KEY_TEXT)), F.lit(""))


def _refuse_unfit(types: RecordType) -> None:
    """Raise a `UsageError` where no record of such types can be told from its replay."""
    lacking = [name for name, kind in (("before", types.before), ("source", types.source)) if kind is None]
    if lacking:
        message = f"records of the topic have no field {lacking[0]!r}, without which ENVELOPE DEBEZIUM cannot do"
        raise UsageError(message, "choose ENVELOPE DEBEZIUM UPSERT")
    apart = [name for name in types.key.names if name not in types.after.names]
    if apart:
        message = f"the key has a field {apart[0]!r}, which rows do not have: it is not the primary key"
        raise UsageError(message, "let Debezium write the primary key as key, or choose ENVELOPE DEBEZIUM UPSERT")
    if types.before is not None and types.before.names != types.after.names:
        message = "records of the topic have other fields in 'before' than in 'after'"
        raise UsageError(message, "give both the columns of the table, or choose ENVELOPE DEBEZIUM UPSERT")


_FROZEN = ConfigDict(frozen=True, strict=True, extra="forbid")
_POSITION = r"^\d{40}$"


class Progress(BaseModel):
    """How far one partition has come. Its parts are facts about records read so far, so that facts can be added up."""

    model_config = _FROZEN

    snapshot: str | None = Field(default=None, pattern=r"^(\d{40})?$")
    """The position of the first snapshot; empty if it tells none, None if no row of one was read."""
    highest: str | None = Field(default=None, pattern=_POSITION)
    """The highest position of a change; None until the first, which ends the snapshot in this partition."""
    at_highest: tuple[str, ...] = ()
    """Digests of the keys of changes at that position, sorted."""
    latest: int | None = None
    """The latest time of a change, in milliseconds."""
    behind: bool = False
    """Whether the last change lies below the highest position: a replay that has not come to its end."""

    def then(self, later: Progress) -> Progress:
        """Return the progress after these records and the `later` ones."""
        return Progress(
            snapshot=later.snapshot if self.snapshot is None else self.snapshot,
            highest=_greater(self.highest, later.highest),
            at_highest=self._keys_with(later),
            latest=max((time for time in (self.latest, later.latest) if time is not None), default=None),
            behind=self.behind if later.highest is None else later.behind,
        )

    def _keys_with(self, later: Progress) -> tuple[str, ...]:
        if self.highest == later.highest:
            return tuple(sorted({*self.at_highest, *later.at_highest}))
        return later.at_highest if _greater(self.highest, later.highest) == later.highest else self.at_highest


class DebeziumState(BaseModel):
    """The progress of all partitions; ``DebeziumState()`` has read nothing."""

    model_config = _FROZEN

    partitions: dict[int, Progress] = Field(default_factory=dict)

    @property
    def snapshot_lasts(self) -> bool:
        """Whether some partition has rows of the first snapshot, and no change yet."""
        return any(one.snapshot is not None and one.highest is None for one in self.partitions.values())

    def then(self, read: Iterable[tuple[int, Progress]]) -> DebeziumState:
        """Return the state after more records, of which `read` tells per partition."""
        partitions = dict(self.partitions)
        for number, progress in read:
            partitions[number] = partitions.get(number, Progress()).then(progress)
        return DebeziumState(partitions=dict(sorted(partitions.items())))

    def to_json(self) -> str:
        """Write the state as text."""
        return self.model_dump_json()

    @classmethod
    def from_json(cls, text: str) -> DebeziumState:
        """Read what `to_json` wrote; `DefiniteError` for anything else."""
        try:
            return cls.model_validate_json(text)
        except ValidationError:
            message = "the stored state of a Debezium topic cannot be read"
            raise DefiniteError(message, "read the topic from the beginning, into an empty table") from None


def _greater(one: str | None, other: str | None) -> str | None:
    return max((position for position in (one, other) if position is not None), default=None)


_STATE = pa.schema(
    [
        ("partition", pa.int32()),
        ("was_snapshot", pa.string()),
        ("was_highest", pa.string()),
        ("was_at", pa.list_(pa.string())),
        ("was_latest", pa.int64()),
        ("was_behind", pa.bool_()),
    ]
)
_LATE = "its position lies below others that are older: the server changed, or its log began anew"
_GAP = "a record before it was out of order, and is lost"
_ANEW = "it is of a second snapshot, which does not tell which rows are gone since the first"
_TAKE_ANEW = "read a topic that Debezium wrote anew"


def followed(records: DataFrame, state: DebeziumState, seen: DataFrame | None) -> DataFrame:
    """Return records with ``replayed``, ``disorder`` (a problem, or null) and what `progress` needs.

    Records have ``usable`` (what counts here), ``copied`` (a row of the snapshot), ``position``, ``digest`` of the key,
    ``time``, and ``partition`` and ``offset``. `seen` has the ``digest`` of each row of the snapshot so far.
    """
    frame = records.join(F.broadcast(_known(records, state)), "partition", "left")
    frame = _with_steps(_with_earlier(_with_seen(frame, seen)))
    return frame.withColumns({"replayed": _replayed(), "disorder": _disorder()})


def progress(records: DataFrame) -> Iterator[tuple[int, Progress]]:
    """Yield how far each partition has come by records that `followed` gave. One job, with a row per partition."""
    top = F.max(_of_change("position")).over(Window.partitionBy("partition"))
    at_top = F.when(_is_change() & (F.col("position") == F.col("top")), F.col("digest"))
    told = records.withColumn("top", top).groupBy("partition")
    facts = told.agg(
        F.max("snapshot").alias("snapshot"),
        F.max("top").alias("highest"),
        F.sort_array(F.collect_set(at_top)).alias("at_highest"),
        F.max(_of_change("time")).alias("latest"),
        F.coalesce(F.max_by(F.col("step") < 0, _of_change("offset")), F.lit(False)).alias("behind"),
    )
    for row in facts.collect():
        known = row.asDict()
        number, keys = known.pop("partition"), known.pop("at_highest")
        yield number, Progress(at_highest=tuple(keys), **known)


def _with_earlier(frame: DataFrame) -> DataFrame:
    """Add what changes before a record tell: the highest position, the latest time; and how often it was there."""
    same = Window.partitionBy("partition", "usable", "copied", "position", "digest").orderBy("offset")
    return frame.withColumns(
        {
            "highest": F.greatest("was_highest", F.max(_of_change("position")).over(_earlier())),
            "latest": F.greatest("was_latest", F.max(_of_change("time")).over(_earlier())),
            "repetition": F.row_number().over(same),
        }
    )


def _with_steps(frame: DataFrame) -> DataFrame:
    """Add where a change goes (1: on, 0: stays, -1: back), if the one before went back, and the snapshot's place."""
    step = F.when(F.col("highest").isNull() | (F.col("position") > F.col("highest")), 1)
    step = step.when(F.col("position") == F.col("highest"), 0).otherwise(-1)
    first = F.when(_is_row() & F.col("highest").isNull(), F.col("position"))
    so_far = _order().rowsBetween(Window.unboundedPreceding, Window.currentRow)
    snapshot = F.coalesce("was_snapshot", F.first(first, ignorenulls=True).over(so_far))
    frame = frame.withColumns({"step": F.when(_is_change(), step), "snapshot": snapshot})
    back = F.last(F.col("step") < 0, ignorenulls=True).over(_earlier())
    return frame.withColumn("behind", F.coalesce(back, "was_behind", F.lit(False)))


def _replayed() -> Column:
    """Whether a record was there before."""
    at_highest = (F.col("position") == F.col("was_highest")) & F.array_contains("was_at", F.col("digest"))
    repeated = F.col("repetition") > 1
    change = (F.col("step") < 0) | repeated | F.coalesce(at_highest, F.lit(False))
    row = F.col("highest").isNotNull() | repeated | F.col("seen")
    return F.when(_is_change(), change).when(_is_row(), row).otherwise(False)


def _disorder() -> Column:
    """Say what is wrong with the place of a record in the topic."""
    late = _is_change() & (F.col("step") < 0) & (F.col("time") > F.col("latest"))
    gap = _is_change() & (F.col("step") > 0) & F.col("behind")
    anew = _is_row() & ~F.col("position").eqNullSafe(F.col("snapshot"))
    problem = F.when(late, F.lit(f"{_LATE}: {_TAKE_ANEW}")).when(gap, F.lit(f"{_GAP}: {_TAKE_ANEW}"))
    return problem.when(anew, F.lit(f"{_ANEW}: {_TAKE_ANEW}"))


def _known(records: DataFrame, state: DebeziumState) -> DataFrame:
    """Return the state as a frame: made by Arrow, it is a local relation, and no Python worker has a part in it."""
    rows = [
        (number, one.snapshot, one.highest, list(one.at_highest), one.latest, one.behind)
        for number, one in state.partitions.items()
    ]
    columns = [list(column) for column in zip(*rows, strict=True)] or [[] for _ in _STATE]
    arrays = [pa.array(column, field.type) for column, field in zip(columns, _STATE, strict=True)]
    return records.sparkSession.createDataFrame(pa.Table.from_arrays(arrays, schema=_STATE))


def _with_seen(frame: DataFrame, seen: DataFrame | None) -> DataFrame:
    """Mark rows of the snapshot that were there; of the keys that are known, only theirs are looked at."""
    if seen is None:
        return frame.withColumn("seen", F.lit(False))
    asked = frame.filter(_is_row()).select("digest").distinct()
    marked = seen.join(F.broadcast(asked), "digest", "left_semi").distinct().withColumn("marked", F.lit(True))
    joined = frame.join(marked, "digest", "left")
    return joined.withColumn("seen", F.coalesce("marked", F.lit(False)))


def _order() -> WindowSpec:
    return Window.partitionBy("partition").orderBy("offset")


def _earlier() -> WindowSpec:
    return _order().rowsBetween(Window.unboundedPreceding, -1)


def _is_change() -> Column:
    return F.col("usable") & ~F.col("copied")


def _is_row() -> Column:
    return F.col("usable") & F.col("copied")


def _of_change(name: str) -> Column:
    return F.when(_is_change(), F.col(name))
