"""TRANSACTION METADATA in a statement: the topic is resolved and read, and ticks contain whole transactions."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import pytest
from tests.servers import SharedRegistry
from tests.sources.kafka.sql_sources import ConfigCapture, created, creation_error, source
from tests.sources.kafka.topic_capture import Topics
from tests.sources.kafka.transactions.transaction_capture import Bank

from penstock.errors import UsageError
from penstock.formats import JsonFormat

ROWS = "KEY FORMAT JSON COLUMNS (id bigint) VALUE FORMAT JSON COLUMNS (id bigint, balance bigint)"
END = {
    "type": "record",
    "name": "TransactionMetadataValue",
    "fields": [{"name": "status", "type": "string"}, {"name": "id", "type": "string"}],
}


def topics_clause(bank: Bank) -> str:
    return f"TOPICS ({', '.join(repr(name) for name in bank.names)})"


def test_ticks_end_with_a_transaction(topics: Topics, tmp_path: Path) -> None:
    bank = Bank(topics, Random(1))
    bank.write(bank.copy())
    metadata = f"ENVELOPE DEBEZIUM UPSERT TRANSACTION METADATA (TOPIC '{bank.metadata}')"
    config = created(topics, f"{topics_clause(bank)} {ROWS} {metadata} WITH (timestamp frequency ms = 20)")
    assert config.metadata is not None
    assert config.metadata.topic.name == bank.metadata
    assert source(topics, f"{topics_clause(bank)} {ROWS} {metadata}").check(config).ready
    capture = ConfigCapture(tmp_path, config)

    def captured_count() -> int:
        return sum(sum(capture.upto(name)) for name in bank.names)

    first, (begin, *events, end) = bank.transfer(), bank.transfer()
    bank.write([*first, begin, *events])
    whole = len(bank.balances) + len(first) - 2
    with capture.running():
        capture.until(lambda: config.waiting(capture.state) is not None)
        assert captured_count() == whole, "nothing of the second transaction"
        bank.write([end])
        capture.until(lambda: captured_count() == whole + len(events))
    with pytest.raises(UsageError, match="share their positions"):
        config.restarted(config.produced()[:1])


def test_metadata_topic_and_format_are_resolved(topics: Topics, registry: SharedRegistry) -> None:
    bank = Bank(topics, Random(1))
    wrong = f"ENVELOPE DEBEZIUM TRANSACTION METADATA (TOPIC 'nowhere-{bank.metadata}')"
    assert "nowhere" in creation_error(topics, f"{topics_clause(bank)} {ROWS} {wrong}").message
    checked = source(topics, f"{topics_clause(bank)} {ROWS} {wrong}").check()
    assert [finding.object for finding in checked.findings] == [f"nowhere-{bank.metadata}"]
    several = topics.make(2)
    with_several = f"ENVELOPE DEBEZIUM TRANSACTION METADATA (TOPIC '{several}')"
    assert "has 2 partitions" in creation_error(topics, f"{topics_clause(bank)} {ROWS} {with_several}").message
    right = f"ENVELOPE DEBEZIUM TRANSACTION METADATA (TOPIC '{bank.metadata}')"
    record = {"type": "record", "name": "r", "fields": [{"name": "id", "type": "long"}]}
    avro = ROWS.replace("JSON COLUMNS (id bigint, balance bigint)", f"AVRO SCHEMA '{json.dumps(record)}'")
    assert "AVRO with a schema registry" in creation_error(topics, f"{topics_clause(bank)} {avro} {right}").message
    registry.register(f"{bank.metadata}-value", json.dumps(END))
    both = f"{topics_clause(bank)} {ROWS} USING SCHEMA REGISTRY '{registry.url}' {right}"
    resolved = created(topics, both).metadata
    assert resolved is not None
    assert isinstance(resolved.format.format, JsonFormat)
    assert resolved.format.is_framed
