"""Formats of messages: bytes of a topic into columns, and for each message that is corrupt the reason.

::

    Format ── resolve ──▶ ResolvedFormat ── decode (Spark) or decode_batch (Arrow) ──▶ rows and problems
                │                                 │
                └──────────── Registry ───────────┘        evolved: may the reader schema grow?

A format decodes columns at a time, in compiled code. What it cannot read exactly it does not read: the row is null,
and its problem says why, without repeating what the message holds.

What decodes is loaded when it is first asked for: describing a format needs no compiler.
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
from penstock.formats.registry import RegisteredSchema, Registry, RegistryAddress

if TYPE_CHECKING:
    from penstock.formats.decoder import Decoded
    from penstock.formats.decoding import decode_batch
    from penstock.formats.evolution import Evolution, evolved
    from penstock.formats.frames import decode
    from penstock.formats.resolving import resolve

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
    "TextFormat",
    "decode",
    "decode_batch",
    "evolved",
    "resolve",
]

_LATER = {
    "Decoded": "penstock.formats.decoder",
    "decode_batch": "penstock.formats.decoding",
    "Evolution": "penstock.formats.evolution",
    "evolved": "penstock.formats.evolution",
    "decode": "penstock.formats.frames",
    "resolve": "penstock.formats.resolving",
}


def __getattr__(name: str) -> Any:
    """Load a module of those that decode."""
    if name not in _LATER:
        message = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(message)
    return getattr(importlib.import_module(_LATER[name]), name)
