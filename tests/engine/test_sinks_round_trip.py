"""Round trip: Postgres to a sink, its topics to a Kafka source, whose live table equals that of the Postgres source."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from tests.engine.shop import Shop
from tests.servers import SharedBroker, SharedRegistry, unique

from penstock.positions import Lsn
from penstock.testing.waiting import until

TABLE = """
CREATE TABLE public.typed (
    id bigint PRIMARY KEY, small smallint, whole int NOT NULL, flag boolean, name text, price numeric(12,3), day date,
    at timestamp, zoned timestamptz, data bytea, ratio double precision, label uuid, doc jsonb, long text);
ALTER TABLE public.typed ALTER long SET STORAGE EXTERNAL;
INSERT INTO public.typed
SELECT n, n, -n, n % 2 = 0, 'name ' || n || ' "ü" \\', n + 0.125, date '2026-01-01' + n,
    timestamp '2026-01-01 00:00:00.123456' + n * interval '1 hour',
    timestamptz '2026-06-01 12:00:00Z' - n * interval '1 day',
    decode(lpad(to_hex(n), 6, '0'), 'hex'), n / 8.0, ('00000000-0000-0000-0000-00000000000' || n % 10)::uuid,
    jsonb_build_object('n', n), repeat(n || 'long', 2000)
