"""Transactions that the server sends again are compared with the end of the log, without a server."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from penstock.changelog.interface import Commit
from penstock.errors import DefiniteError
from penstock.positions import Lsn
from penstock.sources.postgres.pgoutput.overlap import Overlap

CONFIRMED, LAST, DURABLE = Lsn(100), Commit(Lsn(200), 7, 1000), Lsn(300)


def overlap(confirmed: Lsn = CONFIRMED) -> Overlap:
    return Overlap("shop", confirmed, DURABLE, LAST)


def check(found: Overlap, *commits: Commit, changing: bool = True) -> None:
    """Pass transactions as received from the server."""
    values = [(commit.lsn, commit.xid, commit.committed_at) for commit in commits]
    lsns, xids, times = np.array(values, np.int64).T
    found.check(lsns, xids, times, np.full(len(commits), changing))


def test_slot_is_confirmed_further_after_the_same_history_only() -> None:
    found = overlap()
    check(found, Commit(Lsn(150), 6, 900), LAST)
    assert found.confirmable(Lsn(400)) == CONFIRMED
    found.advance(DURABLE)
    assert found.confirmable(Lsn(400)) == Lsn(400)


def test_slot_at_the_end_of_the_log_needs_no_check() -> None:
    assert overlap(DURABLE).confirmable(Lsn(400)) == Lsn(400)


@pytest.mark.parametrize("other", [replace(LAST, lsn=Lsn(201)), replace(LAST, xid=8), replace(LAST, committed_at=1001)])
def test_other_commit_in_place_of_the_last_is_another_history(other: Commit) -> None:
    with pytest.raises(DefiniteError, match=r"another history .* differs from the last commit of the log"):
        check(overlap(), other)


def test_last_commit_that_is_not_sent_is_another_history() -> None:
    with pytest.raises(DefiniteError, match=r"another history .* does not resend the last transaction"):
        overlap().advance(DURABLE)


def test_change_where_the_log_has_none_is_another_history() -> None:
    new = Commit(Lsn(250), 9, 1100)
    found = overlap()
    check(found, LAST)
    check(found, new, changing=False)
    with pytest.raises(DefiniteError, match=r"another history .* which reaches further, does not have"):
        check(found, new)
    confirmed_beyond = overlap(Lsn(220))
    with pytest.raises(DefiniteError, match="which reaches further, does not have"):
        check(confirmed_beyond, new)
