"""Properties of every codec."""

from __future__ import annotations

import ctypes
import importlib
import mmap
import pickle
import pkgutil
import types as python_types
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.sources.postgres import types
from penstock.sources.postgres.types import (
    BadValueError,
    PostgresType,
    TypeKind,
    UnsupportedTypeError,
    builtin,
    check_supported,
    codec_for,
    is_map,
    warm,
)
from penstock.sources.postgres.types.codec_lookup import BY_NAME, BY_OID
from penstock.sources.postgres.types.supported import EXTENSION_TYPES

Decode = Callable[..., Any]


def declared(precision: int, scale: int) -> int:
    return ((precision << 16) | scale) + 4


def of(kind: TypeKind, part: PostgresType, oid: int = 20000) -> PostgresType:
    return PostgresType(oid, -1, "made", kind, part)


INTEGER, TEXT, BOX = PostgresType(23, -1, "int4"), PostgresType(25, -1, "text"), PostgresType(603, -1, "box")
PAIR = PostgresType(20001, -1, "pair", TypeKind.COMPOSITE, fields=(("a", INTEGER), ("b", TEXT)))
TREE = PostgresType(
    20002,
    -1,
    "tree",
    TypeKind.COMPOSITE,
    fields=(
        ("pairs", of(TypeKind.ARRAY, PAIR)),
        ("spans", of(TypeKind.MULTIRANGE, of(TypeKind.RANGE, PostgresType(1114)))),
        ("words", of(TypeKind.DOMAIN, of(TypeKind.ARRAY, of(TypeKind.ENUM, TEXT)))),
        ("length", PostgresType(1186)),
    ),
)
EVERY = [
    *(PostgresType(oid) for oid in BY_OID),
    PostgresType(1700, declared(20, 5)),
    PostgresType(1700),
    PostgresType(30000, -1, "hstore"),
    *(PostgresType(30001, -1, name) for name in ("citext", "ltree", "lquery", "ltxtquery", "vector")),
    *(
        PostgresType(oid)
        for oid in (1000, 1005, 1006, 1007, 1009, 1020, 1021, 1022, 1115, 1187, 3807, 2951, 1041, 1231)
    ),
    *(PostgresType(oid) for oid in (3904, 3906, 3908, 3912, 4451, 4532, 4533, 6150, 3905)),
    of(TypeKind.ENUM, TEXT),
    of(TypeKind.ARRAY, of(TypeKind.DOMAIN, BOX)),
    of(TypeKind.RANGE, TEXT),
    of(TypeKind.MULTIRANGE, of(TypeKind.RANGE, TEXT)),
    of(TypeKind.ARRAY, PostgresType(30000, -1, "hstore")),
    PAIR,
    TREE,
    of(TypeKind.ARRAY, TREE),
]
"""Every scalar type, and every kind of nested type."""


def leaves(array: Any) -> list[Any]:
    """The arrays without children inside an array."""
    if isinstance(array, pa.StructArray):
        return [leaf for k in range(array.type.num_fields) for leaf in leaves(array.field(k))]
    if isinstance(array, pa.MapArray):
        return [*leaves(array.keys), *leaves(array.items)]
    return leaves(array.values) if isinstance(array, pa.ListArray) else [array]


@pytest.mark.parametrize("kind", EVERY, ids=str)
def test_empty_columns_and_columns_of_nulls(text: Decode, binary: Decode, kind: PostgresType) -> None:
    for decode in (text, binary):
        assert decode(kind, []).to_pylist() == []
        for n in (1, 7, 8, 9, 64, 100):
            array = decode(kind, [None, -2] * n)
            assert array.to_pylist() == [None, None] * n
            assert array.null_count == 2 * n
            for leaf in leaves(array):
                assert not any(bytes(leaf.buffers()[-1] or b""))


