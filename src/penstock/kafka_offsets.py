"""Validation of the offsets that a Kafka client returns: a number from 0 on, or a sentinel for "unknown".

If a broker does not answer in time, librdkafka returns -1001 without an error. Used as an offset, that value is less
than all others: a topic would seem to have lost its messages, or to have kept all of them. So every offset passes
through here. A missing offset is raised as a retriable client error, because the next request may succeed.
"""

from __future__ import annotations

from confluent_kafka import KafkaError, KafkaException

__all__ = ["require_offset", "require_watermarks"]


def require_offset(offset: int | None) -> int:
    """Return an offset from the client; raise `KafkaException` if it is not a valid one."""
    if offset is None or offset < 0:
        raise KafkaException(KafkaError(KafkaError.OFFSET_NOT_AVAILABLE, f"the broker returned no offset ({offset})"))
    return int(offset)


def require_watermarks(watermarks: tuple[int, int] | None) -> tuple[int, int]:
    """Return the low and high watermark of a partition; raise `KafkaException` if one of them is missing."""
    low, high = watermarks or (None, None)
    return require_offset(low), require_offset(high)
