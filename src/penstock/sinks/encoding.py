"""Encode messages of a sink: columns of keys and values become bytes.

::

    SinkMessages ─▶ schema of keys, of values ─▶ registry: subject, schema id ─▶ header + encoded columns
                        (once for each type)         (once for each schema)

The schema follows from the Arrow type of messages. When a batch has another type, because a column was added, the next
version of the schema is registered before the batch is encoded. The registry rejects a schema that is not compatible
with earlier versions of the subject: that is a permanent error of the sink.

| format | without a registry | with a registry |
|---|---|---|
| JSON | JSON; with_schemas: ``{"schema": …, "payload": …}`` of Kafka Connect | JSON Schema |
| AVRO | – | Avro |
| PROTOBUF | – | Protobuf |

With a registry each message begins with a header: a zero byte and the schema id; for Protobuf also the index of the
message in its file, which is a zero byte for the first. A null stays null: a tombstone, or a message without a key.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import UsageError
from penstock.formats.avro.encoder import encode_avro
from penstock.formats.avro.schema import parse_avro
from penstock.formats.json.encoder import encode_json_messages
from penstock.formats.protobuf.descriptor import Pool
from penstock.formats.protobuf.encoder import encode_protobuf
from penstock.formats.protobuf.proto_parser import parse_proto
from penstock.formats.protobuf.types import well_known_types
from penstock.formats.schema_registry import SchemaReference
from penstock.sinks.messages import SinkMessages
from penstock.sinks.schemas.avro import avro_schema_text, avro_values
from penstock.sinks.schemas.connect import (
    as_connect,
    connect_metadata,
    connect_schema_text,
    physical_field,
    physical_values,
)
from penstock.sinks.schemas.json_schema import json_schema_text
from penstock.sinks.schemas.protobuf import message_name, proto_text, protobuf_values
from penstock.sinks.schemas.record_names import RecordName, valid_full_name

__all__ = [
    "MessageEncoder",
    "MessageFormat",
    "SchemaRegistration",
    "SubjectSchema",
    "SubjectStrategy",
    "encoder",
]

MessageFormat = Literal["JSON", "AVRO", "PROTOBUF"]
SubjectStrategy = Literal["topic", "record", "topic record"]
_Encode = Callable[[pa.Array, bytes], pa.LargeBinaryArray]


class SchemaRegistration(Protocol):
    """Registers schemas: `penstock.formats.schema_registry.Registry`."""

    def register(self, subject: str, kind: str, text: str, references: Sequence[SchemaReference] = ()) -> int:
        """Register a schema under a subject, unless it is registered; return its id."""


@dataclass(frozen=True)
class SubjectSchema:
    """A schema and the subject under which it is registered."""

    subject: str
    kind: str
    """AVRO, JSON or PROTOBUF."""
    text: str


class MessageEncoder(ABC):
    """Encodes the messages of one topic and one table."""

    @abstractmethod
    def encode(self, messages: SinkMessages) -> tuple[pa.LargeBinaryArray | None, pa.LargeBinaryArray]:
        """Return the keys, if messages have keys, and the values; register new schemas before."""

    @abstractmethod
    def schemas(self, key: pa.StructType | None, value: pa.StructType) -> list[SubjectSchema]:
        """Return the schemas of messages with these types; without a registry there are none."""


def encoder(
    form: MessageFormat,
    *,
    topic: str,
    value: RecordName,
    key: RecordName | None = None,
    registry: SchemaRegistration | None = None,
    subjects: SubjectStrategy = "topic",
    with_schemas: bool = False,
) -> MessageEncoder:
    """Return the encoder of a topic; the records of keys and values have these names in schemas."""
    if registry is None and form != "JSON":
        message = f"FORMAT {form} requires a schema registry"
        raise UsageError(message, f"Add a registry: FORMAT {form} USING SCHEMA REGISTRY 'http://registry:8081'.")
    if registry is not None and with_schemas:
        message = "with schemas: messages refer to the schema in the registry, and cannot contain it too"
        raise UsageError(message, "Remove the schema registry, or the option with schemas.")
    make = _FORMATS["CONNECT" if with_schemas else form]
    return _TopicEncoder(
        None if key is None else _Column(make(key), registry, topic, "key", subjects),
        _Column(make(value), registry, topic, "value", subjects),
    )


# -- formats -----------------------------------------------------------------------------------------------------------


class _Format(ABC):
    """A format with the name of the record."""

    kind = ""
    """The registry's name of this kind of schema."""

    def __init__(self, record: RecordName) -> None:
        self._record = record

    @abstractmethod
    def text(self, kind: pa.StructType) -> str:
        """Return the schema of a type."""

    @abstractmethod
    def encode(self, kind: pa.StructType) -> _Encode:
        """Return the function that encodes structs of a type, none of them null, after a header."""

    def full_name(self) -> str:
        """Return the name of the record in the schema."""
        return valid_full_name(self._record.name)


class _Avro(_Format):
    kind = "AVRO"

    def text(self, kind: pa.StructType) -> str:
        return avro_schema_text(self._record.field(kind))

    def encode(self, kind: pa.StructType) -> _Encode:
        field, schema = self._record.field(kind), parse_avro(self.text(kind))
        return lambda values, header: encode_avro(schema, avro_values(values, field), header)


