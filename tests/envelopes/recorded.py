"""Topics that a real Debezium wrote of a real database, while it was killed again and again."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import psycopg
from confluent_kafka import Consumer
from confluent_kafka.cimpl import TopicPartition

from penstock.embedded.postgres import EmbeddedPostgres
from penstock.testing.debezium import Converter, Debezium, start_debezium
from penstock.testing.kafka import KafkaBroker

KILLS = int(os.environ.get("PENSTOCK_DEBEZIUM_KILLS", "1"))
TABLES = ("public.typed", "public.moved")
TYPED = """
    CREATE TABLE typed (
        id int, part text, PRIMARY KEY (id, part),
        flag boolean, small smallint, big bigint, single real, double float8,
        price numeric(20,4), free numeric, huge numeric(60,10),
        words text, data bytea, day date, clock time, local timestamp, local3 timestamp(3), moment timestamptz,
        own uuid, doc jsonb, bits bit(11), place point,
        numbers int[], names text[], times timestamp[], prices numeric(10,2)[]
    )
"""
ROWS = """
    INSERT INTO typed SELECT i, 'p' || i % 2, i % 3 = 0, -i, 9007199254740993 + i, i / 8.0, 0.1 * i,
        (i - 5) * 1234.5678, (i - 5) / 7.0, 1e40 + i, CASE i % 4 WHEN 0 THEN NULL WHEN 1 THEN '' ELSE 'ä' || i END,
        decode(lpad(to_hex(i * 37), 4, '0'), 'hex'), '1999-12-31'::date + i * 777,
        '00:00'::time + i * interval '3723.040506 s', '1969-12-31 23:59:59.999999'::timestamp + i * interval '1 hour',
        '2026-03-29 01:59:59.123'::timestamp(3) + i * interval '1 day',
        '1883-11-18 12:00:00.000001+00'::timestamptz + i * interval '7 years',
        md5(i::text)::uuid, jsonb_build_object('n', i), (i * 91)::bit(11), point(i, -i),
        ARRAY[i, NULL, -i], ARRAY['x' || i, NULL], ARRAY['2026-01-01'::timestamp + i * interval '1.5 s'],
        ARRAY[i / 4.0, NULL]
    FROM generate_series({first}, {last}) i
"""


@dataclass(frozen=True)
class Message:
    """One message, as it is in the topic."""

    key: bytes | None
    value: bytes | None
    offset: int


Topics = dict[tuple[Converter, str], list[Message]]


def recorded(folder: Path, server: EmbeddedPostgres, broker: KafkaBroker, registry: str) -> Topics:
    """Let each converter's Debezium follow a history, and be killed in it; return what is in the topics."""
    server.execute(TYPED)
    server.execute("CREATE TABLE moved (id int PRIMARY KEY, n int, text text)")
    for table in TABLES:
        server.execute(f"ALTER TABLE {table} REPLICA IDENTITY FULL")
    server.execute(ROWS.format(first=1, last=9))
    server.execute("INSERT INTO moved SELECT i, i, 'first' FROM generate_series(1, 20) i")

    def begun(converter: Converter) -> Debezium:
        running = start_debezium(
            folder / converter.name,
            postgres=server.url,
            bootstrap=broker.bootstrap,
            tables=TABLES,
            converter=converter,
            registry=registry,
            prefix=converter.name.lower(),
        )
        running.await_all()
        running.restart()  # from here on it repeats itself
        return running

    with ExitStack() as running, ThreadPoolExecutor(len(Converter)) as at_once:
        each = [running.enter_context(one) for one in at_once.map(begun, Converter)]
        _everyone(at_once, each, KILLS, lambda number: history(server.url, number))
        found = {
            (converter, table): messages(broker, one.topic(table))
            for converter, one in zip(Converter, each, strict=True)
            for table in TABLES
        }
    return found


def _everyone(
    at_once: ThreadPoolExecutor, each: Sequence[Debezium], kills: int, happens: Callable[[int], None]
) -> None:
    def killed(one: Debezium) -> None:
        one.kill()  # maybe in the middle of what happened just now
        one.start()

    for number in range(kills):
        happens(2 * number)
        list(at_once.map(Debezium.await_all, each))
        happens(2 * number + 1)
        list(at_once.map(killed, each))
    happens(2 * kills)
    list(at_once.map(Debezium.await_all, each))


def history(url: str, number: int) -> None:
    """Change both tables: in transactions side by side, by COPY, keys among them. `number` tells one from another."""
    random = Random(number)
    with psycopg.connect(url) as one, psycopg.connect(url) as other:
        one.execute("UPDATE typed SET price = price + 1, words = 'other', times = NULL WHERE id % 2 = 0")
        one.execute("UPDATE typed SET part = part || 'x' WHERE id = 3")
        one.execute("DELETE FROM typed WHERE id = 5")
        first = 10 + 3 * number
        one.execute(ROWS.format(first=first, last=first + 2))
        one.commit()
        for _ in range(6):
            free = 1000 + random.randint(0, 10**8)
            lower, upper = (random.randint(1, 10) for _ in range(2))
            one.execute("INSERT INTO moved VALUES (%s, 1, 'one')", [free])
            other.execute("INSERT INTO moved VALUES (%s, 2, 'other')", [free + 1])
            one.execute("UPDATE moved SET n = n + 1 WHERE id <= %s", [lower])
            other.execute("UPDATE moved SET n = n * 2 WHERE id BETWEEN 11 AND %s", [10 + upper])
            if random.random() < 0.2:
                other.rollback()
            other.commit()
            one.execute("UPDATE moved SET id = -id WHERE id = %s OR id = %s", [free + 1, lower])
            one.execute("DELETE FROM moved WHERE id = %s", [-free - 1])
            one.commit()
        with one.cursor().copy("COPY moved (id, n, text) FROM STDIN") as copy:
            for n in range(30):
                copy.write_row((10**9 + 100 * number + n, n, "copied"))


def messages(broker: KafkaBroker, topic: str) -> list[Message]:
    """Return all messages of a topic of one partition."""
    settings: dict[str, Any] = {"bootstrap.servers": broker.bootstrap, "group.id": "unused", "log_level": 0}
    with closing(Consumer(settings)) as reader:
        _, end = reader.get_watermark_offsets(TopicPartition(topic, 0), timeout=30)
        reader.assign([TopicPartition(topic, 0, 0)])
        found = reader.consume(end, timeout=60)
    read = [Message(one.key(), one.value(), one.offset() or 0) for one in found if one.error() is None]
    assert len(read) == end
    return read
