"""``penstock check`` of a Kafka source: what is in the way is found, with what mends it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.servers import SharedRegistry
from tests.sources.kafka.followed import Topics
from tests.sources.kafka.made import described, source, topic_of

from penstock.errors import UsageError
from penstock.model import TableName
from penstock.sources.interface import Checked

UPSERT = "KEY FORMAT TEXT VALUE FORMAT TEXT ENVELOPE UPSERT"
BOTH = "KEY FORMAT JSON COLUMNS (id bigint) VALUE FORMAT JSON COLUMNS (id bigint)"


def told(checked: Checked) -> list[tuple[str, str]]:
    assert all(finding.hint for finding in checked.findings)
    return [(finding.level.value, finding.why) for finding in checked.findings]


def test_all_is_well(topics: Topics) -> None:
    name = topic_of(topics, (None, {"id": 1}))
    asked = source(topics, f"TOPIC '{name}' FORMAT JSON")
    assert asked.check() == Checked(((TableName("topic", name), True),), (), ready=True)
    (made,) = asked.create_instances(1)
    assert asked.check(made).ready


def test_nobody_is_there() -> None:
    checked = described("CREATE SOURCE c FROM KAFKA BROKER '127.0.0.1:1' TOPIC 't' FORMAT TEXT").check()
    assert not checked.ready
    assert "cannot be read" in checked.findings[0].why


def test_each_topic_has_its_own_word(topics: Topics) -> None:
    good, empty = topic_of(topics, (None, {"id": 1})), topic_of(topics)
    checked = source(topics, f"TOPICS ('{good}', '{empty}', 'nowhere') FORMAT JSON").check()
    assert [capturable for _, capturable in checked.tables] == [True, False, False]
    assert [finding.object for finding in checked.findings] == [empty, "nowhere"]
    assert not checked.ready


def test_settings_that_are_in_the_way(topics: Topics) -> None:
    compacted = topics.make(1, config={"cleanup.policy": "compact,delete"})
    asked = source(topics, f"TOPIC '{compacted}' {BOTH} ENVELOPE DEBEZIUM WITH (timestamp type = broker)")
    checked = asked.check()
    assert not checked.ready
    assert [level for level, _ in told(checked)] == ["error", "error"]
    assert "message.timestamp.type=LogAppendTime" in checked.findings[1].hint


def test_settings_that_will_hurt_one_day(topics: Topics) -> None:
    ageing = topics.make(1, config={"retention.ms": "1000000", "unclean.leader.election.enable": "true"})
    checked = source(topics, f"TOPIC '{ageing}' {UPSERT}").check()
    assert checked.ready
    assert [level for level, _ in told(checked)] == ["warning", "warning"]
    assert "cleanup.policy=compact" in checked.findings[0].hint
    assert "unclean.leader.election.enable=false" in checked.findings[1].hint


def test_a_topic_that_was_made_again(topics: Topics) -> None:
    name = topics.make(1)
    asked = source(topics, f"TOPIC '{name}' FORMAT TEXT")
    (made,) = asked.create_instances(1)
    topics.delete(name)
    topics.make(1, name)
    checked = asked.check(made)
    assert not checked.ready
    assert "deleted and made again" in checked.findings[0].why
    assert "ALTER SOURCES c RETRY TABLE c; Where that is refused: DROP SOURCES c;" in checked.findings[0].hint


def test_one_of_several_topics_that_was_made_again(topics: Topics) -> None:
    """Their tables begin together: what cannot be done with one of them is not proposed."""
    name, other = topics.make(1), topics.make(1)
    asked = source(topics, f"TOPICS ('{name}', '{other}') FORMAT TEXT")
    (made,) = asked.create_instances(1)
    topics.delete(name)
    topics.make(1, name)
    (found,) = asked.check(made).findings
    assert "RETRY TABLE" not in found.hint
    assert "DROP SOURCES c;" in found.hint
    with pytest.raises(UsageError, match="made together"):
        made.anew([made.produced()[0]])


def test_a_schema_that_has_grown(topics: Topics, registry: SharedRegistry) -> None:
    name = topics.make(1)
    fields: list[dict[str, Any]] = [{"name": "id", "type": "long"}]
    registry.register(f"{name}-value", json.dumps({"type": "record", "name": "r", "fields": fields}))
    asked = source(topics, f"TOPIC '{name}' FORMAT AVRO USING SCHEMA REGISTRY '{registry.url}'")
    (made,) = asked.create_instances(1)
    assert told(asked.check(made)) == []
    fields.append({"name": "note", "type": ["null", "string"], "default": None})
    registry.register(f"{name}-value", json.dumps({"type": "record", "name": "r", "fields": fields}))
    ((level, why),) = told(asked.check(made))
    assert (level, why.rpartition(": ")[2]) == ("info", "note")