FROM generate_series(1, 20) n
"""
COLUMNS = (
    "id bigint, small smallint, whole int, flag boolean, name string, price decimal(12,3), day date, at timestamp_ntz,"
    " zoned timestamp, data string, ratio double, label string, doc string, long string"
)
CHANGES = [
    "UPDATE typed SET whole = whole + 1 WHERE id < 5",  # `long` is not sent
    "UPDATE typed SET id = id + 100 WHERE id IN (1, 7)",  # nor here, and the key changes
    "UPDATE typed SET name = NULL, flag = NULL, doc = NULL WHERE id = 3",
    "DELETE FROM typed WHERE id IN (2, 9)",
    "INSERT INTO typed (id, whole) VALUES (500, 1), (501, 2)",
    "UPDATE typed SET long = 'short' WHERE id = 101",
    "UPDATE typed SET small = 7 WHERE id = 101",
]
QUICK = "timestamp frequency ms = 50"


def formats(envelope: str, form: str, registry: SharedRegistry) -> str:
    """Return the clauses of a Kafka source that reads what the sink writes."""
    if form != "json":
        clauses = f"KEY FORMAT {form} VALUE FORMAT {form} USING SCHEMA REGISTRY '{registry.url}'"
    elif envelope == "debezium":
        clauses = "KEY FORMAT JSON VALUE FORMAT JSON"  # messages contain their schemas
    else:
        clauses = f"KEY FORMAT JSON COLUMNS (id bigint) VALUE FORMAT JSON COLUMNS ({COLUMNS})"
    return f"{clauses} ENVELOPE {envelope}"


def comparable(frame: DataFrame) -> set[str]:
    """Return the rows as JSON of texts, whatever the exact types of the columns."""
    texts = {name: F.col(name).cast("string") for name in sorted(frame.columns)}
    if dict(frame.dtypes)["data"] == "binary":  # in JSON it is base64
        texts["data"] = F.base64("data")
    texts["at"] = F.replace(texts["at"], F.lit("T"), F.lit(" "))  # in Protobuf it is a text
    columns = [text.alias(name) for name, text in texts.items()]
    return {row[0] for row in frame.select(F.to_json(F.struct(*columns))).collect()}


@pytest.mark.parametrize(
    ("envelope", "form"),
    [
        ("upsert", "avro"),
        pytest.param("debezium", "json", marks=pytest.mark.deep),
        pytest.param("debezium", "avro", marks=pytest.mark.deep),
        pytest.param("upsert", "json", marks=pytest.mark.deep),
        pytest.param("upsert", "protobuf", marks=pytest.mark.deep),
    ],
)
def test_table_of_the_topic_equals_the_table(
    envelope: str,
    form: str,
    start_spark_shop: Callable[..., Shop],
    broker: SharedBroker,
    registry: SharedRegistry,
) -> None:
    whole = "; ALTER TABLE public.typed REPLICA IDENTITY FULL" if envelope == "debezium" else ""
    shop, prefix = start_spark_shop(f"{TABLE}{whole}"), unique("trip")
    used: dict[str, Any] = {"schema_registry": registry.url} if form != "json" else {}
    used |= {"json_schemas": True} if (envelope, form) == ("debezium", "json") else {}
    shop.home.create_sink(
        "out", "shop", broker=broker.bootstrap, topic_prefix=f"{prefix}.", envelope=envelope, format=form, **used
    )
    found = shop.catalog.sinks
    until(lambda: (record := found.get("out")) and record.started, "the sink to start")
    for change in CHANGES:
        shop.database.execute(change)
    until(lambda: delivered(shop), "the sink to deliver everything")
    source = f"FROM KAFKA BROKER '{broker.bootstrap}' TOPIC '{prefix}.public.typed'"
    shop.home.sql(f"CREATE SOURCE copy {source} {formats(envelope, form, registry)} WITH ({QUICK})")
    until(lambda: "live" in states(shop, "copy"), "the topic to be read")
    expected = comparable(shop.live().table("shop.typed"))
    until(lambda: comparable(shop.live().table("copy.copy")) == expected, "equal tables")


CHANGE = f"op string, table string, ordinal bigint, before struct<{COLUMNS}>, after struct<{COLUMNS}>"


@pytest.mark.deep
@pytest.mark.parametrize(
    ("envelope", "form"),
    [("changes", "json"), ("changes", "avro"), ("changes", "protobuf"), ("transactions", "json")],
)
def test_history_of_the_topic_leads_to_the_table(
    envelope: str,
    form: str,
    start_spark_shop: Callable[..., Shop],
    broker: SharedBroker,
    registry: SharedRegistry,
) -> None:
    """The messages form a table of changes; the last one of each row gives the table upstream."""
    shop, topic = start_spark_shop(f"{TABLE}; ALTER TABLE public.typed REPLICA IDENTITY FULL"), unique("trip")
    used: dict[str, Any] = {"schema_registry": registry.url} if form != "json" else {}
    shop.home.create_sink(
        "out", "shop.typed", broker=broker.bootstrap, topic=topic, envelope=envelope, format=form, **used
    )
    until(lambda: (record := shop.catalog.sinks.get("out")) and record.started, "the sink to start")
    for change in CHANGES:
        shop.database.execute(change)
    until(lambda: delivered(shop), "the sink to deliver everything")
    if form != "json":
        clause = f"VALUE FORMAT {form} USING SCHEMA REGISTRY '{registry.url}'"
    elif envelope == "changes":
        clause = f"VALUE FORMAT JSON COLUMNS (position string, {CHANGE})"
    else:
        clause = f"VALUE FORMAT JSON COLUMNS (position string, part int, changes array<struct<{CHANGE}>>)"
    where = f"FROM KAFKA BROKER '{broker.bootstrap}' TOPIC '{topic}'"
    shop.home.sql(f"CREATE SOURCE copy {where} {clause} ENVELOPE NONE")
    until(lambda: "live" in states(shop, "copy"), "the topic to be read")
    expected = comparable(shop.live().table("shop.typed"))
    until(lambda: comparable(rows_after(shop.live().table("copy.copy"))) == expected, "equal tables")


def rows_after(history: DataFrame) -> DataFrame:
    """Return the rows that a table has after all its changes, from messages of ENVELOPE CHANGES or TRANSACTIONS."""
    if "changes" in history.columns:
        history = history.select("position", F.explode("changes").alias("change")).select("position", "change.*")
    halves = [F.lpad(F.split("position", "/")[half], 8, "0") for half in (0, 1)]
    at = F.struct(*halves, F.coalesce("ordinal", F.lit(0)))  # positions are hexadecimal numbers
    old = history.where("before IS NOT NULL").select(F.col("before.id").alias("key"), at.alias("at"), F.lit(0), "after")
    new = history.where("after IS NOT NULL").select(F.col("after.id").alias("key"), at.alias("at"), F.lit(1), "after")
    gone = old.withColumn("after", F.lit(None).cast(old.schema["after"].dataType))
    events = gone.union(new).toDF("key", "at", "step", "after")
    last = events.groupBy("key").agg(F.max_by("after", F.struct("at", "step")).alias("after"))
    return last.where("after IS NOT NULL").select("after.*")


def delivered(shop: Shop) -> bool:
    """Return whether the sink has delivered all that was committed before this call."""
    lsn = Lsn.parse(shop.database.execute("SELECT pg_current_wal_lsn()::text")[0][0])
    until(lambda: shop.home.frontiers("shop").durable >= lsn, "capture")
    (sink,) = shop.home.status().sinks
    assert sink.error is None, sink.error
    return sink.position is not None and sink.behind == 0


def states(shop: Shop, source: str) -> list[str]:
    return [table.state for each in shop.home.status().sources if each.name == source for table in each.tables]
