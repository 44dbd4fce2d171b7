"""Debezium's JDBC sink connector in Kafka Connect, which writes topics to tables of a Postgres database.

::

    debezium.lock, debezium_jdbc.lock ─▶ jars
    topic ─▶ converter ─▶ [ExtractNewRecordState] ─▶ JDBC sink connector ─▶ table <connector>_<topic>, dots as _

It reads committed messages only, creates the tables from the schemas of messages, and applies inserts, updates and
deletes by key. Its output is in ``folder/connect.log``.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from psycopg.conninfo import conninfo_to_dict

from penstock.testing.debezium import Converter
from penstock.testing.kafka_connect import KafkaConnect

__all__ = ["DebeziumJdbcSink"]


class DebeziumJdbcSink(KafkaConnect):
    """A Kafka Connect process with JDBC sink connectors into one database."""

    NAME, LOG = "Kafka Connect", "connect.log"
    LOCKS = ("debezium.lock", "debezium_jdbc.lock")

    def __init__(self, folder: Path, postgres: str, bootstrap: str, registry: str | None = None) -> None:
        super().__init__(folder, bootstrap)
        self._postgres, self._registry = postgres, registry

    def add(self, name: str, topics: Sequence[str], converter: Converter, *, unwrap: bool = False) -> None:
        """Add a connector, which runs after the next start; `unwrap` adds the transform ExtractNewRecordState."""
        transform = {
            "transforms": "unwrap",
            "transforms.unwrap.type": "io.debezium.transforms.ExtractNewRecordState",
        }
        connector = {**_connector(self._postgres, name, topics), **converter.settings(self._registry)}
        self._connectors[name] = {**connector, **(transform if unwrap else {})}

    def table(self, name: str, topic: str) -> str:
        """Return the table that a connector writes a topic to."""
        return f"{name}_{topic}".replace(".", "_")

    def check(self) -> None:
        """Raise `DefiniteError` if the process or one of its connectors has failed."""
        self._raise_if_failed()


def _connector(postgres: str, name: str, topics: Sequence[str]) -> dict[str, str]:
    where = conninfo_to_dict(postgres)
    return {
        "connector.class": "io.debezium.connector.jdbc.JdbcSinkConnector",
        "topics": ",".join(topics),
        "consumer.override.isolation.level": "read_committed",
        "connection.url": f"jdbc:postgresql://{where['host']}:{where['port']}/{where['dbname']}",
        "connection.username": str(where["user"]),
        "connection.password": str(where.get("password", "")),
        "collection.name.format": f"{name}_${{topic}}",
        "insert.mode": "upsert",
        "delete.enabled": "true",
        "primary.key.mode": "record_key",
        "schema.evolution": "basic",
    }
