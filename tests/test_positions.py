"""LSNs: parsed strictly, ordered as numbers, printed as Postgres prints them."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.positions import Lsn


@given(st.integers(0, 2**63 - 1))
def test_text_and_back(value: int) -> None:
    assert Lsn.parse(str(Lsn(value))) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [("0/0", 0), ("16/B374D848", 0x16B374D848), (" 1/a\n", 0x10000000A), ("7FFFFFFF/FFFFFFFF", 2**63 - 1)],
)
def test_parse(text: str, value: int) -> None:
    assert Lsn.parse(text) == value


@pytest.mark.parametrize(
    "text",
    [
        "",
        "/",
        "1",
        "1/",
        "/1",
        "g/1",
        "1/2/3",
        "123456789/0",
        "0/123456789",
        "-1/2",
        "+1/2",
        "0x1/2",
        "1/ 2",
        "80000000/0",
        "１/1",
    ],
)
def test_garbage_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match="LSN"):
        Lsn.parse(text)


@pytest.mark.parametrize("value", [-1, 2**63, 2**64])
def test_out_of_range(value: int) -> None:
    with pytest.raises(ValueError, match="between"):
        Lsn(value)


def test_printed_like_postgres() -> None:
    lsn = Lsn(0x16B374D848)
    assert (str(lsn), f"{lsn}", f"{lsn:>12}", repr(lsn)) == (
        "16/B374D848",
        "16/B374D848",
        " 16/B374D848",
        "Lsn('16/B374D848')",
    )


def test_an_lsn_is_a_number_and_pickles() -> None:
    assert Lsn(9) < Lsn(10) == 10
    back = pickle.loads(pickle.dumps(Lsn(10)))
    assert type(back) is Lsn
    assert back == 10