def guarded(wire: bytes) -> Any:
    """The bytes right before unreadable memory, so that a read past their end crashes the process."""
    page = mmap.PAGESIZE
    size = -(-max(len(wire), 1) // page) * page
    memory = mmap.mmap(-1, size + page)
    base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    protect = ctypes.CDLL(None, use_errno=True).mprotect
    assert protect(ctypes.c_void_p(base + size), ctypes.c_size_t(page), 0) == 0
    memory[size - len(wire) : size] = wire
    return np.frombuffer(memory, np.uint8, len(wire), size - len(wire))


WORDS = [
    b"",
    b"{}",
    b"(,)",
    b"()",
    b"[1,2)",
    b"empty",
    b"NULL",
    b'"',
    b"\\",
    b",",
    b"{",
    b"}",
    b"(",
    b")",
    b"=>",
    b"P1D",
    b"{[",
    b",)}",
]
pieces = (
    st.sampled_from(WORDS)
    | st.binary(max_size=5)
    | st.integers(-2, 40).map(lambda v: v.to_bytes(4, "big", signed=True))
)
OIDS = st.sampled_from([21, 23, 25, 26, 603, 701, 1114, 20000, 20001, 20002]).map(lambda v: v.to_bytes(4, "big"))
wires = st.binary(max_size=40) | st.lists(pieces | OIDS, max_size=12).map(b"".join)


@pytest.mark.parametrize("kind", EVERY, ids=str)
@settings(max_examples=60)
@given(values=st.lists(st.none() | wires, max_size=5))
def test_any_bytes_decode_or_are_rejected(kind: PostgresType, values: Any) -> None:
    wire = b"".join(v or b"" for v in values)
    length = np.array([-1 if v is None else len(v) for v in values], np.int32)
    off = np.concatenate([[0], np.cumsum(np.maximum(length, 0))])[: len(values)].astype(np.int32)
    buf = guarded(wire)
    for decode in (codec_for(kind).text, codec_for(kind).binary):
        try:
            array = decode(buf, off, length)
        except BadValueError as bad:
            assert values[bad.row] is not None
            decode(buf, off[: bad.row], length[: bad.row])  # there is no bad row before it
        else:
            array.validate()
            assert len(array) == len(values)


@pytest.mark.parametrize("oid", [0, 2249, 2275, 2276, 3642, 4711, 2**32 - 1])
def test_unsupported_types_are_rejected(oid: int) -> None:
    with pytest.raises(UnsupportedTypeError, match="text columns") as caught:
        codec_for(PostgresType(oid, -1))
    assert caught.value.oid == oid
    with pytest.raises(UnsupportedTypeError, match="text columns"):
        codec_for(of(TypeKind.ARRAY, PostgresType(oid, -1, "strange")))


def test_incomplete_nested_types_are_rejected() -> None:
    for kind in (TypeKind.ARRAY, TypeKind.RANGE, TypeKind.MULTIRANGE, TypeKind.DOMAIN, TypeKind.COMPOSITE):
        with pytest.raises(UnsupportedTypeError, match="text columns"):
            codec_for(PostgresType(20000, kind=kind))


def test_what_is_known_without_codecs_agrees_with_them() -> None:
    assert set(EXTENSION_TYPES) == set(BY_NAME)
    scalars = [oid for oid in range(20_000) if (kind := builtin(oid)) is not None and kind.kind is TypeKind.BASE]
    assert sorted(scalars) == sorted([*BY_OID, 1700])
    for kind in (*EVERY, of(TypeKind.DOMAIN, PostgresType(30000, -1, "hstore"))):
        check_supported(kind)
        assert is_map(kind) == pa.types.is_map(codec_for(kind).arrow), kind


def test_types_that_only_the_server_can_print_need_text_form(binary: Decode) -> None:
    money = PostgresType(790)
    for part in (money, *(of(kind, money) for kind in (TypeKind.ARRAY, TypeKind.DOMAIN, TypeKind.RANGE))):
        assert codec_for(part).wants_text
        whole = PostgresType(20001, -1, "whole", TypeKind.COMPOSITE, fields=(("a", INTEGER), ("b", part)))
        assert codec_for(whole).wants_text
    assert not codec_for(TREE).wants_text
    with pytest.raises(BadValueError, match="binary 'false'") as caught:
        binary(money, [None, bytes(8)])
    assert caught.value.row == 1


def test_writable_and_read_only_buffers_share_a_kernel() -> None:
    for buf in (np.frombuffer(b"12", np.uint8), np.array([49, 50], np.uint8)):
        array = codec_for(PostgresType(23, -1)).text(buf, np.array([0], np.int32), np.array([2], np.int32))
        assert array.to_pylist() == [12]


def test_errors_pickle() -> None:
    for error in (BadValueError(3, "why"), UnsupportedTypeError(5, -1, "why")):
        copy = pickle.loads(pickle.dumps(error))
        assert (type(copy), str(copy), vars(copy)) == (type(error), str(error), vars(error))


def test_warm_twice() -> None:
    warm()
    warm()


def test_public_names() -> None:
    for info in pkgutil.iter_modules(types.__path__, types.__name__ + "."):
        module = importlib.import_module(info.name)
        own = {
            name
            for name, value in vars(module).items()
            if not name.startswith("_")
            and getattr(value, "__module__", module.__name__) == module.__name__
            and isinstance(value, python_types.FunctionType | type)
        }
        assert own <= set(module.__all__), info.name
        assert all(hasattr(module, name) for name in module.__all__), info.name
