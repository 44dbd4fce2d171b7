"""Cost of a topic batch with ENVELOPE UPSERT, for a table of one size and of ten times that, vs. hand-written code.

A batch has 10,000 JSON messages, keyed by id: 85 % rows, 15 % tombstones. It is in a real broker, and is applied as by
`penstock run`: read, decoded, validated, folded, merged, and the position of the table read back. The reference is a
hand-written `foreachBatch`: the same offsets with Spark's Kafka reader, `from_json`, the newest message of each key by
`row_number`, then MERGE on the key, into a plain Delta table with the same rows; it treats corrupt messages as rows of
nulls.

Keys are *recent*, the newest 5 % of the table, or *random*, from the whole table. Subject and reference alternate, and
so do the two sizes; the first round is not counted.

Goals, with recent keys: ten times the rows cost at most 1.3 times as much; at most 0.8 times the cost of the reference.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path

import numpy as np
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from delta.tables import DeltaTable
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from bench.rounds import Sample, size, timed
from bench.scaling import first_key, growth_ratio
from penstock.catalog.states import SourceState, TableState
from penstock.catalog.store import Catalog, SourceRecord, TableRecord
from penstock.changelog.sqlite.log import SqliteLog
from penstock.engine.table import RunningTable
from penstock.formats import JsonFormat, resolve
from penstock.model import TableName
from penstock.positions import Lsn
from penstock.sources.kafka.apply.tables import TopicApply
from penstock.sources.kafka.client_settings import spark_options
from penstock.sources.kafka.config import KafkaConfig
from penstock.sources.kafka.sql_options import EnvelopeKind, KafkaSqlOptions
from penstock.sources.kafka.ticks import OffsetRange, assignment_options, tick_row, tick_table
from penstock.sources.kafka.topic_log import TopicLog
from penstock.sources.kafka.topic_table import SourceTopic, TopicTable
from penstock.sources.kafka.with_options import KafkaWithOptions
from penstock.sources.polling_steps import Numbering, inserted
from penstock.spark.session import session
from penstock.tables.spark_tables import SparkTables
from penstock.testing.kafka import KafkaBroker, start_kafka

__all__ = ["run"]

_BATCH = 10_000
_TOMBSTONES = 0.15
_FILE_ROWS = 500_000
_KEY = "id BIGINT"
_VALUE = "customer BIGINT, status STRING, note STRING, amount BIGINT, weight DOUBLE, paid BOOLEAN"


def run(quick: bool) -> float:
    """Measure, print, and return the cost ratio for ten times the rows with recent keys."""
    rows, rounds = size(100_000 if quick else 1_000_000, 3 if quick else 7)
    sizes = (rows, 10 * rows)
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder, start_kafka(Path(folder) / "kafka") as broker:
        spark = session("bench", master="local[2]")
        tables = [_Table.created(spark, broker, Path(folder) / str(n), n, min(_BATCH, rows // 100)) for n in sizes]
        ratio = growth_ratio(tables, rounds, "messages")
        spark.stop()
    return ratio


@dataclass
class _Table:
    """The same rows as a base table and as a plain Delta table, and the topic that both follow."""

    rows: int
    spark: SparkSession
    broker: KafkaBroker
    log: TopicLog
    made_by: TopicTable
    table: RunningTable
    plain: str
    offsets: list[int]
    """The end offset of each batch, after the start offset."""
    batch: int
    """The number of messages of a batch."""

    @classmethod
    def created(cls, spark: SparkSession, broker: KafkaBroker, folder: Path, rows: int, batch: int) -> _Table:
        """Create both tables with `rows` rows, and an empty topic."""
        name = f"orders{rows}"
        admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
        admin.create_topics([NewTopic(name, 1, 1)])[name].result(30)
        topic = SourceTopic(name=name, id=None, offsets=(0,))
        formats = resolve(JsonFormat(columns=_KEY)), resolve(JsonFormat(columns=_VALUE))
        captured = TopicTable.create(TableName("topic", name), None, topic, *formats, EnvelopeKind.UPSERT)
        given = {"broker": broker.bootstrap, "topic": name, "key_format": "json", "value_format": "json"}
        what = KafkaSqlOptions.given(**given, envelope={"kind": "upsert"})
        config = KafkaConfig.create(name, what, KafkaWithOptions(), [captured])
        (folder / "state").mkdir(parents=True)
        log = config.reading(SqliteLog(folder / "log.db"), folder / "state")
        assert isinstance(log, TopicLog)
        log.create(Lsn(1))
        table = _followed(folder, spark, config, captured)
        table.base.create(_rows(spark, rows), Lsn(1))
        table.load_state()
        _rows(spark, rows).write.format("delta").save(str(folder / "plain"))
        return cls(rows, spark, broker, log, captured, table, str(folder / "plain"), [0], batch)

    def apply_batches(self, keys: str) -> Iterator[Sample]:
        """Apply one batch after the other to the base table."""
        for number in count(len(self.offsets) - 1):
            self._written(number, keys)
            yield timed(partial(self._apply, Lsn(number + 2)))

    def _apply(self, upto: Lsn) -> None:
        assert self.table.at is not None
        TopicApply(self.spark, self.log, self.table).merge(self.table.at, upto)
        assert self.table.at.position == upto

    def merge_by_hand(self, keys: str) -> Iterator[Sample]:
        """Merge the same batches into the plain table."""
        for number in count(len(self.offsets) - 1):
            self._written(number, keys)
            yield timed(partial(self._merge_by_hand, *self.offsets[number : number + 2]))

    def _merge_by_hand(self, first: int, last: int) -> None:
        ranges = [OffsetRange(self.made_by.topic.name, 0, first, last)]
        options = assignment_options(
            spark_options(self.log.what, self.log.how, self.log.source, self.log.state), ranges
        )
        _merge_by_hand(self.spark, self.spark.read.format("kafka").options(**options).load(), self.plain)

    def _written(self, number: int, keys: str) -> None:
        """Write a batch into the topic, and its tick into the log, unless already written."""
        if number + 1 < len(self.offsets):
            return
        producer = Producer({"bootstrap.servers": self.broker.bootstrap, "linger.ms": 20, "log_level": 0})
        random = np.random.default_rng(number)
        first = first_key(self.rows, keys)
        for key in random.integers(first, self.rows + self.batch * (number + 1) // 10, self.batch).tolist():
            value = None if random.random() < _TOMBSTONES else json.dumps(_value(key, number))
            producer.produce(self.made_by.topic.name, value, json.dumps({"id": key}), partition=0)
            producer.poll(0)
        assert producer.flush(60) == 0
        self._tick(number)

    def _tick(self, number: int) -> None:
        ticks = tick_table(self.made_by.topic.name)
        self.offsets.append(self.offsets[-1] + self.batch)
        row = inserted(ticks.name, tick_row(self.offsets[-2:-1], self.offsets[-1:]))
        with closing(self.log.writer()) as writer:
            writer.define(self.made_by.table_schema(), Lsn(1))
            version = writer.define(ticks.table_schema(), Lsn(1))
            now = time.time_ns() // 1000
            chunk = Numbering(Lsn(number + 1), 1, now).chunk(row, ticks.table_schema(), version)
            writer.publish([chunk], Lsn(number + 2), committed_at=now)


def _followed(folder: Path, spark: SparkSession, config: KafkaConfig, captured: TopicTable) -> RunningTable:
    catalog = Catalog(folder / "penstock.db")
    source = SourceRecord(config.source, "KAFKA", "{}", config.model_dump_json(), SourceState.READY)
    record = TableRecord(config.source, captured.name, "orders", TableState.LIVE)
    catalog.add_sources([(source, [record])])
    return RunningTable(folder, catalog, record, captured, SparkTables(spark))


def _rows(spark: SparkSession, rows: int) -> DataFrame:
    """Return rows in key order, in files of half a million rows."""
    n = F.col("id")
    status = F.element_at(F.array(*map(F.lit, ("new", "paid", "shipped", "returned"))), (n % 4 + 1).cast("int"))
    return spark.range(0, rows, 1, max(2, rows // _FILE_ROWS)).select(
        n,
        (n % 997).alias("customer"),
        status.alias("status"),
        F.concat(F.lit("a note of order "), n.cast("string")).alias("note"),
        (n % 100_000).alias("amount"),
        (n / 7).alias("weight"),
        (n % 2 == 0).alias("paid"),
    )


def _value(key: int, number: int) -> dict[str, object]:
    status = ("new", "paid", "shipped", "returned")[key % 4]
    note = f"note {number} of order {key}"
    return {
        "customer": key % 991,
        "status": status,
        "note": note,
        "amount": key % 100_000,
        "weight": key / 5,
        "paid": True,
    }


def _merge_by_hand(spark: SparkSession, raw: DataFrame, path: str) -> None:
    key = F.from_json(F.col("key").cast("string"), _KEY)
    value = F.from_json(F.col("value").cast("string"), _VALUE)
    newest = Window.partitionBy("k.id").orderBy(F.desc("offset"))
    read = raw.select(key.alias("k"), value.alias("v"), F.col("value").isNull().alias("gone"), "offset")
    latest = read.withColumn("place", F.row_number().over(newest)).filter("place = 1")
    source = latest.select("gone", "k.*", "v.*").alias("s")
    columns = {name: f"s.{name}" for name in ("id", *(part.split()[0] for part in _VALUE.split(", ")))}
    merge = DeltaTable.forPath(spark, path).alias("t").merge(source, "t.id = s.id")
    merge = merge.whenMatchedDelete("s.gone").whenMatchedUpdate(set=dict(columns))
    merge.whenNotMatchedInsert("NOT s.gone", values=dict(columns)).execute()
