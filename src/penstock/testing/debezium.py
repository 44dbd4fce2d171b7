"""A local Debezium in Kafka Connect, which captures a Postgres database and writes its changes to Kafka.

::

    debezium.lock ─▶ jars in the cache (downloaded once and verified, like Spark's)
                       └─▶ start_debezium(folder, …) ─▶ java ConnectStandalone ─▶ <prefix>.<schema>.<table>
                             ▲        │                                           <prefix>.transaction
                             │        └─ folder/offsets: its progress             <prefix>.message (test marks)
                             └── watch (sh) ── kill -9 when this process ends

It takes an initial snapshot of the tables and then streams their changes. It stores its progress only when it is
stopped cleanly. After `kill` and `start`, it therefore repeats everything since the last `stop`; if it is killed before
the first `stop`, it takes the snapshot again. Its output is in ``folder/debezium.log``.

`await_all` waits until everything that was committed is in the topics: it writes a mark to the WAL
(`pg_logical_emit_message`) and waits until Debezium has published it. Debezium sends to topics in WAL order, one
request at a time, and a request is large enough for all pending changes of a test: no change that was committed before
the mark arrives after it.
"""

from __future__ import annotations

import enum
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path

import psycopg
from confluent_kafka import Consumer
from confluent_kafka.cimpl import TopicPartition
from psycopg.conninfo import conninfo_to_dict

from penstock.errors import TransientError
from penstock.testing.kafka_connect import KafkaConnect

__all__ = ["Converter", "Debezium", "start_debezium"]

_ALL_SECONDS = 180.0
_MARK_SECONDS = 5.0


class Converter(enum.Enum):
    """The format of keys and values."""

    JSON = "json"
    """Plain JSON, without type information."""
    JSON_WITH_SCHEMAS = "json with schemas"
    """JSON with the Connect schema in every message."""
    AVRO = "avro"
    """Avro with schema ids of a schema registry."""

    def settings(self, registry: str | None) -> dict[str, str]:
        """Return the settings of a connector; `registry` is the URL of `penstock.testing.registry`, for Avro."""
        how = _converter(self, registry)
        return {f"{part}.converter{name}": value for part in ("key", "value") for name, value in how.items()}


def start_debezium(
    folder: Path,
    *,
    postgres: str,
    bootstrap: str,
    tables: Sequence[str],
    converter: Converter = Converter.JSON,
    registry: str | None = None,
    prefix: str = "dbz",
    settings: Mapping[str, str] | None = None,
) -> Debezium:
    """Start Debezium for `tables` (``schema.table``) of the database `postgres` (a URL), and return when it runs.

    `registry` is the URL of `penstock.testing.registry`, for Avro. `prefix` is the prefix of the names of topics, slot
    and publication. `settings` are additional settings of the connector, which override the default ones.
    """
    made = Debezium(folder, postgres, bootstrap, registry)
    made.add(prefix, tables, converter, settings)
    made.start()
    return made


