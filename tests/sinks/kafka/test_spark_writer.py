"""The writer of sinks with ``delivery = 'at least once'``: its record and its errors. Spark is in `tests/engine`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from penstock.errors import DefiniteError, TransientError
from penstock.positions import Lsn
from penstock.sinks.call_record import CallRecord, RecordedCall
from penstock.sinks.kafka.spark_writer import SparkWriter
from penstock.sinks.kafka.transaction_writer import TopicMessages
from penstock.sinks.position import SinkPosition

FIRST, LAST = SinkPosition(Lsn(10)), SinkPosition(Lsn(20))
MESSAGES = [TopicMessages("orders", pa.array([b"value of a row"], pa.large_binary()))]


def failing(text: str) -> Callable[[], SparkSession]:
    def session() -> NoReturn:
        raise PySparkException(text)

    return session


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str], None]:
    """Writes messages once, with this error of Spark."""

    def attempt(text: str) -> None:
        record = CallRecord(tmp_path, "out", "shop", what="write")
        writer = SparkWriter(failing(text), record, dict, {}, name="out", started=False)
        try:
            if writer.open(1.0) is None:
                writer.write((), FIRST.to_bytes(), 1.0)
            writer.write(MESSAGES, LAST.to_bytes(), 1.0)
        finally:
            writer.close()

    return attempt


def recorded(home: Path) -> RecordedCall | None:
    record = CallRecord(home, "out", "shop")
    record.open()
    record.close()
    return record.last


def test_range_is_recorded_before_the_write(write: Callable[[str], None], tmp_path: Path) -> None:
    with pytest.raises(TransientError):
        write("x")
    assert recorded(tmp_path) == RecordedCall(FIRST, None, Lsn(20))


def test_repeated_write_waits_for_earlier_producers(
    write: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(TransientError, match="a job failed"):
        write("x")
    for _ in range(2):
        with pytest.raises(TransientError, match="waits until no message of its interrupted write can arrive"):
            write("x")
    monkeypatch.setattr("penstock.sinks.kafka.spark_writer._GIVE_UP_SECONDS", 0)
    with pytest.raises(TransientError, match="a job failed"):
        write("x")


def test_only_texts_of_the_kafka_client_are_shown(write: Callable[[str], None]) -> None:
    with pytest.raises(TransientError) as caught:
        write("Python worker failed: value of a row")
    assert "value of a row" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "kind", "message"),
    [
        ("errors.RecordTooLargeException: The message is 9 bytes", DefiniteError, "The message is 9 bytes"),
        ("errors.TopicAuthorizationException: Not authorized", DefiniteError, "Not authorized"),
        ("errors.TimeoutException: Expiring 1 record(s)", TransientError, "Expiring 1 record"),
        ("KafkaException", TransientError, "KafkaException"),
    ],
)
def test_errors_of_the_kafka_client(
    write: Callable[[str], None], text: str, kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        write(f"Job aborted: Lost task 0.0: org.apache.kafka.common.{text}\n  at org.apache.spark.X")


def test_session_without_the_connector(write: Callable[[str], None]) -> None:
    with pytest.raises(DefiniteError, match="requires Spark's Kafka connector"):
        write("[DATA_SOURCE_NOT_FOUND] Failed to find data source: kafka.")


def test_missing_record_of_a_started_sink(tmp_path: Path) -> None:
    record = CallRecord(tmp_path, "out", "shop", what="write")
    writer = SparkWriter(failing("x"), record, dict, {}, name="out", started=True)
    with pytest.raises(DefiniteError, match="the position of sink out is missing"):
        writer.open(1.0)
    writer.close()


def test_table_that_joins_keeps_the_range_that_is_to_be_repeated(write: Callable[[str], None], tmp_path: Path) -> None:
    with pytest.raises(TransientError):
        write("x")
    record = CallRecord(tmp_path, "out", "shop")
    writer = SparkWriter(failing("x"), record, dict, {}, name="out", started=True)
    writer.open(1.0)
    assert writer.begun() == Lsn(20)
    writer.write((), FIRST.to_bytes(), 1.0)
    assert writer.begun() == Lsn(20)
    writer.write((), LAST.to_bytes(), 1.0)
    assert writer.begun() is None
    writer.close()
