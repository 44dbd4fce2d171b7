"""Sources over a real broker, made by SQL: what is found of their topics is fixed, stored, and followed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.sources.kafka.conftest import Guarded
from tests.sources.kafka.followed import Followed, Topics

from penstock.changelog.sqlite.log import SqliteLog
from penstock.control.obeying import described_source, parsed
from penstock.errors import DefiniteError, PenstockError, UsageError
from penstock.model import TableName
from penstock.positions import Lsn
from penstock.sources.family import Instance
from penstock.sources.kafka.config import KafkaConfig
from penstock.sources.kafka.spec import KafkaSource
from penstock.sources.kinds import kind
from penstock.sql.statements import CreateSource

Pairs = Sequence[tuple[Any, Any]]


@pytest.fixture
def topics(guarded: Guarded) -> Topics:
    return Topics(guarded.broker)


def source(statement: str) -> KafkaSource:
    found = parsed(statement)
    assert isinstance(found, CreateSource)
    made = described_source(found)
    assert isinstance(made, KafkaSource)
    return made


def created(topics: Topics, clauses: str) -> KafkaConfig:
    """Make the one instance of a source, and store it as the catalog does."""
    (made,) = source(f"CREATE SOURCE c FROM KAFKA BROKER '{topics.broker.bootstrap}' {clauses}").create_instances(1)
    assert KafkaConfig.model_validate_json(made.model_dump_json()) == made
    return made


def columns(made: KafkaConfig, table: int = 0) -> dict[str, str]:
    return {field.name: str(field.type) for field in made.produced()[table].table_schema().columns}


def topic_of(topics: Topics, *messages: tuple[Any, Any], partitions: int = 1, name: str | None = None) -> str:
    """Make a topic with messages; each part is JSON, bytes, or nothing."""
    made = topics.make(partitions, name)
    for key, value in messages:
        topics.producer.produce(made, encoded(value), encoded(key))
    assert topics.producer.flush(20) == 0
    return made


def encoded(part: Any) -> bytes | None:
    return part if part is None or isinstance(part, bytes) else json.dumps(part).encode()


class TestColumns:
    """How the columns of a table are told."""

    def test_text(self, topics: Topics) -> None:
        name = topic_of(topics)
        made = created(topics, f"TOPIC '{name}' FORMAT TEXT INCLUDE OFFSET, PARTITION AS p")
        assert columns(made) == {"text": "string", "offset": "int64", "p": "int32"}
        (table,) = made.produced()
        assert (table.name, table.alias, table.key) == (TableName("topic", name), "c", ())

    def test_json_that_is_given(self, topics: Topics) -> None:
        name = topic_of(topics)
        clauses = f"TOPIC '{name}' KEY FORMAT TEXT VALUE FORMAT JSON COLUMNS (id bigint, tags array<string>)"
        made = created(topics, f"{clauses} ENVELOPE UPSERT")
        assert columns(made) == {"text": "string", "id": "int64", "tags": "list<element: string>"}
        assert made.produced()[0].key == ("text",)

    def test_json_that_is_inferred_once(self, topics: Topics) -> None:
        name = topic_of(topics, (None, {"id": 1}), (None, {"id": 2, "name": "x"}), (None, None))
        assert columns(created(topics, f"TOPIC '{name}' FORMAT JSON")) == {"id": "int64", "name": "string"}

    def test_json_without_a_message(self, topics: Topics) -> None:
        name = topic_of(topics)
        with pytest.raises(DefiniteError, match=f"topic {name} has no messages") as caught:
            created(topics, f"TOPIC '{name}' FORMAT JSON")
        assert "JSON COLUMNS (id bigint, …)" in caught.value.remedy

    def test_csv(self, topics: Topics) -> None:
        name = topic_of(topics)
        assert list(columns(created(topics, f"TOPIC '{name}' FORMAT CSV COLUMNS 2"))) == ["column1", "column2"]


class TestRunning:
    """What was made runs."""

    def test_by_the_kind(self, topics: Topics, tmp_path: Path) -> None:
        name = topic_of(topics, (None, {"id": 1}), partitions=2)
        made = created(topics, f"TOPIC '{name}' FORMAT JSON WITH (timestamp frequency ms = 20)")
        followed = Made(tmp_path, made)
        followed.run_until(lambda: followed.durable() > 0)
        topics.fill(name, 2, 3)
        followed.run_until(lambda: sum(followed.upto(name)) == 6)


class Made(Followed):
    """A config that the kind runs."""

    def __init__(self, folder: Path, config: KafkaConfig) -> None:
        self.log = SqliteLog(folder / "log.db")
        self.log.create(Lsn.ZERO)
        self.state = folder / "state"
        self._raised = None
        self.config = config

    def instance(self) -> Instance:
        return kind("KAFKA").factory().instantiate(self.config, self.log, self.state)


def refused(topics: Topics, clauses: str) -> PenstockError:
    with pytest.raises((DefiniteError, UsageError)) as caught:
        created(topics, clauses)
    assert caught.value.remedy
    return caught.value


def test_a_topic_that_is_not_there(topics: Topics) -> None:
    assert "nowhere" in refused(topics, "TOPIC 'nowhere' FORMAT TEXT").message
