"""ENVELOPE DEBEZIUM: changes with the row before and after them, each exactly once, from a state of fixed size.

::

    messages ──▶ records ──▶ usable? ──▶ new, replayed or out of order? ──▶ rows there? ──▶ images
                    │           │                    │       ▲                  │
                    │           └────────────────────┼───────┼──────────────────┴─────────▶ refused
                    └ tombstones: dropped            ▼       │
                                                   state (and keys of the snapshot while it lasts)

What makes it exact is in `penstock.envelopes.replays`; what must hold for that is checked here and in
`penstock.envelopes.upstream`, and each refusal says the way out: records with keys, ``before`` and ``after``, of
Postgres or MySQL, from a recent Debezium, not compacted, and in order but for what Debezium repeats when it starts
anew.

The state counts what was refused as read: a record that is refused is refused once, and its replay is a replay.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from penstock.envelopes.debezium_records import RecordType, missing_row, opened, record_type, unknown_op
from penstock.envelopes.debezium_state import DebeziumState
from penstock.envelopes.debezium_upsert import truncate_refused
from penstock.envelopes.messages import Enveloped, enveloped, image, judged
from penstock.envelopes.placeholders import unavailable
from penstock.envelopes.replays import followed, progress
from penstock.envelopes.shape import Shape, contradiction, key_problem, quoted
from penstock.envelopes.upstream import event_time, in_snapshot, upstream_position, upstream_problem
from penstock.errors import UsageError
from penstock.model import Image

__all__ = ["Deduplicated", "debezium"]

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
    """The messages, each held against what was before it (`penstock.envelopes.replays`)."""
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