class _Protobuf(_Format):
    kind = "PROTOBUF"

    def text(self, kind: pa.StructType) -> str:
        return proto_text(self._record.field(kind))

    def encode(self, kind: pa.StructType) -> _Encode:
        field = self._record.field(kind)
        pool = Pool([*well_known_types(), parse_proto(self.text(kind))])
        message = pool.message(message_name(field))
        return lambda values, header: encode_protobuf(pool, message, protobuf_values(values, field), header + b"\0")


class _Json(_Format):
    kind = "JSON"

    def text(self, kind: pa.StructType) -> str:
        return json_schema_text(self._record.field(kind))

    def encode(self, kind: pa.StructType) -> _Encode:
        field = self._record.field(kind)
        return lambda values, header: encode_json_messages(physical_values(values, field), header)

    def full_name(self) -> str:
        return self._record.name


class _ConnectJson(_Json):
    """JSON of Connect's JsonConverter with ``schemas.enable=true``: each message contains its schema."""

    def text(self, kind: pa.StructType) -> str:
        return connect_schema_text(physical_field(self._field(kind)))

    def encode(self, kind: pa.StructType) -> _Encode:
        field, head = self._field(kind), f'{{"schema":{self.text(kind)},"payload":'.encode()
        return lambda values, _header: encode_json_messages(physical_values(values, field), head, b"}")

    def _field(self, kind: pa.StructType) -> pa.Field:
        field = as_connect(self._record.field(kind))
        named = RecordName(self._record.name, is_connect=True, version=self._record.version)
        return field if connect_metadata(field).name else named.field(field.type)


_FORMATS: dict[str, type[_Format]] = {"AVRO": _Avro, "JSON": _Json, "PROTOBUF": _Protobuf, "CONNECT": _ConnectJson}


# -- topics ------------------------------------------------------------------------------------------------------------


class _Column:
    """Keys or values of a topic: the schema of their current type, and its id."""

    def __init__(
        self, form: _Format, registry: SchemaRegistration | None, topic: str, part: str, subjects: SubjectStrategy
    ) -> None:
        self._form, self._registry = form, registry
        names = {"topic": f"{topic}-{part}", "record": form.full_name(), "topic record": f"{topic}-{form.full_name()}"}
        self._subject = names[subjects]
        self._current: tuple[pa.StructType, _Encode, bytes] | None = None

    def schemas(self, kind: pa.StructType) -> list[SubjectSchema]:
        has_schema = self._registry is not None
        return [SubjectSchema(self._subject, self._form.kind, self._form.text(kind))] if has_schema else []

    def encode(self, values: pa.StructArray) -> pa.LargeBinaryArray:
        encode, header = self._prepared(values.type)
        if not values.null_count:
            return encode(values, header)
        rows = np.flatnonzero(values.is_valid().to_numpy(zero_copy_only=False))
        return _expanded(encode(values.take(pa.array(rows)), header), rows, len(values))

    def _prepared(self, kind: pa.StructType) -> tuple[_Encode, bytes]:
        """Return how to encode a type, and the header of its schema, which is registered now if it is new."""
        if self._current is None or not self._current[0].equals(kind, check_metadata=True):
            self._current = kind, self._form.encode(kind), self._header(kind)
        return self._current[1:]

    def _header(self, kind: pa.StructType) -> bytes:
        if self._registry is None:
            return b""
        [schema] = self.schemas(kind)
        number = self._registry.register(schema.subject, schema.kind, schema.text)
        return b"\0" + number.to_bytes(4, "big")


class _TopicEncoder(MessageEncoder):
    def __init__(self, keys: _Column | None, values: _Column) -> None:
        self._keys, self._values = keys, values

    def encode(self, messages: SinkMessages) -> tuple[pa.LargeBinaryArray | None, pa.LargeBinaryArray]:
        if self._keys is None or messages.keys is None:
            return None, self._values.encode(messages.values)
        return self._keys.encode(messages.keys), self._values.encode(messages.values)

    def schemas(self, key: pa.StructType | None, value: pa.StructType) -> list[SubjectSchema]:
        keys = [] if self._keys is None or key is None else self._keys.schemas(key)
        return [*keys, *self._values.schemas(value)]


def _expanded(messages: pa.LargeBinaryArray, rows: np.ndarray, count: int) -> pa.LargeBinaryArray:
    """Return messages at the numbers `rows` of `count`, and null at all others; the bytes are not copied."""
    sizes = np.zeros(count, np.int64)
    sizes[rows] = pc.binary_length(messages).to_numpy(zero_copy_only=False)
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    valid = np.zeros(count, np.bool_)
    valid[rows] = True
    bitmap = pa.py_buffer(np.packbits(valid, bitorder="little"))
    data = messages.buffers()[2] or pa.py_buffer(b"")
    return pa.Array.from_buffers(pa.large_binary(), count, [bitmap, pa.py_buffer(offsets.astype(np.int64)), data])
