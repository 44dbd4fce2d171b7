"""Decode an Arrow batch: look up new schema ids, then decode. Only this module uses both registry and decoders."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import pyarrow as pa

from penstock.formats.avro.decoder import AvroDecoder
from penstock.formats.csv import CsvDecoder
from penstock.formats.decoder import Decoded, Decoder
from penstock.formats.format import AvroFormat, CsvFormat, JsonFormat, ProtobufFormat, ResolvedFormat
from penstock.formats.framing import read_ids
from penstock.formats.json.decoder import JsonDecoder
from penstock.formats.memory import address
from penstock.formats.messages import messages_of
from penstock.formats.plain import PlainDecoder
from penstock.formats.protobuf.decoder import ProtobufDecoder
from penstock.formats.schema_registry import RegisteredSchema, Registry, WriterSchemas

__all__ = ["decode_batch", "decoder_for", "registry_client"]

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
        writers = registry_client(resolved, registry).schemas(_schema_ids(array))
    return decoder_for(resolved, writers).decode(array)


def registry_client(resolved: ResolvedFormat, registry: Registry | None) -> Registry:
    """Return the given client, or a new one for the registry of the format."""
    if registry is not None:
        return registry
    assert isinstance(resolved.format, AvroFormat | JsonFormat | ProtobufFormat)
    assert resolved.format.registry is not None
    return Registry(resolved.format.registry)


def _schema_ids(array: pa.Array | pa.ChunkedArray) -> list[int]:
    """Return the distinct schema ids of a batch of framed messages."""
    messages = messages_of(array)
    ids = read_ids(messages.start, messages.end, address(messages.errors))
    return [int(one) for one in np.unique(ids) if one >= 0]


def decoder_for(resolved: ResolvedFormat, writers: WriterSchemas) -> Decoder:
    """Return the decoder of a format for batches with these writer schemas; decoders are cached."""
    return _cached_decoder(resolved, tuple(sorted(writers.items(), key=lambda pair: pair[0])))


@lru_cache(maxsize=64)
def _cached_decoder(resolved: ResolvedFormat, writers: tuple[tuple[int, RegisteredSchema | None], ...]) -> Decoder:
    return _DECODERS.get(type(resolved.format), PlainDecoder)(resolved, dict(writers))
