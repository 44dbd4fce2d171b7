"""What consumers see in the topics of sinks."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass

from confluent_kafka import Consumer
from tests.topic_reader import read_topic

from penstock.catalog.states import SinkState
from penstock.catalog.store import Catalog
from penstock.testing.waiting import PATIENCE, until

__all__ = ["Committed", "committed", "topic_names", "wait_sink"]


@dataclass(frozen=True)
class Committed:
    """A committed message."""

    partition: int
    key: bytes | None
    value: bytes | None


def committed(broker: str, topic: str, isolation: str = "read_committed") -> list[Committed]:
    """Return the committed messages of a topic, each partition in order; none if the topic does not exist."""
    found = read_topic(broker, topic, isolation)
    return [Committed(message.partition() or 0, message.key(), message.value()) for message in found]


def topic_names(broker: str, prefix: str) -> list[str]:
    """Return the topics whose names begin with a prefix."""
    settings = {"bootstrap.servers": broker, "group.id": "unused"}
    with closing(Consumer(settings)) as reader:
        return sorted(name for name in reader.list_topics(timeout=PATIENCE).topics if name.startswith(prefix))


def wait_sink(catalog: Catalog, sink: str) -> None:
    """Wait until a sink has started; raise its error if it has failed. Other errors are retried."""

    def is_started() -> bool:
        found = catalog.sinks.get(sink)
        assert found is not None
        assert found.state is not SinkState.FAILED, found.error
        return bool(found.started)

    until(is_started, f"sink {sink} to start")
