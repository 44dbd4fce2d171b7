"""Guarantees of the Kafka log only: reads by offset in other processes, fencing, limits, foreign topics, truncation."""

from __future__ import annotations

import os
import pickle
import uuid
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from tests.changelog.chunks import ITEMS, ORDERS, chunk, inserted, read
from tests.changelog.conftest import START
from tests.changelog.test_interface import HOURS, WIDER, part
from tests.changelog.test_retention import FOREVER, later, moment, publish
from tests.servers import SharedBroker

from penstock.changelog.interface import Chunk, Frontiers, Prepared, StagedCommit
from penstock.changelog.kafka import index_tail, records, topics
from penstock.changelog.kafka import writer as writing
from penstock.changelog.kafka.log import KafkaLog, KafkaLogReader
from penstock.changelog.kafka.writer import KafkaLogWriter
from penstock.errors import DefiniteError, HistoryExpiredError, LogCorruptError, TableError, TransientError
from penstock.positions import Lsn
from penstock.testing.waiting import PATIENCE


@pytest.fixture
def log(broker: SharedBroker) -> Iterator[KafkaLog]:
    created = KafkaLog(broker.bootstrap, f"penstock.{uuid.uuid4().hex}")
    created.create(START)
    yield created
    created.remove()


@pytest.fixture
def writer(log: KafkaLog) -> Iterator[KafkaLogWriter]:
    with closing(log.writer()) as opened:
        opened.define(ORDERS, START)
        opened.define(ITEMS, START)
        yield opened


@pytest.fixture
def reader(log: KafkaLog) -> Iterator[KafkaLogReader]:
    with closing(log.reader()) as opened:
        yield opened


def bounds(log: KafkaLog, topic: str) -> tuple[int, int]:
    """First offset of a topic, and the offset after the last one."""
    with closing(Consumer({"bootstrap.servers": log.brokers, "group.id": "test", "log_level": 0})) as client:
        first, end = client.get_watermark_offsets(TopicPartition(f"{log.name}.{topic}", 0), timeout=PATIENCE)
        return first, end


def send(log: KafkaLog, topic: str, value: bytes) -> None:
    client = Producer({"bootstrap.servers": log.brokers, "log_level": 0})
    client.produce(f"{log.name}.{topic}", value, partition=0)
    assert client.flush(PATIENCE) == 0


