"""Offsets as a Kafka client tells them: numbers from 0 on, or none, which is not an error of its own to the client.

librdkafka answers with -1001 where a broker did not tell in time, and gives no error with it. Taken as a number it is
before all others: a topic would have lost its messages, or kept all of them. So whatever is told passes through here.
That an offset is not known may pass: it is raised as an error of the client's that is worth another try.
"""

from __future__ import annotations

from confluent_kafka import KafkaError, KafkaException

__all__ = ["told_offset", "told_watermarks"]


def told_offset(offset: int | None) -> int:
    """Return an offset that a client told; `KafkaException` where it is none."""
    if offset is None or offset < 0:
        raise KafkaException(KafkaError(KafkaError.OFFSET_NOT_AVAILABLE, f"the broker told no offset ({offset})"))
    return int(offset)


def told_watermarks(watermarks: tuple[int, int] | None) -> tuple[int, int]:
    """Return where a partition begins and ends, as a client told it; `KafkaException` where it did not tell both."""
    low, high = watermarks or (None, None)
    return told_offset(low), told_offset(high)
