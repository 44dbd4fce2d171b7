"""What holds for every codec."""

from __future__ import annotations

import importlib
import pickle
import pkgutil
import types as python_types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.sources.postgres import types
from penstock.sources.postgres.types import BadValue, PostgresType, UnsupportedType, codec_for, warm

Decode = Callable[..., Any]

NUMERIC = (1700, ((20 << 16) | 5) + 4)
EVERY = [(oid, -1) for oid in (16, 17, 18, 19, 20, 21, 23, 25, 114, 700, 701, 1042, 1043, 1082, 1114, 1184, 2950, 3802)]
EVERY.append(NUMERIC)


@pytest.mark.parametrize(("oid", "typmod"), EVERY)
def test_empty_columns_and_columns_of_nulls(text: Decode, binary: Decode, oid: int, typmod: int) -> None:
    for decode in (text, binary):
        assert decode(oid, [], typmod).to_pylist() == []
        for n in (1, 7, 8, 9, 64, 100):
            array = decode(oid, [None, -2] * n, typmod)
            assert array.to_pylist() == [None, None] * n
            assert array.null_count == 2 * n
            assert not any(bytes(array.buffers()[-1]))


@pytest.mark.parametrize(("oid", "typmod"), EVERY)
@given(values=st.lists(st.none() | st.binary(max_size=40), max_size=6))
def test_any_bytes_decode_or_are_refused(oid: int, typmod: int, values: Any) -> None:
    wire = b"".join(v or b"" for v in values)
    length = np.array([-1 if v is None else len(v) for v in values], np.int32)
    off = np.concatenate([[0], np.cumsum(np.maximum(length, 0))])[: len(values)].astype(np.int32)
    buf = np.frombuffer(wire, np.uint8)
    for decode in (codec_for(PostgresType(oid, typmod)).text, codec_for(PostgresType(oid, typmod)).binary):
        try:
            array = decode(buf, off, length)
        except BadValue as bad:
            assert values[bad.row] is not None
        else:
            array.validate()
            assert len(array) == len(values)


@pytest.mark.parametrize("oid", [0, 26, 600, 869, 1007, 1083, 1186, 1266, 4711, 2**32 - 1])
def test_other_types_are_refused(oid: int) -> None:
    with pytest.raises(UnsupportedType, match="type text") as caught:
        codec_for(PostgresType(oid, -1))
    assert caught.value.oid == oid


def test_writable_and_read_only_buffers_share_a_kernel() -> None:
    for buf in (np.frombuffer(b"12", np.uint8), np.array([49, 50], np.uint8)):
        array = codec_for(PostgresType(23, -1)).text(buf, np.array([0], np.int32), np.array([2], np.int32))
        assert array.to_pylist() == [12]


def test_errors_pickle() -> None:
    for error in (BadValue(3, "why"), UnsupportedType(5, -1, "why")):
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
