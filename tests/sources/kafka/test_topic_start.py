"""The start position of a topic, resolved once."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from penstock.errors import DefiniteError
from penstock.sources.kafka.topic_start import EARLIEST, LATEST, Start, start_of
from penstock.sources.kafka.with_options import KafkaWithOptions

NOW = datetime(1970, 1, 1, 0, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("options", "spark", "offsets"),
    [
        ({}, {"startingOffsets": "earliest"}, [EARLIEST, EARLIEST]),
        ({"start_offset": "latest"}, {"startingOffsets": "latest"}, [LATEST, LATEST]),
        ({"start_offset": (3, 4)}, {"startingOffsets": '{"t": {"0": 3, "1": 4}}'}, [3, 4]),
        ({"start_offset": 3}, {"startingOffsets": '{"t": {"0": 3, "1": -2}}'}, [3, EARLIEST]),
    ],
)
def test_offsets(options: dict[str, Any], spark: dict[str, str], offsets: list[int]) -> None:
    start = start_of(KafkaWithOptions.given(**options), NOW)
    assert start.spark_options("t", 2) == spark
    assert start.offsets_of("t", 2) == offsets
    assert Start.model_validate_json(start.model_dump_json()) == start


@pytest.mark.parametrize(
    ("options", "moment"),
    [
        ({"start_timestamp": "1970-01-01T00:00:30.5Z"}, 30_500),
        ({"start_timestamp": "1969-12-31T23:59:59.999Z"}, 0),
        ({"kafka_time_offset": 12}, 12),
        ({"kafka_time_offset": -1000}, 59_000),
        ({"kafka_time_offset": -100_000}, 0),
    ],
)
def test_start_timestamps(options: dict[str, Any], moment: int) -> None:
    start = start_of(KafkaWithOptions.given(**options), NOW)
    options_for_spark = start.spark_options("t", 2)
    assert options_for_spark == {"startingTimestamp": str(moment), "startingOffsetsByTimestampStrategy": "latest"}


def test_more_offsets_than_partitions() -> None:
    with pytest.raises(DefiniteError, match=r"3 offsets, but topic t has 2 partitions") as caught:
        Start(offsets=(1, 2, 3)).spark_options("t", 2)
    assert caught.value.hint
