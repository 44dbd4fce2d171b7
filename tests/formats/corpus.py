"""Corrupt messages of every format, by name; the expected problems are in ``corpus.json``.

``python -m tests.formats.corpus`` rewrites that file. Review the diff before you commit it.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path

from tests.formats.conftest import batch, encoded, framed, record
from tests.formats.protos import OLD, ORDER, in_base64, message_class

from penstock.formats import (
    AvroFormat,
    CsvFormat,
    JsonFormat,
    ProtobufFormat,
    RegisteredSchema,
    ResolvedFormat,
    TextFormat,
    resolve,
)
from penstock.formats.batch import decoder_for
from penstock.formats.schema_registry import WriterSchemas

SNAPSHOT = Path(__file__).with_name("corpus.json")
UNREACHABLE = {"url": "http://none:1"}

AVRO = record(
    ("id", "long"),
    ("n", "int"),
    ("name", ["null", "string"]),
    ("price", {"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2}),
    ("state", {"type": "enum", "name": "State", "symbols": ["NEW", "PAID"]}),
    ("tags", {"type": "array", "items": "string"}),
    ("nulls", {"type": "array", "items": "null"}),
    ("attributes", {"type": "map", "values": "int"}),
    ("ok", "boolean"),
    ("x", "double"),
    ("at", {"type": "long", "logicalType": "timestamp-millis"}),
    ("hash", {"type": "fixed", "name": "Hash", "size": 4}),
)
_PARTS = {
    "id": b"\x02", "n": b"\x04", "name": b"\x02\x04ab", "price": b"\x04\x04\xd2", "state": b"\x02",
    "tags": b"\x02\x02t\x00", "nulls": b"\x04\x00", "attributes": b"\x02\x02k\x02\x00", "ok": b"\x01",
    "x": struct.pack("<d", 1.5), "at": b"\x02",
    "hash": b"hash",
}  # fmt: skip
_INCOMPATIBLE = record(("id", "string"))
WRITERS: WriterSchemas = {
    1: RegisteredSchema(kind="AVRO", text=json.dumps(AVRO)),
    2: RegisteredSchema(kind="AVRO", text=json.dumps(_INCOMPATIBLE)),
    3: RegisteredSchema(kind="PROTOBUF", text='syntax = "proto3";'),
    4: RegisteredSchema(kind="AVRO", text='{"type": "nonsense"}'),
    404: None,
}


def _avro(**other: bytes) -> bytes:
    """Return a message in which some fields have other bytes."""
    return framed(1, b"".join((_PARTS | other).values()))


def _order(**fields: object) -> bytes:
    return bytes(message_class(ORDER, "shop.v1.Order")(**fields).SerializeToString())


GOOD: dict[str, bytes] = {
    "AVRO": _avro(),
    "PROTOBUF": _order(id=7, note="n"),
    "PROTOBUF2": b"\x08\x05",
    "JSON": b'{"id": 7, "s": "x"}',
    "CSV": b"7,x,true,1.5",
    "TEXT": b"x",
}

CORRUPT: dict[str, tuple[str, bytes]] = {
    "empty, with a registry": ("AVRO", b""),
    "shorter than a schema id": ("AVRO", b"\0\0\0\1"),
    "wrong magic byte": ("AVRO", b"\1" + _avro()[1:]),
    "JSON where Avro is expected": ("AVRO", b'{"id": 7}'),
    "unknown schema id": ("AVRO", framed(404, b"\x02")),
    "schema of other types": ("AVRO", framed(2, encoded(_INCOMPATIBLE, {"id": "secret"}))),
    "schema of another kind": ("AVRO", framed(3, b"\x02")),
    "schema that cannot be read": ("AVRO", framed(4, b"\x02")),
    "nothing after the schema id": ("AVRO", framed(1, b"")),
    "last byte cut off": ("AVRO", _avro()[:-1]),
    "cut off within a double": ("AVRO", _avro()[:-10]),
    "a byte too many": ("AVRO", _avro() + b"\0"),
    "two messages in one": ("AVRO", _avro() + _avro()[5:]),
    "varint without an end": ("AVRO", _avro(id=b"\xff" * 11)),
    "long beyond 64 bits": ("AVRO", _avro(id=b"\xff" * 9 + b"\x02")),
    "int beyond 32 bits": ("AVRO", _avro(n=b"\xff\xff\xff\xff\x7f")),
    "unknown union branch": ("AVRO", _avro(name=b"\x04")),
    "negative union branch": ("AVRO", _avro(name=b"\x01")),
    "string longer than the message": ("AVRO", _avro(name=b"\x02\xfe\xff\x03secret")),
    "string of negative length": ("AVRO", _avro(name=b"\x02\x03secret")),
    "string that is not UTF-8": ("AVRO", _avro(name=b"\x02\x04a\xff")),
    "string with half a surrogate pair": ("AVRO", _avro(name=b"\x02\x06\xed\xa0\x80")),
    "string with an overlong slash": ("AVRO", _avro(name=b"\x02\x04\xc0\xaf")),
    "decimal with too many digits": ("AVRO", _avro(price=b"\x08\x7f\xff\xff\xff")),
    "decimal of 20 bytes": ("AVRO", _avro(price=b"\x28" + b"\x7f" * 20)),
    "unknown enum symbol": ("AVRO", _avro(state=b"\x04")),
    "array of more items than bytes": ("AVRO", _avro(tags=b"\xfe\xff\xff\xff\x0f")),
    "array of a billion nulls": ("AVRO", _avro(nulls=b"\x80\xa8\xd6\xb9\x07\x00")),
    "array whose count cannot be negated": ("AVRO", _avro(tags=b"\xff" * 9 + b"\x01\x00")),
    "map key that is not UTF-8": ("AVRO", _avro(attributes=b"\x02\x02\xff\x02\x00")),
    "boolean that is 2": ("AVRO", _avro(ok=b"\x02")),
    "timestamp beyond all times": ("AVRO", _avro(at=b"\xfe" + b"\xff" * 8 + b"\x01")),
    "tag without a value": ("PROTOBUF", b"\x08"),
    "field number zero": ("PROTOBUF", b"\x00\x01"),
    "wire type 7": ("PROTOBUF", b"\x0f\x01"),
    "wire type of another kind": ("PROTOBUF", b"\x0d\0\0\0\0"),
    "length beyond the message": ("PROTOBUF", b"\x12\x7fsecret"),
    "message cut off": ("PROTOBUF", _order(id=7, note="secret")[:-1]),
    "submessage cut off within": ("PROTOBUF", b"\x42\x03\x0a\x05s"),
    "text that is not UTF-8": ("PROTOBUF", b"\x12\x01\xff"),
    "int32 beyond 32 bits": ("PROTOBUF", b"\x20\xff\xff\xff\xff\x7f"),
    "varint of eleven bytes": ("PROTOBUF", b"\x08" + b"\xff" * 10 + b"\x01"),
    "packed numbers that end too early": ("PROTOBUF", b"\x22\x02\x01\x80"),
    "group without an end": ("PROTOBUF", b"\xdb\x3e\x08\x01"),
    "end of a group without a start": ("PROTOBUF", b"\xdc\x3e"),
    "time with nanoseconds": ("PROTOBUF", _order(at={"seconds": 1, "nanos": 1})),
    "time beyond the year 9999": ("PROTOBUF", _order(at={"seconds": 2**60})),
    "required field missing": ("PROTOBUF2", b"\x10\x01"),
    "empty text": ("JSON", b""),
    "half an object": ("JSON", b'{"id": 7, "s": "secret'),
    "text after the object": ("JSON", b'{"id": 7} {"id": 8}'),
    "byte order mark": ("JSON", b"\xef\xbb\xbf{}"),
    "array where an object is expected": ("JSON", b"[1]"),
    "number beyond 64 bits": ("JSON", b'{"id": 9223372036854775808}'),
    "fraction in an integer": ("JSON", b'{"id": 1.5}'),
    "text in an integer": ("JSON", b'{"id": "secret"}'),
    "whole number that a double changes": ("JSON", b'{"x": 9007199254740993}'),
    "more digits than a double holds": ("JSON", b'{"x": 0.12345678901234567890}'),
    "number beyond a double": ("JSON", b'{"x": 1e999}'),
    "too many digits after the point": ("JSON", b'{"d": 1.234}'),
    "decimal too large": ("JSON", b'{"d": 123456}'),
    "the same key twice": ("JSON", b'{"id": 1, "id": 2}'),
    "the same key twice, once escaped": ("JSON", b'{"id": 1, "\\u0069d": 2}'),
    "invalid UTF-8": ("JSON", b'{"s": "\xff"}'),
    "half a surrogate pair": ("JSON", b'{"s": "\\ud800"}'),
    "control character": ("JSON", b'{"s": "a\x01"}'),
    "invalid escape": ("JSON", b'{"s": "\\x41"}'),
    "leading zero": ("JSON", b'{"id": 01}'),
    "NaN": ("JSON", b'{"x": NaN}'),
    "single quotes": ("JSON", b"{'id': 1}"),
    "comma at the end": ("JSON", b'{"id": 1,}'),
    "nonexistent day": ("JSON", b'{"day": "2023-02-29"}'),
    "time without a zone": ("JSON", b'{"at": "2023-02-28T00:00:00"}'),
    "nested too deeply": ("JSON", b'{"more": ' + b"[" * 500 + b"]" * 500 + b"}"),
    "too few fields": ("CSV", b"7,x"),
    "too many fields": ("CSV", b"7,x,true,1.5,secret"),
    "quote without an end": ("CSV", b'7,"secret,true,1.5'),
    "text after a quote": ("CSV", b'7,"a"b,true,1.5'),
    "quote within a field": ("CSV", b'7,a"b,true,1.5'),
    "not a number": ("CSV", b"secret,x,true,1.5"),
    "not a boolean": ("CSV", b"7,x,secret,1.5"),
    "two lines": ("CSV", b"7,x,true,1.5\n8,y,false,2.5"),
    "field that is not UTF-8": ("CSV", b"7,\xff,true,1.5"),
    "Latin-1": ("TEXT", "é".encode("latin-1")),
    "UTF-16": ("TEXT", "é".encode("utf-16")),
}


def formats() -> dict[str, ResolvedFormat]:
    """Return the format of each group."""
    avro = AvroFormat.model_validate({"reader_schema": json.dumps(AVRO), "registry": UNREACHABLE})
    columns = "id BIGINT, s STRING, x DOUBLE, d DECIMAL(5,2), day DATE, at TIMESTAMP"
    return {
        "AVRO": resolve(avro),
        "PROTOBUF": resolve(ProtobufFormat(descriptor_set=in_base64(ORDER), message="shop.v1.Order")),
        "PROTOBUF2": resolve(ProtobufFormat(descriptor_set=in_base64(OLD), message="Old")),
        "JSON": resolve(JsonFormat(columns=columns)),
        "CSV": resolve(CsvFormat(columns="id BIGINT, s STRING, ok BOOLEAN, x DOUBLE")),
        "TEXT": resolve(TextFormat()),
    }


def problems_by_name() -> dict[str, str | None]:
    """Decode each group as one batch; return the problem of each message."""
    result: dict[str, str | None] = {}
    for group, resolved in formats().items():
        names = [name for name, (of, _) in CORRUPT.items() if of == group]
        writers = WRITERS if resolved.is_framed else {}
        problems = decoder_for(resolved, writers).decode(batch([CORRUPT[name][1] for name in names])).problems
        result |= dict(zip(names, problems.to_pylist(), strict=True))
    return {name: result[name] for name in CORRUPT}


if __name__ == "__main__":
    SNAPSHOT.write_text(json.dumps(problems_by_name(), indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
