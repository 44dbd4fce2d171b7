"""Postgres wire values → Arrow columns: one file per type family.

::

    (oid, typmod) ── builtin, find_types ──▶ PostgresType ── codec_for ──▶ ColumnCodec

    ColumnCodec ── text(buf, off, length)   ──▶ pa.Array
                └─ binary(buf, off, length) ──▶ the same pa.Array

    integer  floating_point  numeric  temporal  interval
    text  bytea  identifiers  network  geometry           scalar types; boolean is in integer, bit strings in bytea
    array  ranges  composite  hstore  pgvector            nested types

    codec_lookup  the codec of a type                     postgres_type   the description of a type
    codec         ColumnCodec and its errors              nested          shared by nested types
    kernel        compiled functions and their cache      column          numpy memory → Arrow
    text_output   binary values → text                    supported       which types have a codec

Decoding does no I/O and creates no Python object per value. A type that is not listed has no exact Arrow form; a column
of such a type is captured as text.

The codecs are imported on first access, with numba: commands that only describe or check a source, like ``penstock
status`` and ``penstock check``, do not need them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.sources.postgres.types.codec import KEEP_TEXT, BadValueError, ColumnCodec, UnsupportedTypeError
from penstock.sources.postgres.types.postgres_type import PostgresType, TypeKind, builtin, find_types
from penstock.sources.postgres.types.supported import check_supported, is_map, is_supported

if TYPE_CHECKING:
    from penstock.sources.postgres.types.codec_lookup import codec_for, text_codec_for
    from penstock.sources.postgres.types.text import TEXT

__all__ = [
    "KEEP_TEXT",
    "TEXT",
    "BadValueError",
    "ColumnCodec",
    "PostgresType",
    "TypeKind",
    "UnsupportedTypeError",
    "builtin",
    "check_supported",
    "codec_for",
    "find_types",
    "is_map",
    "is_supported",
    "text_codec_for",
    "warm",
]


_LATER = {"codec_for": "codec_lookup", "text_codec_for": "codec_lookup", "TEXT": "text"}


def __getattr__(name: str) -> Any:
    """Import a name that needs numba."""
    if name not in _LATER:
        message = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(message)
    import importlib

    return getattr(importlib.import_module(f"{__name__}.{_LATER[name]}"), name)


def warm() -> None:
    """Compile every kernel, or load it from the cache on disk, so that no row waits for it later."""
    import importlib

    from penstock.sources.postgres.types.kernel import compile_all

    importlib.import_module(f"{__name__}.codec_lookup")  # defines the kernels
    compile_all()
