"""A Kafka source with transaction metadata reads the topics of our sink up to its last transaction."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing

from tests.engine.shop import Shop
from tests.engine.sink_topics import committed, wait_sink
from tests.servers import SharedBroker, SharedRegistry, unique

from penstock.positions import Lsn
from penstock.sources.kafka.topic_log import TopicLog
from penstock.testing.waiting import until

TABLES = """
CREATE TABLE public.accounts (id int PRIMARY KEY, balance int NOT NULL);
CREATE TABLE public.transfers (id int PRIMARY KEY, amount int NOT NULL);
ALTER TABLE public.accounts REPLICA IDENTITY FULL;
INSERT INTO public.accounts SELECT n, 0 FROM generate_series(1, 10) n
"""


def test_source_reads_all_transactions(
    start_shop: Callable[..., Shop], broker: SharedBroker, registry: SharedRegistry
) -> None:
    shop, prefix = start_shop(TABLES), unique("bank")
    shop.home.create_sink(
        "out",
        "shop",
        broker=broker.bootstrap,
        topic_prefix=f"{prefix}.",
        envelope="debezium",
        format="avro",
        schema_registry=registry.url,
        snapshot=False,
        partitions=1,
        provide_transaction_metadata=True,
    )
    wait_sink(shop.catalog, "out")
    for number in range(1, 21):
        with shop.database.connect() as session, session.transaction():
            session.execute(f"INSERT INTO transfers VALUES ({number}, {number})")
            session.execute(f"UPDATE accounts SET balance = balance + {number} WHERE id = {number % 10 + 1}")
    until(lambda: len(committed(broker.bootstrap, f"{prefix}.transaction")) == 40, "all transactions in the topic")
    topics = ", ".join(f"'{prefix}.public.{table}'" for table in ("accounts", "transfers"))
    shop.home.sql(
        f"CREATE SOURCE copy FROM KAFKA BROKER '{broker.bootstrap}' TOPICS ({topics})"
        f" KEY FORMAT AVRO VALUE FORMAT AVRO USING SCHEMA REGISTRY '{registry.url}'"
        f" ENVELOPE DEBEZIUM TRANSACTION METADATA (TOPIC '{prefix}.transaction') WITH (timestamp frequency ms = 100)"
    )

    def ends() -> list[int]:
        """Return the offset up to which each topic is visible."""
        log = shop.catalog.log("copy")
        assert isinstance(log, TopicLog)
        if not log.exists():
            return []
        with closing(log.reader()) as reader:
            durable = reader.frontiers().durable
        return [max((r.last for r in log.ranges(table, Lsn.ZERO, durable)), default=0) for table in log.tables]

    until(lambda: (found := ends()) and min(found) >= 20, "all transactions to be visible")
