"""Following topics: looks at the brokers become ticks of the log, one for all topics of the source.

::

    every `timestamp_frequency_ms`:  look ─▶ continued? ─▶ Step: a row for each topic that moved, and notes of its
                                      ▲          │ no                end ─▶ the log, as `stepping` does it
                                      └── pause  └─▶ DefiniteError: the source ends here

* **What is noted** of a topic is its id and the offsets up to which it was taken. By the rule of `notes` each message
  is in the range of exactly one tick, whenever the process dies.
* **Moments.** A tick counts from when the brokers had answered: all messages that are in it were there by then. What
  `timestamp_type` says is the time of a message, not of its tick.
* **A backlog** is taken in several ticks, each of at most some million messages of a topic.
* **Producers' transactions** are not moments of their own: with ``read_committed`` their messages come into ticks only
  when they are decided, but those of one transaction may come in several.
* **Kept by the brokers.** What the base table of a topic has yet to take in must still be in Kafka. How far that is, is
  a pin in the log (`taken_by`); where there is none yet, nothing was taken in. Of history before that, Kafka may keep
  less than the log.
* **Brokers that do not answer**, or refuse a login, end the run and not the tables: the next run goes on, or says why
  not before it has taken anything.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from penstock.changelog.interface import ChangeLog, ChangeLogReader
from penstock.errors import DefiniteError, TransientError
from penstock.positions import Lsn
from penstock.sources.kafka.continuity import Reached, bounded, check_kept, continued
from penstock.sources.kafka.sql_options import KafkaSqlOptions
from penstock.sources.kafka.ticks import first_offsets, taken_by, tick_row, tick_table, widened_offsets
from penstock.sources.kafka.topic_table import FollowedTopic
from penstock.sources.kafka.with_options import KafkaWithOptions
from penstock.sources.stepping import SteppingConfig, SteppingInstance
from penstock.sources.steps import Changes, Step, inserted

if TYPE_CHECKING:
    from penstock.sources.kafka.observing import Observed, TopicsClient

__all__ = ["FollowingConfig", "FollowingInstance"]

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
        from penstock.sources.kafka.observing import TopicsClient  # the config is read where no client is needed

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
        after = {name: continued(self._config.source, name, taken[name], found[name]) for name in taken}
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
            raise TransientError(refused.message, refused.remedy) from refused

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
                check_kept(self._config.source, name, begun, topic)
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
