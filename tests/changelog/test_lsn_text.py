"""Positions as text."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from penstock.changelog.user_rows import lsn_text
from penstock.positions import Lsn


@given(st.lists(st.integers(0, 2**63 - 1) | st.integers(0, 40) | st.sampled_from([2**32 - 1, 2**32, 2**36])))
def test_lsn_text_matches_str_of_lsn(values: list[int]) -> None:
    assert lsn_text(pa.array(values, pa.int64())).to_pylist() == [str(Lsn(value)) for value in values]
