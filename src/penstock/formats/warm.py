"""Compile the kernels of all formats ahead of time: ``python -m penstock.formats.warm``.

They are cached on disk beside their modules, so this is done once per installation; without it the first batch of each
format does it. Each format decodes a message, so that exactly what is used later is compiled.
"""

from __future__ import annotations

import base64

import pyarrow as pa

from penstock.formats.decoding import decode_batch
from penstock.formats.format import AvroFormat, BytesFormat, CsvFormat, Format, JsonFormat, ProtobufFormat
from penstock.formats.framing import read_ids, read_indexes
from penstock.formats.messages import of_array
from penstock.formats.resolving import resolve

__all__ = ["warm"]

_FORMATS: tuple[Format, ...] = (
    AvroFormat(reader_schema='"string"'),
    JsonFormat(columns="STRING"),
    CsvFormat(columns=1),
    BytesFormat(),
)


def warm() -> None:
    """Compile, or load from the cache, every kernel."""
    messages = pa.array([b"", b'"a"'], pa.binary())
    for described in (*_FORMATS, ProtobufFormat(descriptor_set=_descriptor(), message="p.m")):
        decode_batch(messages, resolve(described))
    for read in (read_ids, read_indexes):
        framed = of_array(messages)
        read(framed.data, framed.start, framed.end, framed.faults)


def _descriptor() -> str:
    """Return the descriptor set of one message with one number: ``package p; message m { int32 f = 1; }``."""
    field = b"\n\x01f\x18\x01 \x01(\x05"
    message = b"\n\x01m\x12" + bytes([len(field)]) + field
    file = b'\x12\x01p"' + bytes([len(message)]) + message + b"b\x06proto3"
    return base64.b64encode(b"\n" + bytes([len(file)]) + file).decode()


if __name__ == "__main__":
    warm()
