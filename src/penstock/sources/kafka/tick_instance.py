"""The instance of a Kafka source: polls the brokers, and writes ticks to the log, one for all its topics.

::

    every `timestamp_frequency_ms`:  poll ─▶ continuous? ─▶ Step: a row for each topic that moved, and its new
                                      ▲          │ no                end offsets ─▶ the log, as in `polling`
                                      └── pause  └─▶ DefiniteError: the source stops here

* **Progress** of a topic is its id and the offsets up to which it was read. It is stored as a note *before* the tick is
  published, with the position of the tick; a restart discards notes above the log's `durable` (see `polling_steps`). So
  each message is in the range of exactly one tick, whenever the process crashes.
* **Time.** The time of a tick is when the brokers answered: all its messages existed by then. `timestamp_type` is about
  the time of a message, not of its tick.
* **A backlog** is divided into several ticks, each with about two million messages of a topic at most.
* **Producer transactions** have no positions of their own: with ``read_committed`` their messages become visible only
  after the transaction ends, but those of one transaction may be in several ticks.
* **Schemas.** With a table that can gain columns, the messages of a tick have no unknown field: before the tick is
  published, its topics are checked (`schema_followers`). If there are new fields, the version of the table with the new
  columns begins with this tick.
* **Retention.** Messages that are not applied yet must still be in Kafka. A lease in the log records the progress of
  apply (`apply_lease_name`); without one, nothing was applied. Of the history before that, Kafka may retain less than
  the log.
* **Brokers that do not answer**, or reject a login, end the run but not the tables: the next run resumes.

Continuity: no messages may be missing between the offsets read and the current content of a topic::

                 log start          read up to               end
    partition ──────●───────────────────●─────────────────────●──▶
                    └─ beyond it: a gap └─ beyond the end:    └─ the next tick
                                           it was truncated

This is checked before each tick, and failures are `DefiniteError`: retrying cannot fix them. Offsets are as reported by
the brokers (`kafka_offsets`). Offsets cannot reveal a topic that lost messages at its end (an unclean leader election)
and gained at least as many since the last poll, nor messages that compaction removed in the middle.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from penstock.changelog.interface import ChangeLog, ChangeLogReader, LoggedTable
from penstock.errors import DefiniteError, TransientError
from penstock.model import TableName, TableSchema
from penstock.positions import Lsn
from penstock.sources.kafka.sql_options import KafkaSqlOptions
from penstock.sources.kafka.ticks import (
    OffsetRange,
    apply_lease_name,
    first_offsets,
    tick_row,
    tick_table,
    widened_offsets,
)
from penstock.sources.kafka.topic_start import restart_hint
from penstock.sources.kafka.topic_table import SourceTopic
from penstock.sources.kafka.with_options import KafkaWithOptions
from penstock.sources.polling import PollingConfig, PollingInstance
from penstock.sources.polling_steps import Changes, Step, inserted

if TYPE_CHECKING:
    from penstock.sources.kafka.schema_followers import SchemaFollower
    from penstock.sources.kafka.topic_admin import TopicAdmin, TopicState


__all__ = ["TickConfig", "TickInstance", "TopicProgress", "bounded", "check_retained", "continued"]

_LOG = logging.getLogger("penstock.kafka")
_LOG.addHandler(logging.NullHandler())
_MOST_MESSAGES = 2_000_000
"""The limit for one topic in one tick, so that consumers of ticks work in steps of bounded size."""


class TickConfig(PollingConfig):
    """The capture of topics; its tables in the log are the tick tables."""

    what: KafkaSqlOptions
    how: KafkaWithOptions
    topics: tuple[SourceTopic, ...]

    @classmethod
    def of(
        cls, source: str, what: KafkaSqlOptions, how: KafkaWithOptions, topics: Sequence[SourceTopic], **fields: Any
    ) -> Self:
        """Create the config from the options and the start of each topic."""
        tables = tuple(tick_table(topic.name) for topic in topics)
        return cls(source=source, what=what, how=how, topics=tuple(topics), tables=tables, **fields)

    def place(self) -> str:
        """Return the topics and the brokers."""
        return f"{', '.join(topic.name for topic in self.topics)} at {self.what.broker}"

    def restart_hint(self) -> str:
        """Return the hint for a topic that cannot be resumed."""
        return restart_hint(self.source, self.what)


class TickInstance(PollingInstance[TickConfig]):
    """Creates ticks from new messages of topics."""

    _client: TopicAdmin
    _reader: ChangeLogReader
    _stop: threading.Event

    def __init__(
        self,
        config: TickConfig,
        log: ChangeLog,
        state: Path,
        follow: Callable[[Mapping[TableName, LoggedTable]], dict[str, SchemaFollower]] | None = None,
    ) -> None:
        """Create the instance; `follow` returns the followers of schemas, by topic, for the tables of the log."""
        super().__init__(config, log, state)
        self._follow = follow
        self._followers: dict[str, SchemaFollower] = {}
        self._due = 0.0
        self._starts: dict[str, tuple[int, ...]] = {}
        """The first offsets of partitions at the last check against the needs of readers."""

    def run(self, stop: threading.Event, connected: Callable[[], None]) -> None:
        """Create ticks until `stop` is set."""
        from penstock.sources.kafka.topic_admin import TopicAdmin  # configs are loaded without a Kafka client, too

        self._stop = stop
        config = self._config
        client = TopicAdmin(config.what, config.how, config.source, statistics=self._write_statistics)
        with client as self._client, closing(self._log.reader()) as self._reader:
            try:
                super().run(stop, connected)
            finally:
                for follower in self._followers.values():
                    follower.close()

    def resume(self, at: Lsn, noted: Mapping[str, Any]) -> None:
        """Connect to the brokers, so that their errors are reported before anything else."""
        self._due, self._starts = 0.0, {}
        self._followers = {} if self._follow is None else self._follow(self._reader.tables())
        self._client.describe(self._names())

    def next_step(self, at: Lsn, noted: Mapping[str, Any]) -> Step | None:
        """Poll all topics when the interval has passed; return a tick if one of them moved."""
        self._stop.wait(max(0.0, self._due - time.monotonic()))  # after a tick; without one, the caller has paused
        self._due = time.monotonic() + self.pause()
        taken = self._taken(noted)
        found = self._poll()
        restart = self._config.restart_hint()
        after = {name: continued(restart, name, taken[name], found[name]) for name in taken}
        self._check_readers(at, found)
        after, notes = self._next_offsets(taken, after, noted)
        moved = [name for name in taken if after[name].upto != taken[name].upto]
        if not moved and not notes:
            return None
        changes = [self._tick(name, taken[name].upto, after[name].upto) for name in moved]
        schemas = [s for name in moved if (s := self._new_schema(name, taken[name].upto, after[name].upto)) is not None]
        notes = {**notes, **{name: {"id": after[name].id, "upto": after[name].upto} for name in moved}}
        return Step(changes, notes, schemas=schemas)

    def pause(self) -> float:
        """Return the time between polls, in seconds."""
        return self._config.how.timestamp_frequency_ms / 1000

    def _next_offsets(
        self, taken: dict[str, TopicProgress], ends: dict[str, TopicProgress], noted: Mapping[str, Any]
    ) -> tuple[dict[str, TopicProgress], dict[str, Any]]:
        """Return the end offsets of the tick, and notes to store with it; notes alone create a tick, too."""
        return {name: bounded(taken[name], ends[name], self._most_messages(name)) for name in ends}, {}

    def _most_messages(self, topic: str) -> int:
        follower = self._followers.get(topic)
        return _MOST_MESSAGES if follower is None or follower.most_messages is None else follower.most_messages

    def _new_schema(self, topic: str, before: Sequence[int], upto: Sequence[int]) -> TableSchema | None:
        """Return the version of a table that begins with these messages, if they have new fields."""
        follower = self._followers.get(topic)
        if follower is None:
            return None
        bounds = enumerate(zip(widened_offsets(before, len(upto)), upto, strict=True))
        ranges = [OffsetRange(topic, number, first, last) for number, (first, last) in bounds if first < last]
        grown = follower.follow(ranges)
        return None if grown is None else grown.table_schema()

    def _write_statistics(self, statistics: str) -> None:
        """Write the latest client statistics to a file; write errors are ignored."""
        with suppress(OSError):
            beside = self._state / ".statistics.json"
            beside.write_text(statistics, encoding="utf-8")
            beside.replace(self._state / "statistics.json")

    def _names(self) -> list[str]:
        return [topic.name for topic in self._config.topics]

    def _taken(self, noted: Mapping[str, Any]) -> dict[str, TopicProgress]:
        begun = {topic.name: TopicProgress(topic.id, topic.offsets) for topic in self._config.topics}
        return begun | {
            name: TopicProgress(noted[name]["id"], tuple(noted[name]["upto"])) for name in begun if name in noted
        }

    def _poll(self) -> dict[str, TopicState | None]:
        """Poll the brokers. A permanent error ends this run; the next run reports it if it persists."""
        try:
            return self._client.describe(self._names())
        except DefiniteError as failure:
            raise TransientError(failure.message, failure.hint) from failure

    def _tick(self, name: str, before: Sequence[int], upto: Sequence[int]) -> Changes:
        if len(upto) > len(before):
            _LOG.warning("topic %s has %d partitions now, %d before", name, len(upto), len(before))
        begun = widened_offsets(before, len(upto))
        return replace(inserted(tick_table(name).name, tick_row(begun, upto)), stands_for=sum(upto) - sum(begun))

    def _check_readers(self, at: Lsn, found: Mapping[str, TopicState | None]) -> None:
        """Check that partitions still have the messages of ticks that are not applied yet."""
        starts = {name: topic.starts for name, topic in found.items() if topic is not None}
        if starts == self._starts:
            return
        leases, valid = {lease.reader: lease.at for lease in self._reader.leases()}, self._reader.frontiers().valid
        for name, topic in found.items():
            begun = self._begun(name, leases.get(apply_lease_name(name), valid), at)
            if begun is not None and topic is not None:
                check_retained(self._config.restart_hint(), name, begun, topic)
        self._starts = starts

    def _begun(self, name: str, after: Lsn, upto: Lsn) -> tuple[int, ...] | None:
        """Return the start offsets of the first tick in (after, upto]."""
        table = tick_table(name).name
        logged = self._reader.tables().get(table)
        if logged is None:
            return None
        after = max(after, logged.valid)
        extent = self._reader.extent(table, after, max(after, upto))
        return first_offsets(self._reader.read(extent))


@dataclass(frozen=True)
class TopicProgress:
    """The progress of a topic: its id, and the offset up to which each partition was read."""

    id: str | None
    """None if brokers do not report it (before Kafka 2.8)."""
    upto: tuple[int, ...]


def continued(restart: str, topic: str, taken: TopicProgress, found: TopicState | None) -> TopicProgress:
    """Return the progress at the current end of a topic; raise `DefiniteError` if it cannot be resumed."""
    if found is None:
        message = f"topic {topic} does not exist, or the user lacks DESCRIBE on it"
        raise DefiniteError(
            message, f"If the topic exists, grant the user DESCRIBE on it. If it was recreated: {restart}"
        )
    if None not in (taken.id, found.id) and found.id != taken.id:
        message = f"topic {topic} was deleted and recreated, so stored offsets are invalid"
        raise DefiniteError(message, restart)
    if len(found.ends) < len(taken.upto):
        message = f"topic {topic} has {len(found.ends)} partitions, fewer than the {len(taken.upto)} read before"
        raise DefiniteError(message, restart)
    _check_ends(restart, topic, taken.upto, found)
    check_retained(restart, topic, taken.upto, found)
    return TopicProgress(found.id or taken.id, found.ends)


def bounded(taken: TopicProgress, ends: TopicProgress, most: int) -> TopicProgress:
    """Return the ends if they add at most `most` messages, otherwise earlier ones, proportionally per partition."""
    before = widened_offsets(taken.upto, len(ends.upto))
    gained = [end - first for first, end in zip(before, ends.upto, strict=True)]
    total = sum(gained)
    if total <= most:
        return ends
    shares = [-(-count * most // total) for count in gained]  # rounded up: every partition with new messages advances
    return TopicProgress(ends.id, tuple(first + share for first, share in zip(before, shares, strict=True)))


def _check_ends(restart: str, topic: str, upto: Sequence[int], found: TopicState) -> None:
    for partition, (taken, end) in enumerate(zip(upto, found.ends, strict=False)):
        if end < taken:
            message = f"partition {partition} of topic {topic} ends at offset {end}, but was already read up to {taken}"
            hint = f"Messages at its end were lost; set unclean.leader.election.enable=false. {restart}"
            raise DefiniteError(message, hint)


def check_retained(restart: str, topic: str, needed: Sequence[int], found: TopicState) -> None:
    """Raise `DefiniteError` if messages from the `needed` offsets on were removed."""
    for partition, (first, start) in enumerate(
        zip(widened_offsets(needed, len(found.starts)), found.starts, strict=True)
    ):
        if start > first:
            message = (
                f"partition {partition} of topic {topic} begins at offset {start}, but offset {first} was not read yet"
            )
            hint = f"Increase the retention of the topic (retention.ms, retention.bytes). {restart}"
            raise DefiniteError(message, hint)
