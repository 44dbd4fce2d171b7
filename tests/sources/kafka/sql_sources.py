"""Kafka sources created by SQL on a test broker, and run by their kind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.sources.kafka.topic_capture import TopicCapture, Topics

from penstock.changelog.sqlite.log import SqliteLog
from penstock.errors import DefiniteError, PenstockError, UsageError
from penstock.executor import described_source, parsed
from penstock.positions import Lsn
from penstock.sources.interface import Instance
from penstock.sources.kafka.config import KafkaConfig
from penstock.sources.kafka.spec import KafkaSource
from penstock.sources.kinds import kind
from penstock.sql.statements import CreateSource
from penstock.testing.waiting import PATIENCE


def described(statement: str) -> KafkaSource:
    """Parse a CREATE SOURCE statement."""
    found = parsed(statement)
    assert isinstance(found, CreateSource)
    result = described_source(found)
    assert isinstance(result, KafkaSource)
    return result


def source(topics: Topics, clauses: str) -> KafkaSource:
    """Return a source on the broker of the topics."""
    return described(f"CREATE SOURCE c FROM KAFKA BROKER '{topics.broker.bootstrap}' {clauses}")


def created(topics: Topics, clauses: str) -> KafkaConfig:
    """Create the only instance of a source, and check that its config round-trips through JSON."""
    (config,) = source(topics, clauses).create_instances(1)
    assert KafkaConfig.model_validate_json(config.model_dump_json()) == config
    return config


def creation_error(topics: Topics, clauses: str) -> PenstockError:
    """Create an invalid source; return the error."""
    with pytest.raises((DefiniteError, UsageError)) as caught:
        created(topics, clauses)
    assert caught.value.hint
    return caught.value


def columns(config: KafkaConfig, table: int = 0) -> dict[str, str]:
    """Return the columns of a table, and their types."""
    return {field.name: str(field.type) for field in config.produced()[table].table_schema().columns}


def topic_of(topics: Topics, *messages: tuple[Any, Any], name: str | None = None, partitions: int = 1) -> str:
    """Create a topic with messages: key and value, each JSON, bytes or None."""
    topic = topics.make(partitions, name)
    for key, value in messages:
        topics.producer.produce(topic, _encoded(value), _encoded(key))
    assert topics.producer.flush(PATIENCE) == 0
    return topic


def _encoded(part: Any) -> bytes | None:
    return part if part is None or isinstance(part, bytes) else json.dumps(part).encode()


class ConfigCapture(TopicCapture):
    """Capture of a config by its kind."""

    def __init__(self, folder: Path, config: KafkaConfig) -> None:
        self.log = SqliteLog(folder / "log.db")
        self.log.create(Lsn.ZERO)
        self.state = folder / "state"
        self._raised = None
        self.config = config

    def instance(self) -> Instance:
        """Create an instance."""
        return kind("KAFKA").factory().instantiate(self.config, self.config.reading(self.log, self.state), self.state)
