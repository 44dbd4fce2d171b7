"""boolean."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.sources.postgres.types import BadValueError

Decode = Callable[..., Any]

OID = 16


@given(st.lists(st.sampled_from([True, False, None])))
def test_both_forms_decode_to_the_same_values(text: Decode, binary: Decode, values: Any) -> None:
    forms = {True: (b"t", b"\1"), False: (b"f", b"\0"), None: (None, None)}
    assert text(OID, [forms[v][0] for v in values]).to_pylist() == values
    assert binary(OID, [forms[v][1] for v in values]).to_pylist() == values


@pytest.mark.parametrize("bad", [b"", b"true", b"T", b"1", b"tt"])
def test_malformed_text(text: Decode, bad: bytes) -> None:
    with pytest.raises(BadValueError) as caught:
        text(OID, [b"t"] * 9 + [None, bad, bad])
    assert caught.value.row == 10


@pytest.mark.parametrize("bad", [b"", b"\2", b"t", b"\1\1"])
def test_malformed_binary(binary: Decode, bad: bytes) -> None:
    with pytest.raises(BadValueError) as caught:
        binary(OID, [b"\1", bad])
    assert caught.value.row == 1
