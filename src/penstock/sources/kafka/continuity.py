"""Whether a topic can be followed on: nothing may be missing between what was taken of it and what it has now.

::

                 log start          taken up to              end
    partition ──────●───────────────────●─────────────────────●──▶
                    └─ beyond `taken`:  └─ beyond the end:    └─ the next tick
                       a gap               it was moved back

Everything here is decided before a tick is made, and is a `DefiniteError`: trying again mends none of it. What cannot
be seen by offsets: a topic that lost messages at its end (an unclean election) and gained at least as many since the
last look; and messages that compaction removed in the middle.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.errors import DefiniteError
from penstock.sources.kafka.ticks import widened_offsets

if TYPE_CHECKING:
    from penstock.sources.kafka.observing import Observed

__all__ = ["Reached", "bounded", "check_kept", "continued"]


@dataclass(frozen=True)
class Reached:
    """What was taken of a topic so far: which topic it was, and up to which offset of each partition."""

    id: str | None
    """None where brokers have never told it: those before Kafka 2.8 do not."""
    upto: tuple[int, ...]


def continued(source: str, topic: str, taken: Reached, found: Observed | None) -> Reached:
    """Return what is taken with the next tick; the same where nothing came."""
    if found is None:
        message = f"the topic {topic} is gone, or may not be seen any more"
        raise DefiniteError(message, f"Let the user describe it, where it is still there. If not: {_anew(source)}")
    if None not in (taken.id, found.id) and found.id != taken.id:
        message = f"the topic {topic} was deleted and made again: its offsets are others than those that were taken"
        raise DefiniteError(message, _anew(source))
    if len(found.ends) < len(taken.upto):
        message = f"the topic {topic} had {len(taken.upto)} partitions, and has {len(found.ends)} now"
        raise DefiniteError(message, _anew(source))
    _check_ends(source, topic, taken.upto, found)
    check_kept(source, topic, taken.upto, found)
    return Reached(found.id or taken.id, found.ends)


def bounded(taken: Reached, ends: Reached, most: int) -> Reached:
    """Return the same ends where no more messages than these come with them, else nearer ones: in proportion."""
    before = widened_offsets(taken.upto, len(ends.upto))
    gained = [end - first for first, end in zip(before, ends.upto, strict=True)]
    total = sum(gained)
    if total <= most:
        return ends
    shares = [-(-count * most // total) for count in gained]  # rounded up: each partition moves on that can
    return Reached(ends.id, tuple(first + share for first, share in zip(before, shares, strict=True)))


def _check_ends(source: str, topic: str, upto: Sequence[int], found: Observed) -> None:
    for partition, (taken, end) in enumerate(zip(upto, found.ends, strict=False)):
        if end < taken:
            message = f"partition {partition} of the topic {topic} ends at {end}, and was taken up to {taken} before"
            remedy = f"Messages were lost at its end (set unclean.leader.election.enable=false). {_anew(source)}"
            raise DefiniteError(message, remedy)


def check_kept(source: str, topic: str, needed: Sequence[int], found: Observed) -> None:
    """Refuse to go on where messages from these offsets on are needed, and some are gone."""
    for partition, (first, start) in enumerate(
        zip(widened_offsets(needed, len(found.starts)), found.starts, strict=True)
    ):
        if start > first:
            message = f"partition {partition} of the topic {topic} begins at {start}, and {first} is still to be read"
            remedy = f"Let it keep messages for longer (retention.ms, retention.bytes). {_anew(source)}"
            raise DefiniteError(message, remedy)


def _anew(source: str) -> str:
    return f"Begin anew with what the topic has: DROP SOURCES {source}; then create it again."
