"""Protobuf of random descriptors, written and read by Google's implementation."""

from __future__ import annotations

import base64
import random
from decimal import Decimal
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor import FieldDescriptor
from tests.formats.random_messages import SCHEMAS, check_decoding, integer, text

from penstock.formats import ProtobufFormat, ResolvedFormat, resolve

_Type = descriptor_pb2.FieldDescriptorProto
SCALARS = [kind for kind in range(1, 19) if kind not in (_Type.TYPE_GROUP, _Type.TYPE_MESSAGE, _Type.TYPE_ENUM)]
KEYS = (_Type.TYPE_STRING, _Type.TYPE_INT32, _Type.TYPE_SINT64, _Type.TYPE_FIXED32, _Type.TYPE_BOOL)
NAMES = ("ZERO", "ONE", "TWO", "MINUS")
UNKNOWN = b"\xc2\x3e\x03xyz\xcb\x3e\x08\x01\xcc\x3e"  # fields 1000 and 1001, the latter a group


def fill(rng: random.Random, message: Any, name: str, depth: int) -> None:
    """Add fields of all kinds and nested messages to a message."""
    message.name = name
    numbers = rng.sample(range(1, 40), rng.randrange(1, 9))
    for number in numbers if rng.random() < 0.5 else sorted(numbers):
        field = message.field.add(name=f"f{number}", number=number, label=_Type.LABEL_OPTIONAL)
        shape = rng.choice(("scalar", "scalar", "enum", "message", "map"))
        if shape == "map" and depth:
            entry = f"F{number}Entry"
            pair = message.nested_type.add(name=entry)
            pair.options.map_entry = True
            pair.field.add(name="key", number=1, type=rng.choice(KEYS), label=_Type.LABEL_OPTIONAL)
            typed(rng, message, name, pair.field.add(name="value", number=2, label=_Type.LABEL_OPTIONAL), depth)
            field.type, field.type_name, field.label = _Type.TYPE_MESSAGE, f".{name}.{entry}", _Type.LABEL_REPEATED
            continue
        typed(rng, message, name, field, depth if shape == "message" else 0, enum=shape == "enum")
        if rng.random() < 0.3:
            field.label = _Type.LABEL_REPEATED
        elif rng.random() < 0.3 and field.type != _Type.TYPE_MESSAGE:
            field.proto3_optional = True
    for field in message.field:
        if field.proto3_optional:
            field.oneof_index = len(message.oneof_decl)
            message.oneof_decl.add(name=f"_{field.name}")


def typed(rng: random.Random, message: Any, name: str, field: Any, depth: int, *, enum: bool = False) -> None:
    if enum:
        field.type, field.type_name = _Type.TYPE_ENUM, ".Kind"
    elif depth:
        below = f"M{field.number}x{len(message.nested_type)}"
        fill(rng, message.nested_type.add(), f"{name}.{below}", depth - 1)
        message.nested_type[-1].name = below
        field.type, field.type_name = _Type.TYPE_MESSAGE, f".{name}.{below}"
    else:
        field.type = rng.choice(SCALARS)


def scalar(rng: random.Random, field: Any) -> Any:
    match field.cpp_type:
        case FieldDescriptor.CPPTYPE_INT32:
            return integer(rng, 32)
        case FieldDescriptor.CPPTYPE_INT64:
            return integer(rng, 64)
        case FieldDescriptor.CPPTYPE_UINT32:
            return abs(integer(rng, 32))
        case FieldDescriptor.CPPTYPE_UINT64:
            return min(abs(integer(rng, 64)) * rng.choice((1, 2)), 2**64 - 1)
        case FieldDescriptor.CPPTYPE_DOUBLE | FieldDescriptor.CPPTYPE_FLOAT:
            return rng.gauss(0, 9)
        case FieldDescriptor.CPPTYPE_BOOL:
            return rng.random() < 0.5
        case FieldDescriptor.CPPTYPE_ENUM:
            return rng.choice((0, 1, 2, -3, 77, -(2**31)))
    return text(rng) if field.type == FieldDescriptor.TYPE_STRING else rng.randbytes(rng.randrange(40))


def put(rng: random.Random, message: Any) -> None:
    """Set some fields of a message."""
    for field in message.DESCRIPTOR.fields:
        if rng.random() < 0.2:
            continue
        value, of_message = getattr(message, field.name), field.message_type is not None
        if of_message and field.message_type.GetOptions().map_entry:
            key, inner = field.message_type.fields_by_name["key"], field.message_type.fields_by_name["value"]
            for _ in range(rng.choice((0, 1, 3))):
                if inner.message_type is not None:
                    put(rng, value[scalar(rng, key)])
                else:
                    value[scalar(rng, key)] = scalar(rng, inner)
        elif field.is_repeated:
            for _ in range(rng.choice((0, 1, 3))):
                put(rng, value.add()) if of_message else value.append(scalar(rng, field))
        elif of_message:
            value.SetInParent()
            put(rng, value)
        else:
            setattr(message, field.name, scalar(rng, field))


def read(message: Any) -> dict[str, Any]:
    """Return the row that a message must decode to."""
    return {field.name: _field(message, field) for field in message.DESCRIPTOR.fields}


def _field(message: Any, field: Any) -> Any:
    value = getattr(message, field.name)
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        inner = field.message_type.fields_by_name["value"]
        # Arrow converts an empty map and an empty list to the same Python value.
        return {key: _single(value[key], inner) for key in value} or []
    if field.is_repeated:
        return [_single(one, field) for one in value]
    return None if field.has_presence and not message.HasField(field.name) else _single(value, field)


def _single(value: Any, field: Any) -> Any:
    if field.message_type is not None:
        return read(value)
    if field.enum_type is not None:
        named = field.enum_type.values_by_number.get(value)
        return named.name if named else str(value)
    return Decimal(value) if field.cpp_type == FieldDescriptor.CPPTYPE_UINT64 else value


def message_format(rng: random.Random) -> tuple[Any, ResolvedFormat]:
    """Return a random message type, as a class of Google's implementation and as a format."""
    file = descriptor_pb2.FileDescriptorProto(name="random.proto", syntax="proto3")
    kind = file.enum_type.add(name="Kind")
    for name, number in zip(NAMES, (0, 1, 2, -3), strict=True):
        kind.value.add(name=name, number=number)
    fill(rng, file.message_type.add(), "M", 2)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    files = descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString()
    resolved = resolve(ProtobufFormat(descriptor_set=base64.b64encode(files).decode(), message="M"))
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("M")), resolved


@pytest.mark.parametrize("seed", range(SCHEMAS))
def test_messages_of_random_descriptors(seed: int) -> None:
    rng = random.Random(seed)
    message_type, resolved = message_format(rng)
    messages = []
    for _ in range(30):
        parts = [message_type() for _ in range(rng.choice((1, 1, 2)))]  # concatenated they are one message, merged
        for part in parts:
            put(rng, part)
        messages.append(UNKNOWN.join(bytes(part.SerializeToString()) for part in parts))
    check_decoding(resolved, messages, [read(message_type.FromString(one)) for one in messages], rng)
