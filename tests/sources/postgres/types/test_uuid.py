"""uuid."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.sources.postgres.types import BadValueError

Decode = Callable[..., Any]

OID = 2950
GOOD = b"a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"


@given(st.lists(st.none() | st.uuids()))
def test_both_forms_decode_to_the_same_values(text: Decode, binary: Decode, values: Any) -> None:
    expected = [None if v is None else str(v) for v in values]
    assert text(OID, [None if v is None else str(v).encode() for v in values]).to_pylist() == expected
    assert text(OID, [None if v is None else str(v).upper().encode() for v in values]).to_pylist() == expected
    assert binary(OID, [None if v is None else v.bytes for v in values]).to_pylist() == expected


@pytest.mark.parametrize(
    "bad", [b"", GOOD[:-1], GOOD + b"0", GOOD.replace(b"-", b""), b"{" + GOOD[1:], GOOD[:-1] + b"g"]
)
def test_malformed_text(text: Decode, bad: bytes) -> None:
    with pytest.raises(BadValueError) as caught:
        text(OID, [GOOD, None, bad])
    assert caught.value.row == 2


@pytest.mark.parametrize("place", range(36))
def test_every_character_is_checked(text: Decode, place: int) -> None:
    with pytest.raises(BadValueError):
        text(OID, [GOOD[:place] + (b"0" if GOOD[place] == 45 else b"-") + GOOD[place + 1 :]])


@pytest.mark.parametrize("size", [0, 15, 17, 36])
def test_wrong_width(binary: Decode, size: int) -> None:
    with pytest.raises(BadValueError):
        binary(OID, [bytes(size)])