def large(lsn: int, size: int) -> Chunk:
    """A chunk of `size` incompressible bytes."""
    return chunk(ORDERS, [inserted(lsn, 0, os.urandom(size // 2).hex())])


# -- other processes ------------------------------------------------------------------------------------------------


def test_extent_is_read_in_another_process_without_the_index(
    log: KafkaLog, writer: KafkaLogWriter, reader: KafkaLogReader
) -> None:
    for lsn in range(20, 40):
        writer.publish([chunk(ORDERS, [inserted(lsn)]), chunk(ITEMS, [inserted(lsn)])], Lsn(lsn))
    extent = reader.extent(ORDERS.table, Lsn(24), Lsn(36))
    sent_log, parts = pickle.loads(pickle.dumps((log, extent.divided(1))))
    found = []
    for each in parts:
        with closing(sent_log.reader()) as executor:
            found += [row["_lsn"] for batch in executor.read(each) for row in batch.to_pylist()]
            assert executor._tail._consumer is None, "the index was not read"
    assert found == list(range(25, 37))


def test_two_extents_can_be_read_alternately(writer: KafkaLogWriter, reader: KafkaLogReader) -> None:
    for lsn in range(20, 60):
        writer.publish([chunk(ORDERS, [inserted(lsn)]), chunk(ITEMS, [inserted(lsn)])], Lsn(lsn))
    one, other = (reader.read(reader.extent(t.table, Lsn(19), Lsn(60))) for t in (ORDERS, ITEMS))
    pairs = [(a.column("_lsn")[0].as_py(), b.column("_lsn")[0].as_py()) for a, b in zip(one, other, strict=True)]
    assert pairs == [(lsn, lsn) for lsn in range(20, 60)]


def test_publication_wakes_a_waiting_reader(
    writer: KafkaLogWriter, reader: KafkaLogReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader.frontiers()
    monkeypatch.setattr(index_tail, "_SLICE", HOURS)
    for lsn in range(20, 40):
        writer.publish([chunk(ORDERS, [inserted(lsn)])], Lsn(lsn))
        assert reader.wait(Lsn(lsn - 1), HOURS).durable == lsn


# -- one writer -----------------------------------------------------------------------------------------------------


def test_each_new_writer_fences_the_previous_one(log: KafkaLog, reader: KafkaLogReader) -> None:
    with closing(log.writer()) as first, closing(log.writer()) as second:
        second.define(ORDERS)
        second.publish([chunk(ORDERS, [inserted(20)])], Lsn(20))
        for _ in range(2):
            with pytest.raises(DefiniteError, match="another writer has taken over") as caught:
                first.define(ORDERS)
            assert "stop" in caught.value.hint
        with closing(log.writer()) as third:
            third.define(ORDERS)
            with pytest.raises(DefiniteError, match="another writer has taken over"):
                second.publish([chunk(ORDERS, [inserted(30)])], Lsn(30))
            third.publish([chunk(ORDERS, [inserted(40)])], Lsn(40))
    assert read(reader, ORDERS) == [inserted(20), inserted(40)]


def test_writer_fenced_mid_transaction_leaves_no_trace(log: KafkaLog, reader: KafkaLogReader) -> None:
    """The payload is in the topic, but the record is not committed: no reader may see it."""
    with closing(log.writer()) as first:
        first.define(ORDERS)
        session = first._steps._session
        session._producer.begin_transaction()
        session._send(f"{log.name}.data", b"half")
        session._send(f"{log.name}.index", b"\x01.[]")
        session._producer.flush()
        with closing(log.writer()) as second:
            second.define(ORDERS)
            second.publish([chunk(ORDERS, [inserted(20)])], Lsn(20))
        assert read(reader, ORDERS) == [inserted(20)]


def test_transaction_of_another_program_that_does_not_end(log: KafkaLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """Brokers may lose the end of a transaction: what is behind it is not visible until an administrator ends it."""
    with closing(log.writer()) as writer:
        writer.define(ORDERS)
        other = Producer({"bootstrap.servers": log.brokers, "transactional.id": f"{log.name}.other", "log_level": 0})
        other.init_transactions(PATIENCE)
        other.begin_transaction()
        other.produce(f"{log.name}.index", b"", partition=0)
        assert other.flush(PATIENCE) == 0
        monkeypatch.setattr(writing, "_LIMIT", 3.0)
        with pytest.raises(
            TransientError, match=r"waits for a transaction in topic .*\.index: committed up to"
        ) as caught:
            writer.publish([chunk(ORDERS, [inserted(20)])], Lsn(20))
        assert f"abort --topic {log.name}.index --partition 0 --start-offset" in caught.value.hint
        other.abort_transaction(PATIENCE)
    with closing(log.writer()) as writer, closing(log.reader()) as reader:
        writer.define(ORDERS)
        writer.publish([chunk(ORDERS, [inserted(30)])], Lsn(30))
        assert read(reader, ORDERS) == [inserted(20), inserted(30)]  # it was committed, and nobody knew


def test_closed_writer_rejects_publish(log: KafkaLog) -> None:
    writer = log.writer()
    writer.close()
    with pytest.raises(TransientError, match="was closed"):
        writer.publish([], Lsn(30))


# -- limits ---------------------------------------------------------------------------------------------------------


def test_chunks_beyond_the_message_size_limit_are_split(
    log: KafkaLog, writer: KafkaLogWriter, reader: KafkaLogReader
) -> None:
    both = [large(20, 5_000_000), chunk(ORDERS, [inserted(21)])]
    writer.stage(7, [large(-1, 3_000_000)])
    writer.publish(both, Lsn(30), staged={7: StagedCommit(Lsn(19), 19)})
    assert [row.lsn for row in read(reader, ORDERS)] == [19, 20, 21]
    places = [ref.location for ref in reader.extent(ORDERS.table, START, Lsn(30)).chunks]
    assert [parts for _, parts, _ in places] == [3, 5, 1]
    name = next(row.values for row in read(reader, ORDERS) if row.lsn == 20)
    assert name is not None
    assert both[0].images.column("row")[0].as_py()["name"] == name[1]


def test_records_beyond_the_message_size_limit_are_split(broker: SharedBroker) -> None:
    log = KafkaLog(broker.bootstrap, f"penstock.{uuid.uuid4().hex}")
    make_topics(log, 1, {"max.message.bytes": str(64 << 10)})
    log.create(START)
    error = TableError("public.orders", 20, "é" * 200_000, "fix it")
    with closing(log.writer()) as writer, closing(log.reader()) as early:
        writer.define(ORDERS, START)
        early.frontiers()
        before = bounds(log, "index")[1]
        writer.publish([large(20, 500_000)], Lsn(20), errors=[error])
        assert bounds(log, "index")[1] > before + 5
        with closing(log.reader()) as fresh:
            for each in (early, fresh):
                found = each.tables()[ORDERS.table].error
                assert found is not None
                assert found.args == error.args
                assert [row.lsn for row in read(each, ORDERS)] == [20]
    log.remove()


# -- topics ---------------------------------------------------------------------------------------------------------


def make_topics(log: KafkaLog, partitions: int, settings: dict[str, str]) -> None:
    config = {"retention.ms": "-1", "retention.bytes": "-1", **settings}
    client = AdminClient({"bootstrap.servers": log.brokers, "log_level": 0})
    topics = [NewTopic(f"{log.name}.{end}", partitions, 1, config=config) for end in ("index", "data")]
    for future in client.create_topics(topics).values():
        future.result(PATIENCE)


@pytest.mark.parametrize(
    ("partitions", "settings", "message"),
    [
        (1, {"retention.ms": "604800000"}, "retention.ms=604800000"),
        (1, {"retention.bytes": "1000"}, "retention.bytes=1000"),
        (1, {"cleanup.policy": "compact"}, "cleanup.policy=compact"),
        (1, {"max.message.bytes": "1000"}, "1000 bytes"),
        (2, {}, "2 partitions"),
    ],
)
def test_topics_that_would_lose_history_are_rejected(
    broker: SharedBroker, partitions: int, settings: dict[str, str], message: str
) -> None:
    log = KafkaLog(broker.bootstrap, f"penstock.{uuid.uuid4().hex}")
    make_topics(log, partitions, settings)
    for use in (lambda: log.create(START), log.writer):
        with pytest.raises(DefiniteError, match=message) as caught:
            use()
        assert log.name in str(caught.value)
        assert caught.value.hint
    log.remove()


def test_create_leaves_an_existing_log_unchanged(log: KafkaLog, writer: KafkaLogWriter, reader: KafkaLogReader) -> None:
    writer.publish([], Lsn(20))
    log.create(Lsn(99))
    writer.publish([], Lsn(30))
    assert (reader.frontiers().valid, reader.frontiers().durable) == (START, 30)


def test_missing_log_is_reported(broker: SharedBroker) -> None:
    log = KafkaLog(broker.bootstrap, "penstock.nowhere")
    assert not log.exists()
    for use in (log.writer, lambda: log.reader().frontiers(), lambda: log.reader().wait(START, 1)):
        with pytest.raises(DefiniteError, match=r"penstock\.nowhere") as caught:
            use()
        assert caught.value.hint
    log.remove()


def test_unreachable_brokers_are_a_transient_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_tail, "_TIMEOUT", 1.0)
    log = KafkaLog("127.0.0.1:1", "penstock.shop")
    with pytest.raises(TransientError, match=r"penstock\.shop") as caught:
        log.reader().frontiers()
    assert "127.0.0.1:1" in caught.value.hint


def test_invalid_client_settings_are_reported(log: KafkaLog) -> None:
    wrong = replace(log, settings=(("security.protocol", "NONSENSE"),))
    for use in (wrong.writer, wrong.exists, lambda: wrong.create(START), lambda: wrong.reader().frontiers()):
        with pytest.raises(DefiniteError, match=r"security\.protocol") as caught:
            use()
        assert "URL" in caught.value.hint


def test_reason_for_unreachable_brokers_is_reported(log: KafkaLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topics, "_TIMEOUT", 2.0)
    monkeypatch.setattr(index_tail, "_TIMEOUT", 2.0)
    wrong = replace(log, settings=(("security.protocol", "SSL"),))
    for use in (wrong.exists, lambda: wrong.reader().frontiers()):
        with pytest.raises(TransientError, match=r"SSL handshake failed.*PLAINTEXT|SSL connection closed by peer"):
            use()


# -- corruption -----------------------------------------------------------------------------------------------------


def test_corruption_is_detected(
    log: KafkaLog, writer: KafkaLogWriter, reader: KafkaLogReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "_TIMEOUT", 2.0)
    for lsn in (20, 30):
        writer.publish([chunk(ORDERS, [inserted(lsn)])], Lsn(lsn))
    extent = reader.extent(ORDERS.table, START, Lsn(30))
    first, second = extent.chunks
    end = bounds(log, "data")[1]
    send(log, "data", os.urandom(200))
    for place, checksum in [
        (first.location, first.checksum ^ 1),
        (second.location, first.checksum),
        ((first.location[0], 1, first.location[2] // 2), first.checksum ^ 1),
        ((end, 1, 100), first.checksum),
        ((end + 1000, *first.location[1:]), first.checksum),
        ((first.location[0], 2, first.location[2]), first.checksum),
    ]:
        wrong = replace(extent, chunks=(replace(first, location=place, checksum=checksum),))
        with pytest.raises(LogCorruptError) as caught:
            list(reader.read(wrong))
        assert caught.value.hint
    assert len(list(reader.read(extent))) == 2


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (b"", "Penstock did not write"),
        (b"\x00.[]", "Penstock did not write"),
        (b"\x07.[]", "format 7"),
        (b"\x01.not json", "cannot be read"),
        (b'\x01.["publish",1]', "cannot be read"),
        (b'\x01.["what",1]', "cannot be read"),
        (b'\x01.["open",99,"me"]', "is missing"),
    ],
)
def test_foreign_record_is_rejected(log: KafkaLog, value: bytes, message: str) -> None:
    send(log, "index", value)
    with closing(log.reader()) as reader, pytest.raises(DefiniteError, match=message) as caught:
        reader.frontiers()
    assert caught.value.hint


# -- truncation -----------------------------------------------------------------------------------------------------


def everything(reader: KafkaLogReader) -> tuple[object, ...]:
    """The results of all queries of a reader."""
    found = reader.frontiers()
    extents = [reader.extent(table.table, found.valid, found.durable) for table in (ORDERS, ITEMS)]
    rows = [[row for batch in reader.read(extent) for row in batch.to_pylist()] for extent in extents]
    times = [reader.position_at(moment(later(at))) for at in (28, 29.5, 30, 99)]
    tables = {name: (replace(t, error=None), t.error and t.error.args) for name, t in reader.tables().items()}
    return found, tables, reader.leases(), extents, rows, times


def test_retention_truncates_both_topics_and_all_readers_agree(log: KafkaLog, writer: KafkaLogWriter) -> None:
    with closing(log.reader()) as old, closing(log.reader()) as lagging:
        lagging.frontiers()
        writer.stage(7, [part((7, 0, 10), (8, 1, 11))])
        for lsn in range(20, 26):
            publish(writer, (lsn, later(lsn)))
        version = writer.define(WIDER)
        writer.stage(9, [part((9, 0, 30))])
        writer.settle(9, Prepared())
        publish(writer, (26, later(26)), (27, later(27)), (28, later(28)))
        writer.publish([chunk(ITEMS, [inserted(29)])], Lsn(29), errors=[TableError("public.items", 29, "no", "do")])
        old.set_lease("held", Lsn(27))
        writer.retain(FOREVER)
        assert bounds(log, "index")[0] > 0
        assert bounds(log, "data")[0] == 0, "the staged part is still needed"
        writer.publish([], Lsn(30), staged={7: StagedCommit(Lsn(30), later(30), frozenset({8}))})
        old.set_lease("held", None)
        writer.retain(moment(later(29.5)))
        assert bounds(log, "data")[0] == 0, "it is still needed: it was published at 30"
        old.set_lease("leased", Lsn(29), 3600)
        with closing(log.reader()) as fresh:
            agreed = everything(fresh)
            assert everything(old) == agreed
            assert everything(lagging) == agreed
            assert fresh.frontiers().valid == 29
        assert writer.define(WIDER) == version


def test_clock_records_of_an_idle_source_are_truncated(
    log: KafkaLog, writer: KafkaLogWriter, reader: KafkaLogReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing, "_CLOCKS", 5)
    publish(writer, (20, later(20)))
    for at in range(30, 50):
        writer.publish([], Lsn(20), passed=later(at))
        writer.retain(FOREVER)
    begin, end = bounds(log, "index")
    assert end - begin < 20
    assert (reader.frontiers().valid_at, reader.frontiers().passed) == (moment(later(20)), moment(later(49)))
    assert {reader.position_at(moment(later(at))) for at in (20, 35, 48)} == {20}


def test_data_topic_is_truncated_to_needed_offsets(
    log: KafkaLog, writer: KafkaLogWriter, reader: KafkaLogReader
) -> None:
    for lsn in range(20, 30):
        publish(writer, (lsn, later(lsn)))
    planned = reader.extent(ORDERS.table, START, Lsn(29))
    first_needed = reader.extent(ORDERS.table, Lsn(25), Lsn(29)).chunks[0].location[0]
    writer.retain(moment(later(25)))
    assert bounds(log, "data")[0] == first_needed
    with pytest.raises(HistoryExpiredError):
        list(reader.read(planned))
    with (
        closing(pickle.loads(pickle.dumps(log)).reader()) as executor,
        pytest.raises(HistoryExpiredError, match="0/19"),
    ):
        list(executor.read(planned))
    writer.retain(FOREVER)
    first, end = bounds(log, "data")
    assert end - first <= 1, "only a commit marker is left"
    with closing(log.reader()) as fresh:
        assert fresh.frontiers() == reader.frontiers() == writer.frontiers()
        publish(writer, (40, later(40)))
        assert read(fresh, ORDERS) == read(reader, ORDERS) == [inserted(40)]


def test_truncation_between_refresh_and_read_is_detected(
    writer: KafkaLogWriter, reader: KafkaLogReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    for lsn in range(20, 30, 2):
        publish(writer, (lsn, later(lsn)), (lsn + 1, later(lsn + 1)))
    whole, truncations = index_tail.IndexTail.refresh, list[Frontiers]()

    def truncate_after_refresh(self: index_tail.IndexTail, **given: bool) -> object:
        found = whole(self, **given)
        if self is reader._tail and not truncations:
            truncations.append(writer.retain(FOREVER))
        return found

    monkeypatch.setattr(index_tail.IndexTail, "refresh", truncate_after_refresh)
    with pytest.raises(HistoryExpiredError):
        reader.position_at(moment(later(22.5)))


def test_missing_data_is_corruption_when_resolving_times(
    writer: KafkaLogWriter, reader: KafkaLogReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(writer, (20, later(20)), (21, later(21)))

    def gone(*_: object) -> None:
        raise records.DataExpiredError

    monkeypatch.setattr(records.Payloads, "chunk", gone)
    for use in (reader.position_at, writer.retain):
        with pytest.raises(LogCorruptError) as caught:
            use(moment(later(20)))
        assert caught.value.hint


def test_truncation_by_a_fenced_writer_removes_nothing(log: KafkaLog, reader: KafkaLogReader) -> None:
    with closing(log.writer()) as first:
        first.define(ORDERS, START)
        publish(first, (20, later(20)))
        first.retain(FOREVER)
        with closing(log.writer()) as second:
            second.define(ORDERS)
            publish(second, (30, later(30)))
            with pytest.raises(DefiniteError, match="another writer"):
                first.retain(FOREVER)
            assert read(reader, ORDERS) == [inserted(30)]
