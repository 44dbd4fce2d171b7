"""Where reading a topic begins, settled once: as a value to be stored, in the words of either client.

``latest`` and a span before now mean another place at every moment. Whoever makes a source settles its start once and
stores that; what is read after the start goes on from stored positions.
"""

from __future__ import annotations

import json
from datetime import datetime

from pydantic import BaseModel, ConfigDict

from penstock.errors import DefiniteError
from penstock.sources.kafka.with_options import Beginning, KafkaWithOptions

__all__ = ["EARLIEST", "LATEST", "Start", "start_of"]

EARLIEST, LATEST = -2, -1
"""Stand in the place of an offset; Spark and librdkafka have the same numbers."""


class Start(BaseModel):
    """A moment in milliseconds since 1970, or an offset for each of the first partitions; `others` for the rest."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    moment_ms: int | None = None
    offsets: tuple[int, ...] = ()
    others: Beginning = Beginning.EARLIEST

    def offsets_of(self, topic: str, partitions: int) -> list[int]:
        """Return an offset for each partition of a topic that has so many, `EARLIEST` and `LATEST` among them."""
        if len(self.offsets) > partitions:
            message = f"start_offset has {len(self.offsets)} offsets, and the topic {topic} has {partitions} partitions"
            raise DefiniteError(message, "Give at most one for each partition.")
        rest = EARLIEST if self.others is Beginning.EARLIEST else LATEST
        return [*self.offsets, *[rest] * (partitions - len(self.offsets))]

    def spark_options(self, topic: str, partitions: int) -> dict[str, str]:
        """Return the options of Spark's reader that begin here."""
        if self.moment_ms is not None:  # a partition without a message so late begins at its end
            return {"startingTimestamp": str(self.moment_ms), "startingOffsetsByTimestampStrategy": "latest"}
        if not self.offsets:
            return {"startingOffsets": self.others.value}
        by_partition = {str(number): offset for number, offset in enumerate(self.offsets_of(topic, partitions))}
        return {"startingOffsets": json.dumps({topic: by_partition})}


def start_of(options: KafkaWithOptions, now: datetime) -> Start:
    """Settle where reading begins; `now` is what a span before now is before."""
    if options.start_timestamp is not None:
        return Start(moment_ms=_milliseconds(datetime.fromisoformat(options.start_timestamp)))
    if options.kafka_time_offset is not None:
        before = options.kafka_time_offset < 0
        return Start(moment_ms=max(0, options.kafka_time_offset + (_milliseconds(now) if before else 0)))
    if isinstance(options.start_offset, tuple):
        return Start(offsets=options.start_offset)
    return Start(others=options.start_offset or Beginning.EARLIEST)


def _milliseconds(moment: datetime) -> int:
    return round(moment.timestamp() * 1000)
