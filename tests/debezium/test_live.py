"""End to end over recorded topics: sources created by SQL, captured by a home, and read live.

`types` is read with ENVELOPE DEBEZIUM, by transactions. `bank` holds a second snapshot, which that envelope rejects; it
is read with DEBEZIUM UPSERT.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.debezium.conftest import Recordings
from tests.debezium.postgres_rows import require_rows
from tests.debezium.replay import Replay

from penstock.catalog.store import Catalog
from penstock.home import Home
from penstock.sources.kafka.topic_log import TopicLog
from penstock.testing.debezium import Converter
from penstock.testing.kafka import KafkaBroker
from penstock.testing.registry import SchemaRegistry
from penstock.testing.waiting import PATIENCE, until

AVRO = "KEY FORMAT AVRO VALUE FORMAT AVRO USING SCHEMA REGISTRY '{registry}'"
TRANSACTIONS = "TRANSACTION METADATA (TOPIC '{metadata}')"
QUICK = "WITH (timestamp frequency ms = 50)"


def create(home: Home, source: str, replay: Replay, broker: KafkaBroker, rest: str) -> None:
    topics = ", ".join(f"'{name}'" for name in replay.names)
    home.sql(f"CREATE SOURCE {source} FROM KAFKA BROKER '{broker.bootstrap}' TOPICS ({topics}) {rest} {QUICK}")


def is_captured(home: Home, source: str, replay: Replay) -> bool:
    """Return whether all messages of the topics of a source are in ticks."""
    log = Catalog(home.path / "penstock.db").log(source)
    assert isinstance(log, TopicLog)
    with closing(log.reader()) as reader:
        frontiers = reader.frontiers()
    ranges = [part for table in log.tables for part in log.ranges(table, frontiers.valid, frontiers.durable)]
    wanted = sum(len(replay.topics[table].messages) for table in replay.recording.tables)
    return sum(part.last - part.first for part in ranges) == wanted


def is_applied(home: Home) -> bool:
    return all(table.state == "live" and table.behind == 0 for one in home.status().sources for table in one.tables)


@pytest.mark.deep
def test_live_tables_match_postgres(
    recordings: Recordings, broker: KafkaBroker, registry: SchemaRegistry, spark: SparkSession, tmp_path: Path
) -> None:
    types = Replay(recordings["types"], Converter.AVRO, registry)
    bank = Replay(recordings["bank"], Converter.AVRO, registry)
    for replay in (types, bank):
        replay.create(broker)
        replay.write(broker, len(replay.remaining) * 3 // 4)
    home = Home(tmp_path / "home")
    avro = AVRO.format(registry=registry.url)
    whole = TRANSACTIONS.format(metadata=types.metadata)
    create(home, "types", types, broker, f"{avro} ENVELOPE DEBEZIUM {whole}")
    create(home, "bank", bank, broker, f"{avro} ENVELOPE DEBEZIUM UPSERT")
    with home.run(spark) as running:
        running.wait_live(PATIENCE)
        for replay in (types, bank):
            replay.write(broker)
        until(lambda: is_captured(home, "types", types), "the types to be captured")
        until(lambda: is_captured(home, "bank", bank), "the bank to be captured")
        require_live(home, spark, recordings)
        until(lambda: is_applied(home), "all changes to be applied")
        require_live(home, spark, recordings)


def require_live(home: Home, spark: SparkSession, recordings: Recordings) -> None:
    """Compare all tables of one live view with those of Postgres."""
    live = home.live(spark)
    for name, recording in recordings.items():
        for table in recording.tables:
            require_rows(live.table(f"{name}.{table.partition('.')[2]}"), recording, table)
