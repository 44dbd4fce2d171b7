"""The beginning of a log: its first record. Of two that are written at once, the first counts."""

from __future__ import annotations

import time
from contextlib import closing

from confluent_kafka import KafkaException, TopicPartition

from penstock.changelog.kafka.clients import Place, cause_of, consumer, explained, pinning_producer
from penstock.changelog.kafka.delivery import Delivery
from penstock.changelog.kafka.records import Created, messages
from penstock.errors import DefiniteError
from penstock.positions import Lsn

__all__ = ["is_begun", "write_beginning"]

_PATIENCE = 30.0
_LIMIT = 1000


def is_begun(place: Place) -> bool:
    """Say whether there is a first record, or was one: an index that was cut is not empty either."""
    deadline = time.monotonic() + _PATIENCE
    with closing(consumer(place)) as client:
        while True:
            try:
                return bool(client.get_watermark_offsets(TopicPartition(place.index, 0), timeout=5)[1] > 0)
            except KafkaException as error:  # a topic that was just made is known before it has a leader
                told = explained(place, "found", cause_of(error))
                if time.monotonic() > deadline or isinstance(told, DefiniteError):
                    raise told from error
                time.sleep(0.05)


def write_beginning(place: Place, start: Lsn, now: int) -> None:
    """Write the first record of a log whose history begins after `start`."""
    client, told = pinning_producer(place), Delivery()
    [value] = messages(Created(0, start, now), _LIMIT)
    try:
        client.produce(place.index, value, partition=0, on_delivery=told)
        client.flush(_PATIENCE)
        told.offset()
    except KafkaException as error:
        raise explained(place, "made", cause_of(error)) from error
