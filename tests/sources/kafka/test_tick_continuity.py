"""Whether capture of a topic can resume, given the captured offsets and the current state of the topic."""

from __future__ import annotations

import pytest

from penstock.errors import DefiniteError
from penstock.sources.kafka.tick_instance import TopicProgress, continued
from penstock.sources.kafka.topic_admin import TopicState

REACHED = TopicProgress("id", (5, 3))


@pytest.mark.parametrize(
    ("captured", "found", "after"),
    [
        (REACHED, TopicState("id", (0, 0), (5, 3)), REACHED),
        (REACHED, TopicState("id", (5, 3), (9, 3)), TopicProgress("id", (9, 3))),
        (REACHED, TopicState("id", (0, 0, 0), (5, 3, 0)), TopicProgress("id", (5, 3, 0))),
        (TopicProgress(None, (5,)), TopicState(None, (0,), (6,)), TopicProgress(None, (6,))),
        (TopicProgress(None, (5,)), TopicState("id", (0,), (6,)), TopicProgress("id", (6,))),
        (TopicProgress("id", (5,)), TopicState(None, (0,), (6,)), TopicProgress("id", (6,))),
    ],
    ids=[
        "unchanged",
        "advanced, earlier messages removed",
        "one more partition",
        "no ids",
        "ids since an upgrade",
        "one broker older than another",
    ],
)
def test_capture_resumes(captured: TopicProgress, found: TopicState, after: TopicProgress) -> None:
    assert continued("Restart.", "t", captured, found) == after


@pytest.mark.parametrize(
    ("found", "message", "hint"),
    [
        (None, "topic t does not exist", "DESCRIBE"),
        (TopicState("other", (0, 0), (9, 9)), "deleted and recreated", "Restart"),
        (TopicState("id", (0,), (9,)), "has 1 partitions, fewer than the 2 read before", "Restart"),
        (
            TopicState("id", (0, 0), (9, 2)),
            "partition 1 of topic t ends at offset 2, but was already read up to 3",
            "unclean",
        ),
        (
            TopicState("id", (6, 0), (9, 9)),
            "partition 0 of topic t begins at offset 6, but offset 5 was not",
            "retention.ms",
        ),
        (
            TopicState("id", (5, 3, 1), (9, 9, 2)),
            "partition 2 of topic t begins at offset 1, but offset 0 was",
            "retention.bytes",
        ),
    ],
    ids=["deleted", "recreated", "fewer partitions", "moved back", "gap", "gap in a new partition"],
)
def test_capture_cannot_resume(found: TopicState | None, message: str, hint: str) -> None:
    with pytest.raises(DefiniteError, match=message) as caught:
        continued("Restart.", "t", REACHED, found)
    assert hint in caught.value.hint
    assert caught.value.hint.endswith("Restart.")
