"""Message formats: decode the bytes of Kafka messages into columns, and report why a message cannot be decoded.

::

    Format ── resolve ──▶ ResolvedFormat ── decode (Spark) or decode_batch (Arrow) ──▶ rows and problems
                │                                 │
                └──────────── Registry ───────────┘        evolve: which new fields can the reader schema adopt?

Formats decode whole columns in compiled code. A message that cannot be decoded exactly is rejected: its row is null,
and its problem gives the reason without repeating any content of the message.

The modules that decode are loaded on first use, so that describing a format does not import the compiler.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from penstock.formats.format import (
    AvroFormat,
    BytesFormat,
    CsvFormat,
    Extra,
    Format,
    JsonFormat,
    Nanoseconds,
    ProtobufFormat,
    ResolvedFormat,
    TextFormat,
)
from penstock.formats.schema_registry import RegisteredSchema, Registry, RegistryAddress, SubjectVersion

if TYPE_CHECKING:
    from penstock.formats.batch import decode_batch
    from penstock.formats.dataframe import decode
    from penstock.formats.decoder import Decoded
    from penstock.formats.evolution import Evolution, evolve
    from penstock.formats.resolution import resolve

__all__ = [
    "AvroFormat",
    "BytesFormat",
    "CsvFormat",
    "Decoded",
    "Evolution",
    "Extra",
    "Format",
    "JsonFormat",
    "Nanoseconds",
    "ProtobufFormat",
    "RegisteredSchema",
    "Registry",
    "RegistryAddress",
    "ResolvedFormat",
    "SubjectVersion",
    "TextFormat",
    "decode",
    "decode_batch",
    "evolve",
    "resolve",
]

_LAZY = {
    "Decoded": "penstock.formats.decoder",
    "decode_batch": "penstock.formats.batch",
    "Evolution": "penstock.formats.evolution",
    "evolve": "penstock.formats.evolution",
    "decode": "penstock.formats.dataframe",
    "resolve": "penstock.formats.resolution",
}


def __getattr__(name: str) -> Any:
    """Import a module that decodes on first access to one of its names."""
    if name not in _LAZY:
        message = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(message)
    return getattr(importlib.import_module(_LAZY[name]), name)
