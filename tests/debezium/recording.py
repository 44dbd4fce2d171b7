"""Debezium's output as files: the messages of its topics, the schemas of a registry, and the rows of Postgres.

::

    <recording>/postgres.json              the number of kills of Debezium, and the rows in Postgres at the end
    <recording>/<converter>/<table>.jsonl  a topic: a header line, then one line for each message
    <recording>/avro/schemas.json          the schemas that Avro messages refer to, by id

A line of a message is ``[milliseconds, partition, key, value]``. JSON is stored as text and Avro as base64. The schema
that begins each message of JSON with schemas is in the first line, and messages refer to it by its number.
"""

from __future__ import annotations

import base64
import datetime
import json
from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer
from confluent_kafka.cimpl import TopicPartition

from penstock.testing.debezium import Converter

TRANSACTION = "transaction"
"""The name of the transaction metadata topic; the other topics are named by their table."""
_PAYLOAD = ',"payload":'
_FRAME = 5


@dataclass(frozen=True)
class Message:
    """One message, and when it was written: in milliseconds since the first message of the recording."""

    at: int
    partition: int
    key: bytes | None
    value: bytes | None


@dataclass(frozen=True)
class Topic:
    """The messages of a topic, in order of time; offsets of each partition start at zero."""

    partitions: int
    messages: tuple[Message, ...]


@dataclass(frozen=True)
class Rows:
    """The rows of a table, each value in its canonical form."""

    columns: list[str]
    rows: list[list[Any]]


@dataclass(frozen=True)
class Recording:
    """The topics of one history, by converter and table, and the rows in Postgres at its end."""

    topics: dict[tuple[Converter, str], Topic]
    schemas: dict[int, str]
    rows: dict[str, Rows]
    kills: int = 1
    tables: list[str] = field(init=False)
    converters: list[Converter] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "tables", list(self.rows))
        object.__setattr__(self, "converters", [one for one in Converter if (one, TRANSACTION) in self.topics])

    def save(self, folder: Path) -> None:
        """Write all files."""
        for (converter, table), topic in self.topics.items():
            _write(folder / converter.name.lower() / f"{table}.jsonl", _topic_lines(topic, converter))
        if self.schemas:
            schemas = {str(number): text for number, text in sorted(self.schemas.items())}
            _write(folder / "avro" / "schemas.json", [json.dumps(schemas, indent=0)])
        rows = {table: {"columns": one.columns, "rows": one.rows} for table, one in self.rows.items()}
        _write(folder / "postgres.json", [_text({"kills": self.kills, "rows": rows})])

    @classmethod
    def load(cls, folder: Path) -> Recording:
        """Read all files."""
        known = json.loads((folder / "postgres.json").read_text("utf-8"))
        schemas = folder / "avro" / "schemas.json"
        named = json.loads(schemas.read_text("utf-8")) if schemas.exists() else {}
        topics = {
            (converter, path.stem): _topic(path.read_text("utf-8").splitlines(), converter)
            for converter in Converter
            for path in sorted((folder / converter.name.lower()).glob("*.jsonl"))
        }
        rows = {table: Rows(**one) for table, one in known["rows"].items()}
        return cls(topics, {int(number): text for number, text in named.items()}, rows, known["kills"])


def canonical(value: Any) -> Any:
    """Return a value of Postgres, Spark or Avro in a JSON form in which equal values are equal."""
    match value:
        case dict():
            return {name: canonical(item) for name, item in value.items()}
        case list() | tuple():
            return [canonical(item) for item in value]
        case Decimal():
            return format(value.normalize(), "f")
        case bytes() | bytearray():
            return bytes(value).hex()
        case datetime.date() | datetime.time():
            return value.isoformat()
        case str() if value.startswith("{"):
            return json.loads(value)
    return value


def schema_id(framed: bytes) -> int:
    """Return the id in the frame of an Avro message."""
    assert framed[0] == 0, "not in the wire format of the Confluent registry"
    return int.from_bytes(framed[1:_FRAME], "big")


def with_schema_id(framed: bytes, number: int) -> bytes:
    """Return an Avro message with another schema id."""
    return framed[:1] + number.to_bytes(_FRAME - 1, "big") + framed[_FRAME:]


def read_topic(bootstrap: str, name: str) -> Topic:
    """Return all messages of a topic, with the broker's timestamps."""
    found: list[Message] = []
    settings: dict[str, Any] = {"bootstrap.servers": bootstrap, "group.id": "unused", "log_level": 0}
    with closing(Consumer(settings)) as reader:
        partitions = len(reader.list_topics(name, timeout=30).topics[name].partitions)
        for number in range(partitions):
            _, end = reader.get_watermark_offsets(TopicPartition(name, number), timeout=30)
            reader.assign([TopicPartition(name, number, 0)])
            read = [one for one in reader.consume(end, timeout=60) if one.error() is None] if end else []
            assert len(read) == end
            found += [Message(one.timestamp()[1], number, one.key(), one.value()) for one in read]
    return Topic(partitions, tuple(sorted(found, key=lambda one: one.at)))


def since_first(topics: Mapping[tuple[Converter, str], Topic]) -> dict[tuple[Converter, str], Topic]:
    """Return topics with times relative to the first message."""
    first = min(one.at for topic in topics.values() for one in topic.messages)
    return {name: Topic(topic.partitions, tuple(_shifted(topic.messages, first))) for name, topic in topics.items()}


def _shifted(messages: Iterable[Message], first: int) -> Iterable[Message]:
    return (Message(one.at - first, one.partition, one.key, one.value) for one in messages)


def _write(path: Path, lines: list[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines), "utf-8")


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _topic_lines(topic: Topic, converter: Converter) -> list[str]:
    heads: dict[str, int] = {}
    lines = [
        _text([one.at, one.partition, *(_stored(part, converter, heads) for part in (one.key, one.value))])
        for one in topic.messages
    ]
    return [_text({"partitions": topic.partitions, "heads": list(heads)}), *lines]


def _stored(part: bytes | None, converter: Converter, heads: dict[str, int]) -> Any:
    if part is None:
        return None
    if converter is Converter.AVRO:
        return base64.b64encode(part).decode()
    text = part.decode()
    head, separator, payload = text.partition(_PAYLOAD)
    return [heads.setdefault(head, len(heads)), payload] if separator else text


def _topic(lines: list[str], converter: Converter) -> Topic:
    header = json.loads(lines[0])
    messages = [json.loads(line) for line in lines[1:]]
    return Topic(
        header["partitions"],
        tuple(
            Message(at, partition, *(_bytes(part, converter, header["heads"]) for part in parts))
            for at, partition, *parts in messages
        ),
    )


def _bytes(stored: Any, converter: Converter, heads: list[str]) -> bytes | None:
    match stored:
        case None:
            return None
        case [int() as head, str() as payload]:
            return f"{heads[head]}{_PAYLOAD}{payload}".encode()
        case str():
            return base64.b64decode(stored) if converter is Converter.AVRO else stored.encode()
    raise AssertionError(stored)
