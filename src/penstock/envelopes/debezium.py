"""ENVELOPE DEBEZIUM: changes with the row before and after, each exactly once, from a state of fixed size.

::

    messages ──▶ records ──▶ usable? ──▶ new, replayed or out of order? ──▶ rows present? ──▶ images
                    │           │                    │       ▲                  │
                    │           └────────────────────┼───────┼──────────────────┴─────────▶ rejected
                    └ tombstones: dropped            ▼       │
                                                   state (and keys of the snapshot until it ends)

The exactly-once argument is below. Its preconditions are checked here and in `penstock.envelopes.upstream_positions`,
and each rejected record names a fix: records must have keys, ``before`` and ``after``, come from Postgres or MySQL and
a recent Debezium version, must not be compacted, and must be in order except for those that Debezium repeats after a
restart.

The state counts rejected records as read: a record is rejected once, and its replay is an ordinary replay.

**State.** ENVELOPE DEBEZIUM keeps one `Progress` per partition between batches: how far the upstream log was read.

Its size does not depend on the number of records read: a position, the keys at exactly that position (two if a key
changed, at most a page of rows after a COPY), a time and a flag. The keys of an initial snapshot are not part of it:
until the snapshot ends, they are the keys of the table built from the records. If the state is committed atomically
with that table, it is sufficient to resume. Without a state, a reader starts with ``DebeziumState()`` and an empty
table, which is exact as well.

**Deduplication** decides which Debezium records are new, which are replays, and which are out of order.

Debezium commits its offset periodically, and after a restart it writes everything after that offset again. So a
partition looks like this, by upstream positions::

    snapshot          changes                    replay               changes
    S S S S S S S  │  1 2 3 4 5 6 7  │ (restart) 4 5 6 7  │           8 9 …

- **A change** is new if its position is above all earlier ones, or equals the highest one with a key not seen there.
- **A replay is complete**: it reaches the highest position before anything new follows. If a new position follows one
  below the highest, a record was out of order and was dropped, so the following record is rejected.
- **A replay is old**: a record below the highest position that is later, by the clock of the database, than all records
  read so far was never read. Positions started over (another server), and the record is rejected.
- **A snapshot row** is new if its key was not seen yet. After the first change of a partition, no snapshot row is new.
- **A second snapshot**, at another position, does not show which rows were deleted since the first one: its rows are
  rejected.

All of this is computed by window functions over one partition in offset order, from the previous state and, until the
snapshot ends, from the snapshot's keys. A record is compared only with records before it, so batches can end anywhere.

Partitions are independent. If partitions are added to a topic and Debezium then repeats earlier records, some of them
land in another partition and count as new: `penstock.envelopes.retractions` detects them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pyspark.sql import Column, DataFrame, Window, WindowSpec
from pyspark.sql import functions as F

from penstock.envelopes.debezium_records import (
    RecordType,
    missing_after_problem,
    op_problem,
    record_type,
    with_record_fields,
)
from penstock.envelopes.messages import Enveloped, enveloped, image, with_problem
from penstock.envelopes.shape import Shape, key_mismatch_problem, key_problem, placeholder_problem, quoted
from penstock.envelopes.upsert import emptied, truncate_problem
from penstock.envelopes.upstream_positions import event_time, in_snapshot, upstream_position, upstream_problem
from penstock.errors import DefiniteError, UsageError
from penstock.model import Image

__all__ = ["DebeziumState", "Deduplicated", "Progress", "debezium", "progress", "with_replays"]

_KEY_TEXT = {
    "timeZone": "UTC",
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}
_FULL = (
    "ALTER TABLE … REPLICA IDENTITY FULL (Postgres), binlog_row_image = FULL (MySQL), or use ENVELOPE DEBEZIUM UPSERT"
)


@dataclass(frozen=True)
class Deduplicated(Enveloped):
    """The changes that messages make, and the state to store for the messages after them."""

    known: DataFrame
    """The messages, each compared with those before it (see the module)."""
    before: DebeziumState

    @cached_property
    def state(self) -> DebeziumState:
        """The state to commit atomically with the images. The first access runs a Spark job."""
        return self.before.then(progress(self.known))


def debezium(messages: DataFrame, shape: Shape, state: DebeziumState, rows: DataFrame | None = None) -> Deduplicated:
    """Return the images of the new records; `shape` comes from `debezium_shape`.

    In each partition, `messages` must follow those that led to `state`. During an initial snapshot, `rows` of the table
    built from those messages show which snapshot rows were already read; otherwise they are not needed. Check removed
    rows against the table with `penstock.envelopes.retractions`.
    """
    types = record_type(messages)
    _reject_unsupported(types)
    if state.has_open_snapshot and rows is None:
        message = "a state within a snapshot requires the rows of that snapshot"
        raise UsageError(message, "Start over with DebeziumState() and an empty table.")
    seen = _seen(rows, shape) if rows is not None and state.has_open_snapshot else None
    known = with_replays(_records(messages, types, shape), state, seen)
    checked = with_problem(
        known, F.col("disorder"), F.when(F.col("usable") & ~F.col("replayed"), _row_problem(messages, types, shape))
    )
    made = enveloped(
        checked.filter(F.col("problem").isNotNull() | F.col("usable") & ~F.col("replayed")), _changes(shape)
    )
    return Deduplicated(made.results, known, state)


def _records(messages: DataFrame, types: RecordType, shape: Shape) -> DataFrame:
    """Return messages as records with their upstream position, or with a problem if it cannot be determined."""
    assert types.source is not None
    whole_table = F.coalesce(F.col("op") == "t", F.lit(False))
    problems = [op_problem(), F.when(~whole_table, key_problem(F.col("key"), shape)), upstream_problem(types.source)]
    about_rows = ~F.col("tombstone") & ~F.col("skipped")
    record = [F.when(about_rows, problem) for problem in problems]
    checked = with_problem(with_record_fields(messages), *record)
    return checked.withColumns(
        {
            "usable": F.col("problem").isNull() & about_rows,
            "copied": F.coalesce(in_snapshot(types.source), F.lit(False)),
            "position": F.coalesce(upstream_position(types.source), F.lit("")),
            "digest": _digest(F.col("key")),
            "time": event_time(types.source),
        }
    )


def _row_problem(messages: DataFrame, types: RecordType, shape: Shape) -> Column:
    """Return the problem of a new record that lacks a row."""
    op, before, after = F.col("op"), F.col("before"), F.col("after")
    no_before = F.when(op.isin("u", "d") & before.isNull(), F.lit(f"the record has no 'before' row: set {_FULL}"))
    names = types.after.names
    return F.coalesce(
        truncate_problem(messages),
        missing_after_problem(),
        no_before,
        key_mismatch_problem(F.col("key"), F.when(op == "d", before).otherwise(after), shape, names),
        F.when(op != "d", placeholder_problem(after, types.after)),
    )


def _changes(shape: Shape) -> Column:
    op, before, after = F.col("op"), shape.value_row(F.col("before")), shape.value_row(F.col("after"))
    changed = F.array(image(Image.BEFORE, before), image(Image.UPDATED, after))
    return (
        F.when(op == "u", changed)
        .when(op == "d", F.array(image(Image.DELETED, before)))
        .when(op == "t", emptied(shape))
        .otherwise(F.array(image(Image.INSERTED, after)))
    )


def _seen(rows: DataFrame, shape: Shape) -> DataFrame:
    """Return the digests of the keys of a table."""
    return rows.select(_digest(F.struct(*(F.col(quoted(name)).alias(name) for name in shape.key))).alias("digest"))


def _digest(key: Column) -> Column:
    return F.coalesce(F.md5(F.to_json(key, _KEY_TEXT)), F.lit(""))


def _reject_unsupported(types: RecordType) -> None:
    """Raise `UsageError` if records of these types cannot be distinguished from their replays."""
    lacking = [name for name, kind in (("before", types.before), ("source", types.source)) if kind is None]
    if lacking:
        message = f"ENVELOPE DEBEZIUM requires the field {lacking[0]!r}, which records of the topic do not have"
        raise UsageError(message, "Use ENVELOPE DEBEZIUM UPSERT.")
    apart = [name for name in types.key.names if name not in types.after.names]
    if apart:
        message = f"key field {apart[0]!r} is not a column of the row: the key is not the primary key"
        raise UsageError(
            message, "Configure Debezium to write the primary key as key, or use ENVELOPE DEBEZIUM UPSERT."
        )
    if types.before is not None and types.before.names != types.after.names:
        message = "records of the topic have different fields in 'before' and 'after'"
        raise UsageError(message, "Write the same columns to both, or use ENVELOPE DEBEZIUM UPSERT.")


_FROZEN = ConfigDict(frozen=True, strict=True, extra="forbid")
_POSITION = r"^\d{40}$"


class Progress(BaseModel):
    """The progress of one partition. Its fields are facts about the records read so far, and can be merged."""

    model_config = _FROZEN

    snapshot: str | None = Field(default=None, pattern=r"^(\d{40})?$")
    """The position of the initial snapshot; empty if it has none, None if no snapshot row was read."""
    highest: str | None = Field(default=None, pattern=_POSITION)
    """The highest position of a change; None until the first change, which ends the snapshot in this partition."""
    at_highest: tuple[str, ...] = ()
    """Digests of the keys of changes at that position, sorted."""
    latest: int | None = None
    """The latest time of a change, in milliseconds."""
    behind: bool = False
    """Whether the last change is below the highest position: a replay is not complete."""

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
    def has_open_snapshot(self) -> bool:
        """Whether a partition has rows of the initial snapshot and no change yet."""
        return any(one.snapshot is not None and one.highest is None for one in self.partitions.values())

    def then(self, read: Iterable[tuple[int, Progress]]) -> DebeziumState:
        """Return the state after more records, given the progress they make per partition."""
        partitions = dict(self.partitions)
        for number, progress in read:
            partitions[number] = partitions.get(number, Progress()).then(progress)
        return DebeziumState(partitions=dict(sorted(partitions.items())))

    def to_json(self) -> str:
        """Return the state as JSON."""
        return self.model_dump_json()

    @classmethod
    def from_json(cls, text: str) -> DebeziumState:
        """Parse the JSON of `to_json`; raise `DefiniteError` for anything else."""
        try:
            return cls.model_validate_json(text)
        except ValidationError:
            message = "could not parse the stored state of a Debezium topic"
            raise DefiniteError(message, "Read the topic from the beginning into an empty table.") from None


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
_LATE = "the record is newer than records at higher positions: the server changed, or its log was reset"
_GAP = "an earlier record was out of order and was lost"
_SECOND_SNAPSHOT = "the record belongs to a second snapshot, which does not show rows deleted since the first"
_NEW_TOPIC = "have Debezium write a new topic, and read that one"


def with_replays(records: DataFrame, state: DebeziumState, seen: DataFrame | None) -> DataFrame:
    """Return records with ``replayed``, ``disorder`` (a problem, or null) and the columns that `progress` needs.

    Records have ``usable`` (whether the record counts), ``copied`` (a snapshot row), ``position``, ``digest`` of the
    key, ``time``, ``partition`` and ``offset``. `seen` has the ``digest`` of each snapshot row so far.
    """
    frame = records.join(F.broadcast(_known(records, state)), "partition", "left")
    frame = _with_steps(_with_earlier(_with_seen(frame, seen)))
    return frame.withColumns({"replayed": _replayed(), "disorder": _disorder()})


def progress(records: DataFrame) -> Iterator[tuple[int, Progress]]:
    """Yield the progress of each partition after records of `with_replays`. Runs one job, one row per partition."""
    top = F.max(_of_change("position")).over(Window.partitionBy("partition"))
    at_top = F.when(_is_change() & (F.col("position") == F.col("top")), F.col("digest"))
    by_partition = records.withColumn("top", top).groupBy("partition")
    facts = by_partition.agg(
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
    """Add the highest position and latest time of earlier changes, and how often the record occurred so far."""
    same = Window.partitionBy("partition", "usable", "copied", "position", "digest").orderBy("offset")
    return frame.withColumns(
        {
            "highest": F.greatest("was_highest", F.max(_of_change("position")).over(_earlier())),
            "latest": F.greatest("was_latest", F.max(_of_change("time")).over(_earlier())),
            "repetition": F.row_number().over(same),
        }
    )


def _with_steps(frame: DataFrame) -> DataFrame:
    """Add the step of a change (1: up, 0: same, -1: back), whether the one before went back, and the snapshot."""
    step = F.when(F.col("highest").isNull() | (F.col("position") > F.col("highest")), 1)
    step = step.when(F.col("position") == F.col("highest"), 0).otherwise(-1)
    first = F.when(_is_row() & F.col("highest").isNull(), F.col("position"))
    so_far = _order().rowsBetween(Window.unboundedPreceding, Window.currentRow)
    snapshot = F.coalesce("was_snapshot", F.first(first, ignorenulls=True).over(so_far))
    frame = frame.withColumns({"step": F.when(_is_change(), step), "snapshot": snapshot})
    back = F.last(F.col("step") < 0, ignorenulls=True).over(_earlier())
    return frame.withColumn("behind", F.coalesce(back, "was_behind", F.lit(False)))


def _replayed() -> Column:
    """Return whether a record was read before."""
    at_highest = (F.col("position") == F.col("was_highest")) & F.array_contains("was_at", F.col("digest"))
    repeated = F.col("repetition") > 1
    change = (F.col("step") < 0) | repeated | F.coalesce(at_highest, F.lit(False))
    row = F.col("highest").isNotNull() | repeated | F.col("seen")
    return F.when(_is_change(), change).when(_is_row(), row).otherwise(False)


def _disorder() -> Column:
    """Return the problem of a record at a wrong place in the topic."""
    late = _is_change() & (F.col("step") < 0) & (F.col("time") > F.col("latest"))
    gap = _is_change() & (F.col("step") > 0) & F.col("behind")
    second = _is_row() & ~F.col("position").eqNullSafe(F.col("snapshot"))
    problem = F.when(late, F.lit(f"{_LATE}: {_NEW_TOPIC}")).when(gap, F.lit(f"{_GAP}: {_NEW_TOPIC}"))
    return problem.when(second, F.lit(f"{_SECOND_SNAPSHOT}: {_NEW_TOPIC}"))


def _known(records: DataFrame, state: DebeziumState) -> DataFrame:
    """Return the state as a DataFrame. Built from Arrow, it is a local relation without a Python worker."""
    rows = [
        (number, one.snapshot, one.highest, list(one.at_highest), one.latest, one.behind)
        for number, one in state.partitions.items()
    ]
    columns = [list(column) for column in zip(*rows, strict=True)] or [[] for _ in _STATE]
    arrays = [pa.array(column, field.type) for column, field in zip(columns, _STATE, strict=True)]
    return records.sparkSession.createDataFrame(pa.Table.from_arrays(arrays, schema=_STATE))


def _with_seen(frame: DataFrame, seen: DataFrame | None) -> DataFrame:
    """Mark snapshot rows that were read before; only the known keys that occur in the batch are joined."""
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
