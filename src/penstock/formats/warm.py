"""Compile the kernels of all formats ahead of time: ``python -m penstock.formats.warm``.

Compiled kernels are cached on disk (`penstock.kernel_cache`), so this runs once per installation and user; otherwise
the first batch of each format compiles them. Each format decodes one message, so that exactly the code used later is
compiled; the encoders share their kernels, except those of JSON values.
"""

from __future__ import annotations

import base64

import pyarrow as pa

from penstock.formats.avro.encoder import encode_avro
from penstock.formats.avro.schema import parse_avro
from penstock.formats.batch import decode_batch
from penstock.formats.format import AvroFormat, BytesFormat, CsvFormat, Format, JsonFormat, ProtobufFormat
from penstock.formats.framing import read_ids, read_indexes
from penstock.formats.json.encoder import encode_json
from penstock.formats.memory import address
from penstock.formats.messages import messages_of
from penstock.formats.resolution import resolve

__all__ = ["warm"]

_NESTED = '{"type": "array", "items": {"type": "array", "items": "int"}}'
_FORMATS: tuple[tuple[Format, bytes], ...] = (
    (AvroFormat(reader_schema=_NESTED), b"\2\2\2\0\0"),
    (JsonFormat(columns="ARRAY<ARRAY<INT>>"), b"[[1]]"),
    (CsvFormat(columns=1), b"a"),
    (BytesFormat(), b"a"),
)


def warm() -> None:
    """Compile every kernel, or load it from the cache."""
    protobuf = ProtobufFormat(descriptor_set=_descriptor(), message="p.m")
    for spec, message in (*_FORMATS, (protobuf, b"\x12\2\x08\1")):
        decode_batch(pa.array([message], pa.binary()), resolve(spec))
    encode_avro(parse_avro('{"type": "array", "items": ["null", "string"]}'), pa.array([["a", None]]))
    encode_json(pa.array([{"n": 1, "s": "a", "b": b"a", "x": 0.5, "is": True}, None]))
    for read in (read_ids, read_indexes):
        framed = messages_of(pa.array([b"\0\0\0\0\1"], pa.binary()))
        read(framed.start, framed.end, address(framed.errors))


def _descriptor() -> str:
    """Return a descriptor set: ``package p; message m { int32 f = 1; n g = 2; message n { int32 f = 1; } }``."""
    number, inside = b"\n\x01f\x18\x01 \x01(\x05", b"\n\x01g\x18\x02 \x01(\x0b2\x06.p.m.n"
    nested = b"\n\x01n" + _field(2, number)
    message = b"\n\x01m" + _field(2, number) + _field(2, inside) + _field(3, nested)
    file = b"\x12\x01p" + _field(4, message) + b"b\x06proto3"
    return base64.b64encode(_field(1, file)).decode()


def _field(number: int, value: bytes) -> bytes:
    return bytes([number << 3 | 2, len(value)]) + value


if __name__ == "__main__":
    warm()
