"""Messages that a table cannot go on with: which became visible first, and what is said of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from pyspark.sql import functions as F

from penstock.errors import TableError
from penstock.positions import Lsn
from penstock.sources.kafka.ticks import tick_of
from penstock.sources.kafka.topic_log import TopicLog
from penstock.sources.kafka.topic_table import TopicTable
from penstock.spark.topics.changes import Changes

__all__ = ["Fault", "ended_by", "first_faults", "how_to_go_on"]


class Fault(NamedTuple):
    """A message that a table cannot go on with."""

    partition: int
    offset: int
    problem: str


def first_faults(changes: Changes) -> list[Fault]:
    """Return the first refused message of each partition."""
    if changes.few is not None and changes.found.refused.isEmpty():  # which costs nothing there
        return []
    refused = changes.found.refused.groupBy("partition")
    first = refused.agg(F.min("offset").alias("offset"), F.min_by("problem", "offset").alias("problem")).collect()
    return [Fault(row["partition"], row["offset"], row["problem"]) for row in first]


def ended_by(
    log: TopicLog, table: TopicTable, after: Lsn, upto: Lsn, faults: Sequence[Fault], remedy: str
) -> TableError:
    """Return the error of a table that ends in (after, upto], at the first of some faults there."""
    places = (
        np.array([fault.partition for fault in faults], np.int32),
        np.array([fault.offset for fault in faults], np.int64),
    )
    ticks = tick_of(log.bounds(table, after, upto), *places).to_numpy()
    which = min(range(len(faults)), key=lambda each: (ticks[each], faults[each].partition))
    first = faults[which]
    place = f"offset {first.offset} of partition {first.partition} of topic {table.topic.name}"
    return TableError(str(table.name), Lsn(int(ticks[which])), f"the message at {place}: {first.problem}", remedy)


def how_to_go_on(log: TopicLog, table: TopicTable) -> str:
    """Say what to do about a message at which a table ended."""
    return (
        f"To put such messages aside and go on: ALTER SOURCES {log.source} SET (on error = 'quarantine'). To read the "
        f"topic anew: ALTER SOURCES {log.source} RETRY TABLE {table.name}."
    )
