"""The start of reading a topic, resolved once: a value to store, translated for both clients.

``latest`` and a time span before now change their meaning over time. So the start is resolved once, when a source is
created, and stored; after the start, reading resumes from stored positions.

If a topic cannot be resumed, a hint names the statement that restarts its source with the current messages. The table
of a source with one topic can be read again by itself. Tables of several topics share their ticks, and those
with transaction metadata their positions: none of them can restart alone.
"""

from __future__ import annotations

import json
from datetime import datetime

from pydantic import BaseModel, ConfigDict

from penstock.errors import DefiniteError
from penstock.sources.kafka.sql_options import KafkaSqlOptions
from penstock.sources.kafka.with_options import KafkaWithOptions, StartPoint

__all__ = ["EARLIEST", "LATEST", "Start", "can_restart_table", "restart_hint", "start_of"]


def can_restart_table(what: KafkaSqlOptions) -> bool:
    """Return whether the table of a source can be read again without recreating the source."""
    return len(what.names()) == 1 and what.envelope.transaction_metadata_topic is None


def restart_hint(source: str, what: KafkaSqlOptions) -> str:
    """Return the hint with the statements, the one that loses least first."""
    drop = f"DROP SOURCES {source}; then create it again."
    if not can_restart_table(what):
        return f"To restart with the current messages of the topics: {drop}"
    retry = f"ALTER SOURCES {source} RETRY TABLE {source};"
    return f"To restart with the current messages of the topic: {retry} If that is rejected: {drop}"


EARLIEST, LATEST = -2, -1
"""Placeholders for an offset; Spark and librdkafka use the same numbers."""


class Start(BaseModel):
    """A time in milliseconds since 1970, or an offset for each of the first partitions; `others` for the rest."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    moment_ms: int | None = None
    offsets: tuple[int, ...] = ()
    others: StartPoint = StartPoint.EARLIEST

    def offsets_of(self, topic: str, partitions: int) -> list[int]:
        """Return an offset, `EARLIEST` or `LATEST` for each partition of a topic."""
        if len(self.offsets) > partitions:
            message = f"start_offset has {len(self.offsets)} offsets, but topic {topic} has {partitions} partitions"
            raise DefiniteError(message, "Specify at most one offset per partition.")
        rest = EARLIEST if self.others is StartPoint.EARLIEST else LATEST
        return [*self.offsets, *[rest] * (partitions - len(self.offsets))]

    def spark_options(self, topic: str, partitions: int) -> dict[str, str]:
        """Return the options of Spark's reader for this start."""
        if self.moment_ms is not None:  # a partition without a message that late starts at its end
            return {"startingTimestamp": str(self.moment_ms), "startingOffsetsByTimestampStrategy": "latest"}
        if not self.offsets:
            return {"startingOffsets": self.others.value}
        by_partition = {str(number): offset for number, offset in enumerate(self.offsets_of(topic, partitions))}
        return {"startingOffsets": json.dumps({topic: by_partition})}


def start_of(options: KafkaWithOptions, now: datetime) -> Start:
    """Resolve the start; a negative time offset is relative to `now`."""
    if options.start_timestamp is not None:
        moment = _milliseconds(datetime.fromisoformat(options.start_timestamp))
        return Start(moment_ms=max(0, moment))  # Kafka has other meanings for negative timestamps
    if options.kafka_time_offset is not None:
        before = options.kafka_time_offset < 0
        return Start(moment_ms=max(0, options.kafka_time_offset + (_milliseconds(now) if before else 0)))
    if isinstance(options.start_offset, tuple):
        return Start(offsets=options.start_offset)
    return Start(others=options.start_offset or StartPoint.EARLIEST)


def _milliseconds(moment: datetime) -> int:
    return round(moment.timestamp() * 1000)
