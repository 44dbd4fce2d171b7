"""Where history may begin, and the removal of what lies before.

First the ``state`` record that moves `valid` is written, then the topics are cut (DeleteRecords): whoever reads in
between finds more than was promised, never less. A cut that fails is made up for by the next one. The brokers free
whole segments, so the disk follows somewhat later.
"""

from __future__ import annotations

from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from penstock.changelog.kafka.clients import DEFINITE, Place, admin, cause_of, explained
from penstock.changelog.kafka.index import Index
from penstock.changelog.kafka.moments import position_at
from penstock.changelog.kafka.payloads import Payloads

__all__ = ["Cutter", "next_valid"]

_PATIENCE = 30.0


def next_valid(index: Index, payloads: Payloads, since: int, now: int) -> int:
    """Return how far `valid` may move: to a time, and not beyond a pin."""
    wanted = position_at(index, payloads, since)
    if wanted is None:
        return index.valid
    return max(index.valid, min(wanted, *(pin.at for pin in index.pins(now)), index.durable))


class Cutter:
    """Removes what lies before given offsets of index and data; once for each."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._client: AdminClient | None = None
        self._cut = (0, 0)

    def cut(self, index: int, data: int) -> None:
        """Let both topics begin at these offsets."""
        if (index, data) == self._cut:
            return
        if self._client is None:
            self._client = admin(self._place)
        wanted = [TopicPartition(self._place.index, 0, index), TopicPartition(self._place.data, 0, data)]
        try:
            for done in self._client.delete_records(wanted, request_timeout=_PATIENCE).values():
                done.result()
            self._cut = (index, data)
        except KafkaException as error:
            if cause_of(error).code() in DEFINITE:
                raise explained(self._place, "shortened", cause_of(error)) from error
