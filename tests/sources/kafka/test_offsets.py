"""Offsets that are none: what a client tells where a broker stalled is asked for again, and never taken as a number."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import OFFSET_INVALID, KafkaError, KafkaException, TopicPartition, Uuid
from confluent_kafka.admin._listoffsets import EarliestSpec, OffsetSpec

from penstock.errors import TransientError
from penstock.kafka_offsets import told_offset, told_watermarks
from penstock.sources.kafka import topic_client, topic_offsets
from penstock.sources.kafka.sql_options import KafkaSqlOptions
from penstock.sources.kafka.topic_client import TopicClient
from penstock.sources.kafka.topic_offsets import Observed, TopicsClient
from penstock.sources.kafka.topic_start import Start
from penstock.sources.kafka.with_options import Beginning, KafkaWithOptions

WHAT = KafkaSqlOptions.given(broker="127.0.0.1:1", topic="t", value_format="bytes")
HOW = KafkaWithOptions.given()


class Stalled:
    """A client of a topic with two partitions, from 3 to 5; of some answers something is missing."""

    def __init__(self, missing: Iterable[str], times: int) -> None:
        self.missing, self.times = set(missing), times

    def told(self, what: str, offset: int) -> int:
        """Tell an offset, or none where that is to be missing, so many times."""
        if what not in self.missing or self.times == 0:
            return offset
        self.times -= 1
        return OFFSET_INVALID

    # -- of an admin client -----------------------------------------------------------------------------------------

    def describe_topics(self, _: object, **__: Any) -> dict[str, Future[Any]]:
        return {"t": done(SimpleNamespace(topic_id=Uuid(1, 1), partitions=[0, 1]))}

    def list_offsets(self, asked: Mapping[TopicPartition, OffsetSpec], **_: Any) -> dict[TopicPartition, Future[Any]]:
        def offset(place: TopicPartition, which: OffsetSpec) -> int:
            first = isinstance(which, EarliestSpec)
            return self.told(f"{'low' if first else 'high'} {place.partition}", 3 if first else 5)

        return {place: done(SimpleNamespace(offset=offset(place, which))) for place, which in asked.items()}

    def __exit__(self, *_: object) -> None:
        pass

    # -- of a consumer ----------------------------------------------------------------------------------------------

    def list_topics(self, *_: object, **__: Any) -> Any:
        return SimpleNamespace(topics={"t": SimpleNamespace(error=None, partitions=[0, 1])})

    def get_watermark_offsets(self, place: TopicPartition, **_: Any) -> tuple[int, int]:
        return self.told(f"low {place.partition}", 3), self.told(f"high {place.partition}", 5)

    def offsets_for_times(self, asked: list[TopicPartition], **_: Any) -> list[TopicPartition]:
        return [TopicPartition("t", place.partition, self.told(f"at {place.partition}", 4)) for place in asked]

    def close(self) -> None:
        pass

    # -- of both ----------------------------------------------------------------------------------------------------

    def poll(self, _: float) -> None:
        pass


def done(answer: Any) -> Future[Any]:
    asked: Future[Any] = Future()
    asked.set_result(answer)
    return asked


def looked(monkeypatch: pytest.MonkeyPatch, missing: str, times: int, patience: float) -> Observed | None:
    monkeypatch.setattr(topic_offsets, "AdminClient", lambda _: Stalled([missing], times))
    with TopicsClient(WHAT, HOW, "s", patience=patience) as looking:
        return looking.look(["t"])["t"]


def settled(monkeypatch: pytest.MonkeyPatch, start: Start, missing: str, times: int, patience: float) -> list[int]:
    monkeypatch.setattr(topic_client, "Consumer", lambda _: Stalled([missing], times))
    with TopicClient(WHAT, HOW, "s", "t", patience=patience) as settling:
        return settling.settled(start)


@pytest.mark.parametrize("missing", ["low 0", "low 1", "high 0", "high 1"])
def test_a_look_at_topics(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = looked(monkeypatch, missing, 3, 60.0)
    assert found is not None
    assert (found.starts, found.ends) == ((3, 3), (5, 5))
    with pytest.raises(TransientError, match="told no offset"):
        looked(monkeypatch, missing, -1, 0.0)


@pytest.mark.parametrize(
    ("start", "missing", "offsets"),
    [
        (Start(), "low 0", [3, 3]),
        (Start(), "high 1", [3, 3]),
        (Start(others=Beginning.LATEST), "low 1", [5, 5]),
        (Start(others=Beginning.LATEST), "high 0", [5, 5]),
        (Start(moment_ms=1), "at 1", [4, 4]),
    ],
)
def test_where_reading_begins(start: Start, missing: str, offsets: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    assert settled(monkeypatch, start, missing, 3, 60.0) == offsets
    with pytest.raises(TransientError, match="told no offset"):
        settled(monkeypatch, start, missing, -1, 0.0)


def test_an_error_of_one_partition(monkeypatch: pytest.MonkeyPatch) -> None:
    """It comes with the answer, beside an offset that means something else."""

    def failed(_: Stalled, asked: list[TopicPartition], **__: Any) -> list[Any]:
        error = KafkaError(KafkaError.LEADER_NOT_AVAILABLE)
        return [SimpleNamespace(partition=place.partition, offset=-1, error=error) for place in asked]

    monkeypatch.setattr(Stalled, "offsets_for_times", failed)
    with pytest.raises(TransientError, match="Leader not available"):
        settled(monkeypatch, Start(moment_ms=1), "", 0, 0.0)


@pytest.mark.parametrize("offset", [OFFSET_INVALID, -1, -2, -1000, None])
def test_no_number_below_zero_is_an_offset(offset: int | None) -> None:
    with pytest.raises(KafkaException, match="told no offset"):
        told_offset(offset)


def test_watermarks_are_told_both_or_not_at_all() -> None:
    assert told_offset(0) == 0
    assert told_watermarks((0, 7)) == (0, 7)
    for answer in ((0, OFFSET_INVALID), (OFFSET_INVALID, 7), None):
        with pytest.raises(KafkaException, match="told no offset"):
            told_watermarks(answer)
