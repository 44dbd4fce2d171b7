"""What people are told of a source that waits, and of where it begins."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from penstock.sources.kafka.transactions.cuts import CutState, Held
from penstock.sources.kafka.transactions.in_flight import Missing
from penstock.sources.kafka.transactions.waiting import explained, tell, valid_from, waits_for

SINCE = datetime(2026, 11, 16, 8, 0, tzinfo=UTC)
FREE: dict[str, Any] = {"transaction": None, "missing": (), "without_end": 0, "copying": False, "repeating": ()}


@pytest.mark.parametrize(
    ("held", "said"),
    [
        ({"copying": True, "without_end": 4}, "the first copy that Debezium makes is not over"),
        ({"transaction": 7, "missing": (Missing("t", 1, 3),)}, "transaction 7 is not complete"),
        ({"transaction": 7, "missing": (Missing("t", 1, 3),)}, "1 of 3 events in the topic t"),
        ({"without_end": 4}, "4 events wait for the END of their transaction in the topic m"),
        ({"repeating": (("t", 1),)}, "has not come to the end of that in partition 1 of the topic t"),
        ({}, "still being read"),
        ({"founded": False}, "reading began in the middle"),
    ],
)
def test_each_reason_is_explained(held: dict[str, Any], said: str) -> None:
    text = explained(Held(**{**FREE, "founded": True, **held}), "m", SINCE)
    assert said in text
    assert "since 2026-11-16 08:00:00 UTC" in text


def test_what_is_told_is_read(tmp_path: Path) -> None:
    assert (waits_for(tmp_path), valid_from(tmp_path)) == (None, None)
    known = CutState(metadata=0, tops={}, founded=True)
    tell(tmp_path, "this", known)
    assert (waits_for(tmp_path), valid_from(tmp_path)) == ("this", None)
    tell(tmp_path, None, known.model_copy(update={"valid_from": 5, "valid_from_ms": 1500}))
    assert waits_for(tmp_path) is None
    assert valid_from(tmp_path) == "the transaction that committed at 5, 1970-01-01 00:00:01.500000 UTC"
    (tmp_path / "transactions.json").write_text("{", encoding="utf-8")
    assert waits_for(tmp_path) is None


def test_a_folder_that_is_not_there_is_no_error(tmp_path: Path) -> None:
    tell(tmp_path / "gone", "this", CutState(metadata=0, tops={}, founded=True))
    assert waits_for(tmp_path / "gone") is None
