"""Decode an Arrow batch: look up new schema ids, then decode. Only this module uses both registry and decoders.

A column of messages as kernels see it: the start and end address of each message, and its error record.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.formats.avro.decoder import AvroDecoder
from penstock.formats.csv import CsvDecoder
from penstock.formats.decode_errors import CODE, ErrorCode, ErrorRecords, no_errors
from penstock.formats.decoder import Decoded, Decoder
from penstock.formats.format import AvroFormat, CsvFormat, JsonFormat, ProtobufFormat, ResolvedFormat
from penstock.formats.jit import Ints
from penstock.formats.json.decoder import JsonDecoder
from penstock.formats.plain import PlainDecoder
from penstock.formats.protobuf.decoder import ProtobufDecoder
from penstock.formats.schema_registry import RegisteredSchema, Registry, WriterSchemas, schema_ids

__all__ = ["Messages", "decode_batch", "decoder_for", "messages_of", "registry_client"]


@dataclass
class Messages:
    """The messages of one batch; `start` advances when a header before a message has been read."""

    array: pa.Array
    """The column: this reference keeps its bytes in place."""
    first: int
    """The address of the first message, and the number of bytes of all messages."""
    extent: int
    start: Ints
    """The start and end address of each message."""
    end: Ints
    sizes: Ints
    errors: ErrorRecords

    def __len__(self) -> int:
        return len(self.start)

    @property
    def longest(self) -> int:
        """The size of the largest message."""
        return int(self.sizes.max(initial=0))


def messages_of(array: pa.Array | pa.ChunkedArray) -> Messages:
    """Return the messages of a binary column; a null is an absent message."""
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    width = np.int64 if pa.types.is_large_binary(array.type) else np.int32
    _, offsets, data = array.buffers()
    places = np.frombuffer(offsets, width)[array.offset : array.offset + len(array) + 1].astype(np.int64)
    places = places if len(array) else np.zeros(1, np.int64)
    errors = no_errors(len(array))
    if array.null_count:
        errors[:, CODE] = np.where(pc.is_null(array).to_numpy(zero_copy_only=False), int(ErrorCode.ABSENT), 0)
    sizes = np.diff(places)
    places += data.address if data is not None else 0
    return Messages(array, int(places[0]), int(places[-1] - places[0]), places[:-1].copy(), places[1:], sizes, errors)


_DECODERS: dict[type, type[Decoder]] = {
    AvroFormat: AvroDecoder,
    ProtobufFormat: ProtobufDecoder,
    JsonFormat: JsonDecoder,
    CsvFormat: CsvDecoder,
}


def decode_batch(
    array: pa.Array | pa.ChunkedArray, resolved: ResolvedFormat, registry: Registry | None = None
) -> Decoded:
    """Decode a binary column of messages.

    `registry` is the client that looks up schema ids; keep one per source, because it caches. Raise `TransientError` if
    the registry does not respond: then no message of the batch is decoded, and the batch can be retried.
    """
    writers: WriterSchemas = {}
    if resolved.is_framed:
        writers = registry_client(resolved, registry).schemas(schema_ids(array))
    return decoder_for(resolved, writers).decode(array)


def registry_client(resolved: ResolvedFormat, registry: Registry | None) -> Registry:
    """Return the given client, or a new one for the registry of the format."""
    if registry is not None:
        return registry
    assert isinstance(resolved.format, AvroFormat | JsonFormat | ProtobufFormat)
    assert resolved.format.registry is not None
    return Registry(resolved.format.registry)


def decoder_for(resolved: ResolvedFormat, writers: WriterSchemas) -> Decoder:
    """Return the decoder of a format for batches with these writer schemas; decoders are cached."""
    return _cached_decoder(resolved, tuple(sorted(writers.items(), key=lambda pair: pair[0])))


@lru_cache(maxsize=64)
def _cached_decoder(resolved: ResolvedFormat, writers: tuple[tuple[int, RegisteredSchema | None], ...]) -> Decoder:
    return _DECODERS.get(type(resolved.format), PlainDecoder)(resolved, dict(writers))
