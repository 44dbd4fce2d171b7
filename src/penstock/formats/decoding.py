"""Decoding a batch in Arrow: look up what is new, then decode. The one place where both meet."""

from __future__ import annotations

from functools import lru_cache

import pyarrow as pa

from penstock.formats.avro.decoder import AvroDecoder
from penstock.formats.csv.decoder import CsvDecoder
from penstock.formats.decoder import Decoded, Decoder
from penstock.formats.format import AvroFormat, CsvFormat, JsonFormat, ProtobufFormat, ResolvedFormat
from penstock.formats.json.decoder import JsonDecoder
from penstock.formats.plain.decoder import PlainDecoder
from penstock.formats.protobuf.decoder import ProtobufDecoder
from penstock.formats.registry import RegisteredSchema, Registry
from penstock.formats.writers import Writers, schema_ids

__all__ = ["decode_batch", "decoder_for", "registry_of"]

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

    `registry` is the client to ask what schema ids mean; keep one per source, it remembers. `TransientError` where it
    does not answer: no message of the batch is decoded then, and the batch can be tried again.
    """
    writers: Writers = {}
    if resolved.framed:
        writers = registry_of(resolved, registry).schemas(schema_ids(array))
    return decoder_for(resolved, writers).decode(array)


def registry_of(resolved: ResolvedFormat, registry: Registry | None) -> Registry:
    """Return the client that was given, or a new one for the registry of the format."""
    if registry is not None:
        return registry
    assert isinstance(resolved.format, AvroFormat | JsonFormat | ProtobufFormat)
    assert resolved.format.registry is not None
    return Registry(resolved.format.registry)


def decoder_for(resolved: ResolvedFormat, writers: Writers) -> Decoder:
    """Return the decoder of a format for batches that hold these writers' messages; the same again for the same."""
    return _made(resolved, tuple(sorted(writers.items(), key=lambda pair: pair[0])))


@lru_cache(maxsize=64)
def _made(resolved: ResolvedFormat, writers: tuple[tuple[int, RegisteredSchema | None], ...]) -> Decoder:
    return _DECODERS.get(type(resolved.format), PlainDecoder)(resolved, dict(writers))
