"""A bank, as a Debezium wrote it that was killed: followed by transactions, the sum is right at every tick."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.debezium.changes import Read, reader
from tests.debezium.conftest import Recordings
from tests.debezium.histories import ACCOUNTS, START
from tests.debezium.record import CONVERTERS
from tests.debezium.replay import Replay
from tests.sources.kafka.followed import Topics
from tests.sources.kafka.test_ticks_following import ends_of
from tests.sources.kafka.transactions.transacted import Transacted, require_sums

from penstock.formats import AvroFormat, JsonFormat, RegistryAddress, ResolvedFormat, resolve
from penstock.sources.kafka.transactions.waiting import waits_for
from penstock.testing.debezium import Converter
from penstock.testing.kafka import KafkaBroker
from penstock.testing.registry import SchemaRegistry

PARTS = 8
"""The follower is stopped and started so many times while messages come."""


def balance_by(read: Read) -> Callable[[bytes], tuple[int, int]]:
    def balance(value: bytes) -> tuple[int, int]:
        record = read(value)
        if record["op"] == "d":
            return record["before"]["id"], 0
        return record["after"]["id"], record["after"]["balance"]

    return balance


def follow(followed: Transacted, replay: Replay, broker: KafkaBroker) -> None:
    """Follow topics while they grow, and stop in between; then until all is taken."""
    size = replay.left // PARTS + 1
    while replay.left:
        before, give_up = followed.durable(), time.monotonic() + 10
        with followed.running():
            replay.write(broker, size)
            # A part may end no transaction, where Debezium repeats itself.
            followed.until(lambda before=before, end=give_up: followed.durable() > before or time.monotonic() > end)  # type: ignore[misc]
    ends = {name: ends_of(Topics(broker), name) for name in replay.names}
    followed.run_until(lambda: all(followed.upto(name) == end for name, end in ends.items()))


@pytest.mark.parametrize(
    "converter",
    [
        pytest.param(each, id=each.name.lower(), marks=pytest.mark.deep if each is Converter.AVRO else ())
        for each in CONVERTERS["bank"]
    ],
)
def test_the_sum_is_right_at_every_tick(
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
    followed = Transacted(tmp_path, broker, replay.names, replay.metadata, formats)
    follow(followed, replay, broker)
    read = reader(converter, replay.schemas)
    assert require_sums(followed, broker, 2 * ACCOUNTS * START, balance_by(read)) > recording.kills
    assert waits_for(followed.state) is None
    positions = Counter(
        (record["source"]["lsn"], record["transaction"]["total_order"])
        for one in replay.topics[recording.tables[0]].messages
        if one.value is not None and (record := read(one.value))["transaction"] is not None
    )
    if "golden" in request.node.name:  # of a Debezium that is killed now, nobody knows whether it will
        assert max(positions.values()) > 1, "Debezium did not repeat itself"


def _format(converter: Converter, registry: str, topic: str) -> ResolvedFormat:
    if converter is Converter.AVRO:
        return resolve(AvroFormat(registry=RegistryAddress(url=registry)), subject=f"{topic}-value")
    return resolve(JsonFormat(columns="op STRING"))
