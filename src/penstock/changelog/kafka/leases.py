"""Pins are written by readers: single records, each for itself, in between those of the writer."""

from __future__ import annotations

import time

from confluent_kafka import KafkaException, Producer

from penstock.changelog.kafka.clients import Delivery, Place, cause_of, explained, pinning_producer
from penstock.changelog.kafka.index import Index
from penstock.changelog.kafka.records import Pinned, messages
from penstock.positions import Lsn

__all__ = ["PinWriter"]

_PATIENCE = 60.0
_LIMIT = 1_000_000


class PinWriter:
    """Writes pins; its client is made for the first one."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._client: Producer | None = None

    def write(self, reader: str, at: Lsn | None, seconds: float | None, index: Index) -> None:
        """Write a pin and return when the brokers have it; `index` knows it at once, behind an open transaction too."""
        expires = None if seconds is None else time.time_ns() // 1000 + round(seconds * 1e6)
        pin = Pinned(reader, None if at is None else int(at), expires)
        index.apply_pin(pin, self._delivered(pin))

    def _delivered(self, pin: Pinned) -> int:
        told = Delivery()
        [value] = messages(pin, _LIMIT)
        try:
            self._client = self._client or pinning_producer(self._place)
            self._client.produce(self._place.index, value, partition=0, on_delivery=told)
            self._client.flush(_PATIENCE)
            return told.offset()
        except KafkaException as failed:
            self._client = None
            raise explained(self._place, "pinned", cause_of(failed)) from failed
