"""Writes the leases of readers: single records between those of the writer."""

from __future__ import annotations

import time

from confluent_kafka import KafkaException, Producer

from penstock.changelog.kafka.clients import Delivery, LogLocation, cause_of, plain_producer, translated_error
from penstock.changelog.kafka.index import Index
from penstock.changelog.kafka.records import Leased, messages
from penstock.positions import Lsn

__all__ = ["LeaseWriter"]

_TIMEOUT = 60.0
_LIMIT = 1_000_000


class LeaseWriter:
    """Writes leases; creates its client for the first one."""

    def __init__(self, location: LogLocation) -> None:
        self._location = location
        self._client: Producer | None = None

    def write(self, reader: str, at: Lsn | None, seconds: float | None, index: Index) -> None:
        """Write a lease and wait until the brokers have it.

        `index` includes the lease immediately, even if an open transaction precedes it in the topic.
        """
        expires = None if seconds is None else time.time_ns() // 1000 + round(seconds * 1e6)
        lease = Leased(reader, None if at is None else int(at), expires)
        index.apply_lease(lease, self._delivered(lease))

    def _delivered(self, lease: Leased) -> int:
        delivery = Delivery()
        [value] = messages(lease, _LIMIT)
        try:
            self._client = self._client or plain_producer(self._location)
            self._client.produce(self._location.index, value, partition=0, on_delivery=delivery)
            self._client.flush(_TIMEOUT)
            return delivery.offset()
        except KafkaException as failed:
            self._client = None
            raise translated_error(self._location, "written", cause_of(failed)) from failed
