"""Sizes and durations with units: parsing and formatting."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import UsageError
from penstock.units import duration_text, parse_duration, parse_size, size_text


@pytest.mark.parametrize(
    ("text", "size"),
    [("16 MB", 16 << 20), ("0 B", 0), ("1.5kb", 1536), (" 2 GB ", 2 << 30), ("1 tb", 1 << 40), ("7 b", 7)],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "16", "MB", "-1 MB", "16 MiB", "0.3 B", "1e3 B", "16 MB 1 kB", "9" * 20 + " TB"])
def test_invalid_size_is_rejected(text: str) -> None:
    with pytest.raises(UsageError, match="invalid size"):
        parse_size(text)


@given(st.integers(0, 2**63 - 1))
def test_size_round_trips_through_text(size: int) -> None:
    assert parse_size(size_text(size)) == size


@given(st.timedeltas(timedelta(0), timedelta(days=3650)))
def test_duration_round_trips_through_text(span: timedelta) -> None:
    assert parse_duration(duration_text(span)) == span


def test_largest_exact_unit_is_used() -> None:
    assert [size_text(size) for size in (0, 1000, 1 << 20, 3 << 29)] == ["0 B", "1000 B", "1 MB", "1536 MB"]
    assert duration_text(timedelta(days=1, minutes=90, microseconds=1500)) == "1 d 1 h 30 min 1.5 ms"
    assert duration_text(timedelta(0)) == "0 ms"
