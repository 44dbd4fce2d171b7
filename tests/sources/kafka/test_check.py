"""``penstock check`` of a Kafka source: problems are found, each with a hint."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.servers import SharedRegistry
from tests.sources.kafka.sql_sources import described, source, topic_of
from tests.sources.kafka.topic_capture import Topics

from penstock.errors import UsageError
from penstock.model import TableName
from penstock.sources.interface import Checked

UPSERT = "KEY FORMAT TEXT VALUE FORMAT TEXT ENVELOPE UPSERT"
BOTH = "KEY FORMAT JSON COLUMNS (id bigint) VALUE FORMAT JSON COLUMNS (id bigint)"


def levels_and_reasons(checked: Checked) -> list[tuple[str, str]]:
    assert all(finding.hint for finding in checked.findings)
    return [(finding.level.value, finding.why) for finding in checked.findings]


def test_check_without_findings(topics: Topics) -> None:
    name = topic_of(topics, (None, {"id": 1}))
    kafka_source = source(topics, f"TOPIC '{name}' FORMAT JSON")
    assert kafka_source.check() == Checked(((TableName("topic", name), True),), (), ready=True)
    (config,) = kafka_source.create_instances(1)
    assert kafka_source.check(config).ready


def test_unreachable_broker() -> None:
    checked = described("CREATE SOURCE c FROM KAFKA BROKER '127.0.0.1:1' TOPIC 't' FORMAT TEXT").check()
    assert not checked.ready
    assert "could not read" in checked.findings[0].why


def test_each_topic_has_its_own_finding(topics: Topics) -> None:
    good, empty = topic_of(topics, (None, {"id": 1})), topic_of(topics)
    checked = source(topics, f"TOPICS ('{good}', '{empty}', 'nowhere') FORMAT JSON").check()
    assert [capturable for _, capturable in checked.tables] == [True, False, False]
    assert [finding.object for finding in checked.findings] == [empty, "nowhere"]
    assert not checked.ready


def test_topic_settings_that_are_errors(topics: Topics) -> None:
    compacted = topics.make(1, config={"cleanup.policy": "compact,delete"})
    kafka_source = source(topics, f"TOPIC '{compacted}' {BOTH} ENVELOPE DEBEZIUM WITH (timestamp type = broker)")
    checked = kafka_source.check()
    assert not checked.ready
    assert [level for level, _ in levels_and_reasons(checked)] == ["error", "error"]
    assert "message.timestamp.type=LogAppendTime" in checked.findings[1].hint


def test_topic_settings_that_are_warnings(topics: Topics) -> None:
    expiring = topics.make(1, config={"retention.ms": "1000000", "unclean.leader.election.enable": "true"})
    checked = source(topics, f"TOPIC '{expiring}' {UPSERT}").check()
    assert checked.ready
    assert [level for level, _ in levels_and_reasons(checked)] == ["warning", "warning"]
    assert "cleanup.policy=compact" in checked.findings[0].hint
    assert "unclean.leader.election.enable=false" in checked.findings[1].hint


def test_recreated_topic_is_an_error(topics: Topics) -> None:
    name = topics.make(1)
    kafka_source = source(topics, f"TOPIC '{name}' FORMAT TEXT")
    (config,) = kafka_source.create_instances(1)
    topics.delete(name)
    topics.make(1, name)
    checked = kafka_source.check(config)
    assert not checked.ready
    assert "deleted and recreated" in checked.findings[0].why
    assert "ALTER SOURCES c RETRY TABLE c; If that is rejected: DROP SOURCES c;" in checked.findings[0].hint


def test_one_recreated_topic_of_several(topics: Topics) -> None:
    """Their tables restart together: the hint must not propose restarting only one of them."""
    name, other = topics.make(1), topics.make(1)
    kafka_source = source(topics, f"TOPICS ('{name}', '{other}') FORMAT TEXT")
    (config,) = kafka_source.create_instances(1)
    topics.delete(name)
    topics.make(1, name)
    (found,) = kafka_source.check(config).findings
    assert "RETRY TABLE" not in found.hint
    assert "DROP SOURCES c;" in found.hint
    with pytest.raises(UsageError, match="share their positions"):
        config.restarted([config.produced()[0]])


def test_schema_with_added_fields_is_reported(topics: Topics, registry: SharedRegistry) -> None:
    """Capture adds those that can be columns, unless they are held: see `tests/engine/test_topic_growth.py`."""
    name = topics.make(1)
    inner = {"type": "record", "name": "i", "fields": [{"name": "k", "type": "long"}]}
    fields: list[dict[str, Any]] = [{"name": "id", "type": "long"}, {"name": "inner", "type": inner}]
    registry.register(f"{name}-value", json.dumps({"type": "record", "name": "r", "fields": fields}))
    place = f"TOPIC '{name}' FORMAT AVRO USING SCHEMA REGISTRY '{registry.url}'"
    kafka_source = source(topics, place)
    (config,) = kafka_source.create_instances(1)
    assert levels_and_reasons(kafka_source.check(config)) == []
    deeper = {**inner, "fields": [*inner["fields"], {"name": "l", "type": "long", "default": 0}]}
    fields[1:] = [{"name": "inner", "type": deeper}, {"name": "note", "type": ["null", "string"], "default": None}]
    registry.register(f"{name}-value", json.dumps({"type": "record", "name": "r", "fields": fields}))
    ((level, why),) = levels_and_reasons(kafka_source.check(config))
    assert (level, why.rpartition(": ")[2]) == ("info", "inner.l")
    held = source(topics, f"{place} WITH (new columns = 'hold')")
    found = held.check(config).findings
    assert [finding.why.rpartition(": ")[2] for finding in found] == ["inner.l", "note"]
    assert "SET (new columns = 'add')" in found[1].hint
