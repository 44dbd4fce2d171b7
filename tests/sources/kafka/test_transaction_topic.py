"""TRANSACTION METADATA in a statement: the topic is found and read, and ticks keep transactions whole."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import pytest
from tests.servers import SharedRegistry
from tests.sources.kafka.followed import Topics
from tests.sources.kafka.made import Made, created, refused, source
from tests.sources.kafka.transactions.transacted import Bank

from penstock.errors import UsageError
from penstock.formats import JsonFormat

ROWS = "KEY FORMAT JSON COLUMNS (id bigint) VALUE FORMAT JSON COLUMNS (id bigint, balance bigint)"
END = {
    "type": "record",
    "name": "TransactionMetadataValue",
    "fields": [{"name": "status", "type": "string"}, {"name": "id", "type": "string"}],
}


def named(bank: Bank) -> str:
    return f"TOPICS ({', '.join(repr(name) for name in bank.names)})"


def test_ticks_end_with_a_transaction(topics: Topics, tmp_path: Path) -> None:
    bank = Bank(topics, Random(1))
    bank.write(bank.copy())
    metadata = f"ENVELOPE DEBEZIUM UPSERT TRANSACTION METADATA (TOPIC '{bank.metadata}')"
    made = created(topics, f"{named(bank)} {ROWS} {metadata} WITH (timestamp frequency ms = 20)")
    assert made.metadata is not None
    assert made.metadata.topic.name == bank.metadata
    assert source(topics, f"{named(bank)} {ROWS} {metadata}").check(made).ready
    followed = Made(tmp_path, made)

    def taken() -> int:
        return sum(sum(followed.upto(name)) for name in bank.names)

    first, (begun, *events, end) = bank.transfer(), bank.transfer()
    bank.write([*first, begun, *events])
    whole = len(bank.balances) + len(first) - 2
    with followed.running():
        followed.until(lambda: made.waiting(followed.state) is not None)
        assert taken() == whole, "of the second transaction, nothing"
        bank.write([end])
        followed.until(lambda: taken() == whole + len(events))
    with pytest.raises(UsageError, match="made together"):
        made.anew(made.produced()[:1])


def test_it_is_found_where_it_is_written(topics: Topics, registry: SharedRegistry) -> None:
    bank = Bank(topics, Random(1))
    wrong = f"ENVELOPE DEBEZIUM TRANSACTION METADATA (TOPIC 'nowhere-{bank.metadata}')"
    assert "nowhere" in refused(topics, f"{named(bank)} {ROWS} {wrong}").message
    checked = source(topics, f"{named(bank)} {ROWS} {wrong}").check()
    assert [finding.object for finding in checked.findings] == [f"nowhere-{bank.metadata}"]
    several = topics.make(2)
    with_several = f"ENVELOPE DEBEZIUM TRANSACTION METADATA (TOPIC '{several}')"
    assert "has 2 partitions" in refused(topics, f"{named(bank)} {ROWS} {with_several}").message
    right = f"ENVELOPE DEBEZIUM TRANSACTION METADATA (TOPIC '{bank.metadata}')"
    record = {"type": "record", "name": "r", "fields": [{"name": "id", "type": "long"}]}
    avro = ROWS.replace("JSON COLUMNS (id bigint, balance bigint)", f"AVRO SCHEMA '{json.dumps(record)}'")
    assert "AVRO by a registry" in refused(topics, f"{named(bank)} {avro} {right}").message
    registry.register(f"{bank.metadata}-value", json.dumps(END))
    both = f"{named(bank)} {ROWS} USING SCHEMA REGISTRY '{registry.url}' {right}"
    told = created(topics, both).metadata
    assert told is not None
    assert isinstance(told.format.format, JsonFormat)
    assert told.format.framed
