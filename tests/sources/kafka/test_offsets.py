"""Invalid offsets: a client returns them when a broker stalls; they are requested again, never used as numbers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import OFFSET_INVALID, KafkaError, KafkaException, TopicPartition, Uuid
from confluent_kafka.admin._listoffsets import EarliestSpec, OffsetSpec

from penstock.errors import TransientError
from penstock.kafka_offsets import require_offset, require_watermarks
from penstock.sources.kafka import topic_admin, topic_consumer
from penstock.sources.kafka.sql_options import KafkaSqlOptions
from penstock.sources.kafka.topic_admin import TopicAdmin, TopicState
from penstock.sources.kafka.topic_consumer import TopicConsumer
from penstock.sources.kafka.topic_start import Start
from penstock.sources.kafka.with_options import KafkaWithOptions, StartPoint

WHAT = KafkaSqlOptions.given(broker="127.0.0.1:1", topic="t", value_format="bytes")
HOW = KafkaWithOptions.given()


class Stalled:
    """A client of a topic with two partitions, from 3 to 5; some responses have invalid offsets."""

    def __init__(self, missing: Iterable[str], times: int) -> None:
        self.missing, self.times = set(missing), times

    def offset_or_invalid(self, what: str, offset: int) -> int:
        """Return an offset, or an invalid one if it is to be missing, up to `times` times."""
        if what not in self.missing or self.times == 0:
            return offset
        self.times -= 1
        return OFFSET_INVALID

    # -- of an admin client -----------------------------------------------------------------------------------------

    def describe_topics(self, _: object, **__: Any) -> dict[str, Future[Any]]:
        return {"t": done(SimpleNamespace(topic_id=Uuid(1, 1), partitions=[0, 1]))}

    def list_offsets(
        self, requested: Mapping[TopicPartition, OffsetSpec], **_: Any
    ) -> dict[TopicPartition, Future[Any]]:
        def offset(topic_partition: TopicPartition, which: OffsetSpec) -> int:
            first = isinstance(which, EarliestSpec)
            return self.offset_or_invalid(
                f"{'low' if first else 'high'} {topic_partition.partition}", 3 if first else 5
            )

        return {
            topic_partition: done(SimpleNamespace(offset=offset(topic_partition, which)))
            for topic_partition, which in requested.items()
        }

    def __exit__(self, *_: object) -> None:
        pass

    # -- of a consumer ----------------------------------------------------------------------------------------------

    def list_topics(self, *_: object, **__: Any) -> Any:
        return SimpleNamespace(topics={"t": SimpleNamespace(error=None, partitions=[0, 1])})

    def get_watermark_offsets(self, topic_partition: TopicPartition, **_: Any) -> tuple[int, int]:
        return self.offset_or_invalid(f"low {topic_partition.partition}", 3), self.offset_or_invalid(
            f"high {topic_partition.partition}", 5
        )

    def offsets_for_times(self, requested: list[TopicPartition], **_: Any) -> list[TopicPartition]:
        return [
            TopicPartition("t", topic_partition.partition, self.offset_or_invalid(f"at {topic_partition.partition}", 4))
            for topic_partition in requested
        ]

    def close(self) -> None:
        pass

    # -- of both ----------------------------------------------------------------------------------------------------

    def poll(self, _: float) -> None:
        pass


def done(response: Any) -> Future[Any]:
    requested: Future[Any] = Future()
    requested.set_result(response)
    return requested


def described_topic(monkeypatch: pytest.MonkeyPatch, missing: str, times: int, patience: float) -> TopicState | None:
    monkeypatch.setattr(topic_admin, "AdminClient", lambda _: Stalled([missing], times))
    with TopicAdmin(WHAT, HOW, "s", patience=patience) as admin:
        return admin.describe(["t"])["t"]


def resolved_offsets(
    monkeypatch: pytest.MonkeyPatch, start: Start, missing: str, times: int, patience: float
) -> list[int]:
    monkeypatch.setattr(topic_consumer, "Consumer", lambda _: Stalled([missing], times))
    with TopicConsumer(WHAT, HOW, "s", "t", patience=patience) as consumer:
        return consumer.resolve_offsets(start)


@pytest.mark.parametrize("missing", ["low 0", "low 1", "high 0", "high 1"])
def test_invalid_offsets_of_topics_are_requested_again(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = described_topic(monkeypatch, missing, 3, 60.0)
    assert found is not None
    assert (found.starts, found.ends) == ((3, 3), (5, 5))
    with pytest.raises(TransientError, match="returned no offset"):
        described_topic(monkeypatch, missing, -1, 0.0)


@pytest.mark.parametrize(
    ("start", "missing", "offsets"),
    [
        (Start(), "low 0", [3, 3]),
        (Start(), "high 1", [3, 3]),
        (Start(others=StartPoint.LATEST), "low 1", [5, 5]),
        (Start(others=StartPoint.LATEST), "high 0", [5, 5]),
        (Start(moment_ms=1), "at 1", [4, 4]),
    ],
)
def test_invalid_start_offsets_are_requested_again(
    start: Start, missing: str, offsets: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert resolved_offsets(monkeypatch, start, missing, 3, 60.0) == offsets
    with pytest.raises(TransientError, match="returned no offset"):
        resolved_offsets(monkeypatch, start, missing, -1, 0.0)


def test_error_of_one_partition_is_transient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error is part of the response, together with an offset that has another meaning."""

    def failed(_: Stalled, requested: list[TopicPartition], **__: Any) -> list[Any]:
        error = KafkaError(KafkaError.LEADER_NOT_AVAILABLE)
        return [
            SimpleNamespace(partition=topic_partition.partition, offset=-1, error=error)
            for topic_partition in requested
        ]

    monkeypatch.setattr(Stalled, "offsets_for_times", failed)
    with pytest.raises(TransientError, match="Leader not available"):
        resolved_offsets(monkeypatch, Start(moment_ms=1), "", 0, 0.0)


@pytest.mark.parametrize("offset", [OFFSET_INVALID, -1, -2, -1000, None])
def test_negative_offsets_are_rejected(offset: int | None) -> None:
    with pytest.raises(KafkaException, match="returned no offset"):
        require_offset(offset)


def test_watermarks_must_both_be_valid() -> None:
    assert require_offset(0) == 0
    assert require_watermarks((0, 7)) == (0, 7)
    for response in ((0, OFFSET_INVALID), (OFFSET_INVALID, 7), None):
        with pytest.raises(KafkaException, match="returned no offset"):
            require_watermarks(response)
