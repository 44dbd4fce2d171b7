"""Whether a topic can be followed on, by what was taken of it and what is there now."""

from __future__ import annotations

import pytest

from penstock.errors import DefiniteError
from penstock.sources.kafka.tick_instance import Reached, continued
from penstock.sources.kafka.topic_offsets import Observed

REACHED = Reached("id", (5, 3))


@pytest.mark.parametrize(
    ("taken", "found", "after"),
    [
        (REACHED, Observed("id", (0, 0), (5, 3)), REACHED),
        (REACHED, Observed("id", (5, 3), (9, 3)), Reached("id", (9, 3))),
        (REACHED, Observed("id", (0, 0, 0), (5, 3, 0)), Reached("id", (5, 3, 0))),
        (Reached(None, (5,)), Observed(None, (0,), (6,)), Reached(None, (6,))),
        (Reached(None, (5,)), Observed("id", (0,), (6,)), Reached("id", (6,))),
        (Reached("id", (5,)), Observed(None, (0,), (6,)), Reached("id", (6,))),
    ],
    ids=[
        "at rest",
        "moved, all else removed",
        "a partition more",
        "no ids",
        "ids from now on",
        "a broker that is older than another",
    ],
)
def test_what_goes_on(taken: Reached, found: Observed, after: Reached) -> None:
    assert continued("Anew.", "t", taken, found) == after


@pytest.mark.parametrize(
    ("found", "said", "hint"),
    [
        (None, "the topic t is gone", "describe"),
        (Observed("other", (0, 0), (9, 9)), "deleted and made again", "Begin anew"),
        (Observed("id", (0,), (9,)), "had 2 partitions, and has 1 now", "Begin anew"),
        (Observed("id", (0, 0), (9, 2)), "partition 1 of the topic t ends at 2, and was taken up to 3", "unclean"),
        (Observed("id", (6, 0), (9, 9)), "partition 0 of the topic t begins at 6, and 5 is still", "retention.ms"),
        (Observed("id", (5, 3, 1), (9, 9, 2)), "partition 2 of the topic t begins at 1, and 0 is", "retention.bytes"),
    ],
    ids=["gone", "made again", "fewer partitions", "moved back", "gap", "gap in a new one"],
)
def test_what_does_not(found: Observed | None, said: str, hint: str) -> None:
    with pytest.raises(DefiniteError, match=said) as caught:
        continued("Begin anew.", "t", REACHED, found)
    assert hint in caught.value.hint
    assert caught.value.hint.endswith("Begin anew.")
