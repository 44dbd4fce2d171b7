"""Recorded messages as changes: decoded, deduplicated, and without the fields that differ from run to run."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import fastavro
from tests.debezium.recording import TRANSACTION, Message, Recording, canonical, schema_id

from penstock.testing.debezium import Converter

Read = Callable[[bytes], dict[str, Any]]
_VOLATILE = {"version", "db", "lsn", "xmin", "txId", "sequence", "ts_ms", "ts_us", "ts_ns"}


def reader(converter: Converter, schemas: Mapping[int, str]) -> Read:
    """Return a function that decodes keys and values of a converter; `schemas` are the Avro schemas by id."""
    if converter is not Converter.AVRO:
        return _payload if converter is Converter.JSON_WITH_SCHEMAS else _plain
    parsed = {number: fastavro.parse_schema(json.loads(text)) for number, text in schemas.items()}

    @cache
    def read(framed: bytes) -> dict[str, Any]:
        record: Any = fastavro.schemaless_reader(io.BytesIO(framed[5:]), parsed[schema_id(framed)], None)
        return dict(record)

    return read


def _plain(value: bytes) -> dict[str, Any]:
    return dict(json.loads(value))


def _payload(value: bytes) -> dict[str, Any]:
    record = json.loads(value)
    assert record.keys() == {"schema", "payload"}
    return dict(record["payload"])


@dataclass(frozen=True)
class Transaction:
    """A transaction from its END message and its events, without positions and times."""

    counts: dict[str, int]
    """Events by table."""
    events: list[Any]
    """Table, op, key, before, after and source of each, in the order of the transaction."""


class Changes:
    """The changes in the topics of one converter."""

    def __init__(self, recording: Recording, converter: Converter) -> None:
        self._recording, self._converter = recording, converter
        self.read = reader(converter, recording.schemas)
        self.records = {
            table: [
                (self.read(one.key or b""), self.read(one.value)) for one in self._of(table) if one.value is not None
            ]
            for table in recording.tables
        }
        """Key and value of all messages of a table except tombstones, with repeats."""
        self.metadata = [self.read(one.value) for one in self._of(TRANSACTION) if one.value is not None]

    def snapshot_rows(self, table: str) -> dict[str, Any]:
        """Return the rows of the initial snapshot, by key; if it was taken twice, the later rows."""
        found = [(key, value) for key, value in self.records[table] if value["op"] == "r"]
        return {_text(key): canonical(value["after"]) for key, value in found}

    def tombstones(self, table: str) -> set[str]:
        """Return the keys that were deleted."""
        return {_text(self.read(one.key or b"")) for one in self._of(table) if one.value is None}

    def transactions(self) -> list[Transaction]:
        """Return each transaction once, in the order of their ENDs."""
        ends = {_number(end): end for end in reversed(self.metadata) if end["status"] == "END"}
        events: dict[str, dict[int, Any]] = {number: {} for number in ends}
        for table, records in self.records.items():
            for key, value in records:
                if value["transaction"] is not None:
                    number, order = _number(value["transaction"]), value["transaction"]["total_order"]
                    events[number][order] = _event(table, key, value)
        return [
            Transaction(
                {one["data_collection"]: one["event_count"] for one in ends[number]["data_collections"]},
                [event for _, event in sorted(events[number].items())],
            )
            for number in reversed(ends)
        ]

    def schemas(self) -> dict[str, Any]:
        """Return the schemas of keys and values by topic: from the registry, from the messages, or as JSON paths."""
        parts = {
            f"{table} {part}": [text for one in self._of(table) if (text := getattr(one, part)) is not None]
            for table in [*self._recording.tables, TRANSACTION]
            for part in ("key", "value")
        }
        return {name: self._schema(values) for name, values in parts.items()}

    def _schema(self, values: list[bytes]) -> Any:
        match self._converter:
            case Converter.AVRO:
                used = dict.fromkeys(map(schema_id, values))
                return [json.loads(self._recording.schemas[number]) for number in used]
            case Converter.JSON_WITH_SCHEMAS:
                used_texts = dict.fromkeys(json.dumps(json.loads(value)["schema"]) for value in values)
                return [json.loads(text) for text in used_texts]
        return sorted({path for value in values for path in _paths("", json.loads(value))})

    def _of(self, table: str) -> tuple[Message, ...]:
        return self._recording.topics[self._converter, table].messages


def _number(metadata: dict[str, Any]) -> str:
    """Return the xid of a transaction; its id also has a position, which differs between BEGIN and END."""
    return str(metadata["id"]).partition(":")[0]


def _event(table: str, key: Any, value: dict[str, Any]) -> list[Any]:
    source = {name: item for name, item in value["source"].items() if name not in _VOLATILE}
    return [table, value["op"], _text(key), canonical(value["before"]), canonical(value["after"]), source]


def _text(key: Any) -> str:
    return json.dumps(canonical(key), sort_keys=True)


def _paths(path: str, value: Any) -> list[str]:
    match value:
        case dict():
            return [found for name, item in value.items() for found in _paths(f"{path}.{name}", item)]
        case list():
            return [found for item in value for found in _paths(f"{path}[]", item)]
    return [f"{path} {type(value).__name__}"]
