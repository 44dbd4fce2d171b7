"""The reported reason why a source waits, and the transaction from which it is valid."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from penstock.sources.kafka.transactions.cuts import CutBlockers, CutState
from penstock.sources.kafka.transactions.pending_transactions import MissingEvents
from penstock.sources.kafka.transactions.wait_status import read_wait_reason, valid_from, wait_reason, write_wait_status

SINCE = datetime(2026, 11, 16, 8, 0, tzinfo=UTC)
NO_BLOCKERS: dict[str, Any] = {
    "transaction": None,
    "missing": (),
    "without_end": 0,
    "copying": False,
    "settles_after": None,
    "repeating": (),
}


@pytest.mark.parametrize(
    ("blockers", "message"),
    [
        ({"copying": True, "without_end": 4}, "for Debezium's initial snapshot to complete"),
        ({"settles_after": 1500}, "for a transaction that commits after 1970-01-01 00:00:01 UTC"),
        ({"transaction": 7, "missing": (MissingEvents("t", 1, 3),)}, "transaction 7 is incomplete"),
        ({"transaction": 7, "missing": (MissingEvents("t", 1, 3),)}, "1 of 3 events in topic t"),
        ({"without_end": 4}, "4 events wait for the END of their transaction in topic m"),
        ({"repeating": (("t", 1),)}, "has not finished in partition 1 of topic t"),
        ({}, "reading available messages"),
        ({"founded": False}, "reading started in the middle"),
    ],
)
def test_each_reason_is_explained(blockers: dict[str, Any], message: str) -> None:
    text = wait_reason(CutBlockers(**{**NO_BLOCKERS, "founded": True, **blockers}), "m", SINCE)
    assert message in text
    assert "since 2026-11-16 08:00:00 UTC" in text


def test_wait_status_round_trips(tmp_path: Path) -> None:
    assert (read_wait_reason(tmp_path), valid_from(tmp_path)) == (None, None)
    known = CutState(metadata=0, tops={}, founded=True)
    write_wait_status(tmp_path, "this", known)
    assert (read_wait_reason(tmp_path), valid_from(tmp_path)) == ("this", None)
    write_wait_status(tmp_path, None, known.model_copy(update={"valid_from": 5, "valid_from_ms": 1500}))
    assert read_wait_reason(tmp_path) is None
    assert valid_from(tmp_path) == "the transaction that committed at 5, 1970-01-01 00:00:01.500000 UTC"
    (tmp_path / "transactions.json").write_text("{", encoding="utf-8")
    assert read_wait_reason(tmp_path) is None


def test_missing_folder_is_ignored(tmp_path: Path) -> None:
    write_wait_status(tmp_path / "gone", "this", CutState(metadata=0, tops={}, founded=True))
    assert read_wait_reason(tmp_path / "gone") is None