class Debezium(KafkaConnect):
    """A Debezium process, which stores its progress when it is stopped cleanly.

    One process runs any number of connectors, each with its own tables, converter, slot and topics: they are stopped
    and killed together. Properties that name a topic refer to the first connector.
    """

    NAME, LOG = "Debezium", "debezium.log"
    LOCKS = ("debezium.lock",)

    def __init__(self, folder: Path, postgres: str, bootstrap: str, registry: str | None = None) -> None:
        super().__init__(folder, bootstrap)
        self._postgres, self._registry = postgres, registry

    def add(
        self,
        prefix: str,
        tables: Sequence[str],
        converter: Converter = Converter.JSON,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        """Add a connector, which runs after the next start; see `start_debezium`."""
        connector = {**_connector(self._postgres, tables, prefix), **converter.settings(self._registry)}
        self._connectors[prefix] = {**connector, **(settings or {})}

    def topic(self, table: str) -> str:
        """Return the topic of a table (``schema.table``)."""
        return f"{self._prefix}.{table}"

    @property
    def transaction_topic(self) -> str:
        """The topic with the transaction metadata."""
        return f"{self._prefix}.transaction"

    @property
    def _prefix(self) -> str:
        return next(iter(self._connectors))

    def await_all(self, seconds: float = _ALL_SECONDS) -> None:
        """Wait until everything that was committed before this call is in the topics of all connectors."""
        deadline = time.monotonic() + seconds
        for prefix in self._connectors:
            if not self._is_marked(prefix, deadline):
                message = f"Debezium in {self._folder} did not publish all changes within {seconds:.0f} s"
                raise TransientError(message, f"Check {self._folder / 'debezium.log'}, or increase the timeout.")

    def _is_marked(self, prefix: str, deadline: float) -> bool:
        """Write a mark to the WAL, and return whether a connector publishes it in time."""
        mark = f"mark-{uuid.uuid4().hex}"
        with closing(_reader(self._bootstrap)) as reader:
            reader.assign([TopicPartition(f"{prefix}.message", 0, 0)])
            while time.monotonic() < deadline:
                # Write it repeatedly: a mark before the creation of the slot is not published.
                with psycopg.connect(self._postgres, autocommit=True) as connection:
                    connection.execute("SELECT pg_logical_emit_message(false, %s, '')", [mark])
                if _arrives(reader, mark.encode(), _MARK_SECONDS):
                    return True
                self._raise_if_failed()
        return False


def _converter(converter: Converter, registry: str | None) -> dict[str, str]:
    if converter is not Converter.AVRO:
        has_schemas = converter is Converter.JSON_WITH_SCHEMAS
        return {"": "org.apache.kafka.connect.json.JsonConverter", ".schemas.enable": str(has_schemas).lower()}
    assert registry is not None, "Avro requires a registry"
    return {
        "": "io.apicurio.registry.utils.converter.AvroConverter",
        ".apicurio.registry.url": registry.replace("/ccompat/v7", "/registry/v2"),
        ".apicurio.registry.auto-register": "true",
        ".apicurio.registry.find-latest": "true",
        ".apicurio.registry.as-confluent": "true",
        ".apicurio.registry.headers.enabled": "false",
        ".apicurio.registry.use-id": "contentId",
    }


def _connector(postgres: str, tables: Sequence[str], prefix: str) -> dict[str, str]:
    where = conninfo_to_dict(postgres)
    name = "".join(letter if letter.isalnum() else "_" for letter in prefix.lower())
    return {
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "database.hostname": str(where["host"]),
        "database.port": str(where["port"]),
        "database.user": str(where["user"]),
        "database.password": str(where.get("password", "")),
        "database.dbname": str(where["dbname"]),
        "plugin.name": "pgoutput",
        "slot.name": f"{name}_slot",
        "publication.name": f"{name}_publication",
        "publication.autocreate.mode": "filtered",
        "topic.prefix": prefix,
        "table.include.list": ",".join(tables),
        "snapshot.mode": "initial",
        "provide.transaction.metadata": "true",
        "topic.creation.default.replication.factor": "1",
        "topic.creation.default.partitions": "1",
        # After a crash the slot stays active until Postgres notices that the connection is closed.
        "slot.max.retries": "120",
        "slot.retry.delay.ms": "500",
        "poll.interval.ms": "50",
    }


def _reader(bootstrap: str) -> Consumer:
    quiet = {"log_level": 0, "allow.auto.create.topics": False, "topic.metadata.refresh.interval.ms": 200}
    return Consumer({"bootstrap.servers": bootstrap, "group.id": "unused", "enable.auto.commit": False, **quiet})


def _arrives(reader: Consumer, word: bytes, seconds: float) -> bool:
    """Return whether a message that contains `word` arrives within `seconds`."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        message = reader.poll(0.1)
        if message is not None and message.error() is None and word in (message.value() or b""):
            return True
    return False
