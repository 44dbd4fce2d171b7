"""Kafka sources, made by SQL over a test broker, and run by their kind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.sources.kafka.followed import Followed, Topics

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
    """Read a statement."""
    found = parsed(statement)
    assert isinstance(found, CreateSource)
    made = described_source(found)
    assert isinstance(made, KafkaSource)
    return made


def source(topics: Topics, clauses: str) -> KafkaSource:
    """Describe a source over the broker of topics."""
    return described(f"CREATE SOURCE c FROM KAFKA BROKER '{topics.broker.bootstrap}' {clauses}")


def created(topics: Topics, clauses: str) -> KafkaConfig:
    """Make the one instance of a source; it can be stored, and is the same when it is read again."""
    (made,) = source(topics, clauses).create_instances(1)
    assert KafkaConfig.model_validate_json(made.model_dump_json()) == made
    return made


def refused(topics: Topics, clauses: str) -> PenstockError:
    """Make a source that cannot be; return what is said of it."""
    with pytest.raises((DefiniteError, UsageError)) as caught:
        created(topics, clauses)
    assert caught.value.hint
    return caught.value


def columns(made: KafkaConfig, table: int = 0) -> dict[str, str]:
    """Return the columns of a table, and their types."""
    return {field.name: str(field.type) for field in made.produced()[table].table_schema().columns}


def topic_of(topics: Topics, *messages: tuple[Any, Any], name: str | None = None, partitions: int = 1) -> str:
    """Make a topic with messages: key and value, each JSON, bytes or nothing."""
    made = topics.make(partitions, name)
    for key, value in messages:
        topics.producer.produce(made, _encoded(value), _encoded(key))
    assert topics.producer.flush(PATIENCE) == 0
    return made


def _encoded(part: Any) -> bytes | None:
    return part if part is None or isinstance(part, bytes) else json.dumps(part).encode()


class Made(Followed):
    """A config that its kind runs."""

    def __init__(self, folder: Path, config: KafkaConfig) -> None:
        self.log = SqliteLog(folder / "log.db")
        self.log.create(Lsn.ZERO)
        self.state = folder / "state"
        self._raised = None
        self.config = config

    def instance(self) -> Instance:
        """Make an instance."""
        return kind("KAFKA").factory().instantiate(self.config, self.log, self.state)
