"""Which records of Debezium are new, which were there before, and which should not be where they are.

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

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql import Column, DataFrame, Window, WindowSpec
from pyspark.sql import functions as F

from penstock.envelopes.debezium_state import DebeziumState, Progress

__all__ = ["followed", "progress"]

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
