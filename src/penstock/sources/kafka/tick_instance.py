"""The instance of a Kafka source: it looks at the brokers, and writes ticks to the log, one for all its topics.

::

    every `timestamp_frequency_ms`:  look ─▶ continuous? ─▶ Step: a row for each topic that moved, and notes of its
                                      ▲          │ no                end ─▶ the log, as in `stepping`
                                      └── pause  └─▶ DefiniteError: the source stops here

* **Progress** of a topic is its id and the offsets up to which it was taken. By the rule of `notes`, each message is in
  the range of exactly one tick, whenever the process dies.
* **Time.** A tick counts from when the brokers answered: all its messages were there by then. `timestamp_type` is about
  the time of a message, not of its tick.
* **A backlog** is divided into several ticks, each of at most some million messages of a topic.
* **Producer transactions** are not positions of their own: with ``read_committed`` their messages become visible only
  when they are decided, but those of one transaction may come in several ticks.
* **Retention.** Messages that are not applied yet must still be in Kafka. A lease in the log records how far apply is
  (`taken_by`); without one, nothing was applied. Of history before that, Kafka may keep less than the log.
* **Brokers that do not answer**, or reject a login, end the run and not the tables: the next run resumes.

Continuity: nothing may be missing between what was taken of a topic and what it has now::

                 log start          taken up to              end
    partition ──────●───────────────────●─────────────────────●──▶
                    └─ beyond `taken`:  └─ beyond the end:    └─ the next tick
                       a gap               it was moved back

All of it is checked before a tick is made, and failures are `DefiniteError`: retrying cannot fix them. Offsets are
those that brokers reported (`kafka_offsets`). Offsets cannot show a topic that lost messages at its end (an unclean
election) and gained at least as many since the last look, nor messages that compaction removed in the middle.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from penstock.changelog.interface import ChangeLog, ChangeLogReader
from penstock.errors import DefiniteError, TransientError
from penstock.positions import Lsn
from penstock.sources.kafka.restart import how_to_begin_anew
from penstock.sources.kafka.sql_options import KafkaSqlOptions
from penstock.sources.kafka.ticks import first_offsets, taken_by, tick_row, tick_table, widened_offsets
from penstock.sources.kafka.topic_table import FollowedTopic
from penstock.sources.kafka.with_options import KafkaWithOptions
from penstock.sources.polling import SteppingConfig, SteppingInstance
from penstock.sources.polling_steps import Changes, Step, inserted

if TYPE_CHECKING:
    from penstock.sources.kafka.topic_offsets import Observed, TopicsClient


__all__ = ["FollowingConfig", "FollowingInstance", "Reached", "bounded", "check_kept", "continued"]

_LOG = logging.getLogger("penstock.kafka")
_LOG.addHandler(logging.NullHandler())
_MOST_MESSAGES = 2_000_000
"""Of one topic in one tick, so that whatever is made of ticks is made in steps of bounded size."""


class FollowingConfig(SteppingConfig):
    """The capture of topics: its tables in the log are those of their ticks."""

    what: KafkaSqlOptions
    how: KafkaWithOptions
    topics: tuple[FollowedTopic, ...]

    @classmethod
    def of(
        cls, source: str, what: KafkaSqlOptions, how: KafkaWithOptions, topics: Sequence[FollowedTopic], **told: Any
    ) -> Self:
        """Make it of the options and where its topics begin."""
        tables = tuple(tick_table(topic.name) for topic in topics)
        return cls(source=source, what=what, how=how, topics=tuple(topics), tables=tables, **told)

    def place(self) -> str:
        """Name the topics and the brokers."""
        return f"{', '.join(topic.name for topic in self.topics)} at {self.what.broker}"

    def how_to_begin_anew(self) -> str:
        """Say what to do where what was taken cannot be continued."""
        return how_to_begin_anew(self.source, self.what)


class FollowingInstance(SteppingInstance[FollowingConfig]):
    """Makes ticks of what topics gain."""

    _client: TopicsClient
    _reader: ChangeLogReader
    _stop: threading.Event

    def __init__(self, config: FollowingConfig, log: ChangeLog, state: Path) -> None:
        super().__init__(config, log, state)
        self._due = 0.0
        self._starts: dict[str, tuple[int, ...]] = {}
        """Where partitions began when they were last held against what readers need."""

    def run(self, stop: threading.Event, connected: Callable[[], None]) -> None:
        """Take ticks until told to stop."""
        from penstock.sources.kafka.topic_offsets import TopicsClient  # the config is read where no client is needed

        self._stop = stop
        config = self._config
        client = TopicsClient(config.what, config.how, config.source, statistics=self._keep_statistics)
        with client as self._client, closing(self._log.reader()) as self._reader:
            super().run(stop, connected)

    def resume(self, at: Lsn, noted: Mapping[str, Any]) -> None:
        """Reach the brokers: what they refuse is told before anything else."""
        self._due, self._starts = 0.0, {}
        self._client.look(self._names())

    def next_step(self, at: Lsn, noted: Mapping[str, Any]) -> Step | None:
        """Look at all topics, when it is time to; make a tick of them where one has moved."""
        self._stop.wait(max(0.0, self._due - time.monotonic()))  # after a tick; when there was none, `pause` did it
        self._due = time.monotonic() + self.pause()
        taken = self._taken(noted)
        found = self._look()
        anew = self._config.how_to_begin_anew()
        after = {name: continued(anew, name, taken[name], found[name]) for name in taken}
        self._check_readers(at, found)
        after, notes = self._settled(taken, after, noted)
        moved = [name for name in taken if after[name].upto != taken[name].upto]
        if not moved and not notes:
            return None
        changes = [self._tick(name, taken[name].upto, after[name].upto) for name in moved]
        return Step(changes, {**notes, **{name: {"id": after[name].id, "upto": after[name].upto} for name in moved}})

    def pause(self) -> float:
        """Return the time between looks."""
        return self._config.how.timestamp_frequency_ms / 1000

    def _settled(
        self, taken: dict[str, Reached], ends: dict[str, Reached], noted: Mapping[str, Any]
    ) -> tuple[dict[str, Reached], dict[str, Any]]:
        """Return how far the tick may go of what is there, and what to note with it; notes alone make a tick, too."""
        return {name: bounded(taken[name], ends[name], _MOST_MESSAGES) for name in ends}, {}

    def _keep_statistics(self, told: str) -> None:
        """Keep the last of what the client counts where people find it; that it cannot be written matters to nobody."""
        with suppress(OSError):
            beside = self._state / ".statistics.json"
            beside.write_text(told, encoding="utf-8")
            beside.replace(self._state / "statistics.json")

    def _names(self) -> list[str]:
        return [topic.name for topic in self._config.topics]

    def _taken(self, noted: Mapping[str, Any]) -> dict[str, Reached]:
        begun = {topic.name: Reached(topic.id, topic.offsets) for topic in self._config.topics}
        return begun | {name: Reached(noted[name]["id"], tuple(noted[name]["upto"])) for name in begun if name in noted}

    def _look(self) -> dict[str, Observed | None]:
        """Ask the brokers; a refusal ends this run, and is told by the next one if it is still there."""
        try:
            return self._client.look(self._names())
        except DefiniteError as refused:
            raise TransientError(refused.message, refused.hint) from refused

    def _tick(self, name: str, before: Sequence[int], upto: Sequence[int]) -> Changes:
        if len(upto) > len(before):
            _LOG.warning("the topic %s has %d partitions now, and had %d before", name, len(upto), len(before))
        return inserted(tick_table(name).name, tick_row(widened_offsets(before, len(upto)), upto))

    def _check_readers(self, at: Lsn, found: Mapping[str, Observed | None]) -> None:
        """Hold where partitions begin, if that has changed, against what is still to be read of earlier ticks."""
        starts = {name: topic.starts for name, topic in found.items() if topic is not None}
        if starts == self._starts:
            return
        pins, valid = {pin.reader: pin.at for pin in self._reader.pins()}, self._reader.frontiers().valid
        for name, topic in found.items():
            begun = self._begun(name, pins.get(taken_by(name), valid), at)
            if begun is not None and topic is not None:
                check_kept(self._config.how_to_begin_anew(), name, begun, topic)
        self._starts = starts

    def _begun(self, name: str, after: Lsn, upto: Lsn) -> tuple[int, ...] | None:
        """Return where the first tick in (after, upto] begins."""
        table = tick_table(name).name
        logged = self._reader.tables().get(table)
        if logged is None:
            return None
        after = max(after, logged.valid)
        extent = self._reader.extent(table, after, max(after, upto))
        return first_offsets(self._reader.read(extent))


@dataclass(frozen=True)
class Reached:
    """What was taken of a topic so far: which topic it was, and up to which offset of each partition."""

    id: str | None
    """None where brokers have never told it: those before Kafka 2.8 do not."""
    upto: tuple[int, ...]


def continued(anew: str, topic: str, taken: Reached, found: Observed | None) -> Reached:
    """Return what is taken with the next tick; the same where nothing came."""
    if found is None:
        message = f"the topic {topic} is gone, or may not be seen any more"
        raise DefiniteError(message, f"Let the user describe it, where it is still there. If it was made again: {anew}")
    if None not in (taken.id, found.id) and found.id != taken.id:
        message = f"the topic {topic} was deleted and made again: its offsets are others than those that were taken"
        raise DefiniteError(message, anew)
    if len(found.ends) < len(taken.upto):
        message = f"the topic {topic} had {len(taken.upto)} partitions, and has {len(found.ends)} now"
        raise DefiniteError(message, anew)
    _check_ends(anew, topic, taken.upto, found)
    check_kept(anew, topic, taken.upto, found)
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


def _check_ends(anew: str, topic: str, upto: Sequence[int], found: Observed) -> None:
    for partition, (taken, end) in enumerate(zip(upto, found.ends, strict=False)):
        if end < taken:
            message = f"partition {partition} of the topic {topic} ends at {end}, and was taken up to {taken} before"
            hint = f"Messages were lost at its end (set unclean.leader.election.enable=false). {anew}"
            raise DefiniteError(message, hint)


def check_kept(anew: str, topic: str, needed: Sequence[int], found: Observed) -> None:
    """Refuse to go on where messages from these offsets on are needed, and some are gone."""
    for partition, (first, start) in enumerate(
        zip(widened_offsets(needed, len(found.starts)), found.starts, strict=True)
    ):
        if start > first:
            message = f"partition {partition} of the topic {topic} begins at {start}, and {first} is still to be read"
            hint = f"Let it keep messages for longer (retention.ms, retention.bytes). {anew}"
            raise DefiniteError(message, hint)
