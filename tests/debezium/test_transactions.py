"""The bank topics of a killed Debezium: captured by transactions, the sum is correct at every tick."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from tests.debezium.changes import Read, reader
from tests.debezium.conftest import Recordings
from tests.debezium.histories import ACCOUNTS, START
from tests.debezium.record import CONVERTERS
from tests.debezium.recording import Message
from tests.debezium.replay import Replay
from tests.sources.kafka.test_tick_instance import ends_of
from tests.sources.kafka.topic_capture import Topics
from tests.sources.kafka.transactions.transaction_capture import TransactionCapture, require_sums

from penstock.formats import AvroFormat, JsonFormat, RegistryAddress, ResolvedFormat, resolve
from penstock.sources.kafka.transactions.cuts import QUIET_SECONDS
from penstock.sources.kafka.transactions.wait_status import read_wait_reason
from penstock.testing.debezium import Converter
from penstock.testing.kafka import KafkaBroker
from penstock.testing.registry import SchemaRegistry

PARTS = 4
"""How many times capture is stopped and started while messages arrive."""


def balance_by(read: Read) -> Callable[[bytes], tuple[int, int]]:
    def balance(value: bytes) -> tuple[int, int]:
        record = read(value)
        if record["op"] == "d":
            return record["before"]["id"], 0
        return record["after"]["id"], record["after"]["balance"]

    return balance


def follow(capture: TransactionCapture, replay: Replay, broker: KafkaBroker, read: Read) -> None:
    """Capture growing topics with restarts; then capture until all messages are captured.

    A part ends after each snapshot, too: the second one is consistent only with later transactions.
    """
    size = len(replay.remaining) // PARTS + 1
    while replay.remaining:
        before, deadline = capture.durable(), time.monotonic() + 2 * QUIET_SECONDS
        with capture.running():
            replay.write(broker, _up_to_snapshot_end(replay.remaining[:size], read))
            # A part may complete no transaction: its messages are repeats, or a repeated snapshot.
            capture.until(lambda before=before, end=deadline: capture.durable() > before or time.monotonic() > end)  # type: ignore[misc]
    ends = {name: ends_of(Topics(broker), name) for name in replay.names}
    capture.run_until(lambda: all(capture.upto(name) == end for name, end in ends.items()))


def _up_to_snapshot_end(messages: Sequence[Message], read: Read) -> int:
    """Return the number of messages up to the last row of a snapshot; of all messages, if there is none."""
    for number, one in enumerate(messages, 1):
        if one.value is not None and read(one.value).get("source", {}).get("snapshot") == "last":
            return number
    return len(messages)


@pytest.mark.slow("the sum is read after each part of a replay, in Spark")
@pytest.mark.parametrize(
    "converter",
    [
        pytest.param(each, id=each.name.lower(), marks=pytest.mark.deep if each is Converter.AVRO else ())
        for each in CONVERTERS["bank"]
    ],
)
def test_sum_is_correct_at_every_tick(
    converter: Converter,
    recordings: Recordings,
    broker: KafkaBroker,
    registry: SchemaRegistry,
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    recording = recordings["bank"]
    replay = Replay(recording, converter, registry)
    replay.create(broker)
    formats = {topic: _format(converter, registry.url, topic) for topic in [*replay.names, replay.metadata]}
    capture = TransactionCapture(tmp_path, broker, replay.names, replay.metadata, formats)
    read = reader(converter, replay.schemas)
    follow(capture, replay, broker, read)
    assert require_sums(capture, broker, 2 * ACCOUNTS * START, balance_by(read)) > recording.kills
    assert read_wait_reason(capture.state) is None
    positions = Counter(
        (record["source"]["lsn"], record["transaction"]["total_order"])
        for one in replay.topics[recording.tables[0]].messages
        if one.value is not None and (record := read(one.value))["transaction"] is not None
    )
    if "golden" in request.node.name:  # a fresh recording may have no repeats
        assert max(positions.values()) > 1, "Debezium did not repeat messages"


def _format(converter: Converter, registry: str, topic: str) -> ResolvedFormat:
    if converter is Converter.AVRO:
        return resolve(AvroFormat(registry=RegistryAddress(url=registry)), subject=f"{topic}-value")
    return resolve(JsonFormat(columns="op STRING"))
