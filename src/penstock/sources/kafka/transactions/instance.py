"""Following topics by transactions: a look at the brokers, then reading up to there, then a tick of what is whole.

::

    look (`following`) ─▶ ends ─▶ read data and metadata up to them ─▶ marks ─▶ `cutting` ─▶ offsets of the tick
                                   ▲       │ a turn takes a second at most       │ none: waits, and says for what
                                   └───────┘                                     └─▶ `standing`

* **Messages are read twice**: here for their transactions alone, and by Spark for their rows, when a tick has them.
* **What is held** is bounded by what is in flight: a partition that is far ahead of the ENDs rests until they have
  caught up, and so do ENDs that are far ahead of events.
* **What is noted** with a tick is the `CutState`. A run begins at the last tick's offsets, and reads from there again.
* **Moments.** While something that is there cannot be taken yet, no clock is told: the log does not claim to have it.
* **ENDs of others.** Where only tables that are not ours change, no topic moves. Now and then what was read of the
  metadata is noted nevertheless, so that the topic need not keep it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from penstock.changelog.interface import ChangeLog, ChangeLogWriter
from penstock.errors import DefiniteError, TransientError
from penstock.formats import Registry, ResolvedFormat, decode_batch
from penstock.positions import Lsn
from penstock.sources.kafka.continuity import Reached, continued
from penstock.sources.kafka.following import FollowingConfig, FollowingInstance
from penstock.sources.kafka.observing import Observed
from penstock.sources.kafka.transactions.cutting import Cut, CutState, Cutting
from penstock.sources.kafka.transactions.founding import LOOK_BACK, Founding
from penstock.sources.kafka.transactions.marks import ends_of, marks_of
from penstock.sources.kafka.transactions.metadata import TransactionMetadata
from penstock.sources.kafka.transactions.narrowing import narrowed_metadata, narrowed_values
from penstock.sources.kafka.transactions.reading import Batch, Partition, TopicsReader
from penstock.sources.kafka.transactions.routes import Routes
from penstock.sources.kafka.transactions.standing import explained, tell

__all__ = ["TransactionsInstance"]

_LOG = logging.getLogger("penstock.kafka")
_LOG.addHandler(logging.NullHandler())
_NOTE = "transaction metadata"
"""Under which it is noted; no topic can be called so."""
_TURN_SECONDS = 1.0
_PATIENCE_SECONDS = 5.0
"""A source that takes nothing for so long, although something is there, says what it waits for."""
_FAR_MESSAGES = 100_000
"""So far a partition, or the metadata, may be ahead."""
_NOTE_MESSAGES = 10_000


class TransactionsInstance(FollowingInstance):
    """Makes ticks at which upstream transactions are whole, over all topics together."""

    _reading: TopicsReader
    _cutting: Cutting

    def __init__(
        self,
        config: FollowingConfig,
        metadata: TransactionMetadata,
        values: Mapping[str, ResolvedFormat],
        log: ChangeLog,
        state: Path,
        *,
        patience: float = _PATIENCE_SECONDS,
    ) -> None:
        """Make it; `values` are the formats of the topics' values."""
        super().__init__(config, log, state)
        self._metadata = metadata
        self._formats = {name: narrowed_values(each) for name, each in values.items()}
        self._formats[metadata.topic.name] = narrowed_metadata(metadata.format)
        self._registries = {name: _registry(each) for name, each in self._formats.items()}
        self._patience = patience
        self._behind = True
        self._moved_at, self._since = time.monotonic(), datetime.now(UTC)
        self._told: str | None = None

    def run(self, stop: threading.Event, connected: Callable[[], None]) -> None:
        """Take ticks until told to stop."""
        with TopicsReader(self._config.what, self._config.how, self._config.source) as self._reading:
            super().run(stop, connected)

    def resume(self, at: Lsn, noted: Mapping[str, Any]) -> None:
        """Begin to read where the last tick ended."""
        super().resume(at, noted)
        taken, known = self._taken(noted), self._known(noted)
        upto = {name: reached.upto for name, reached in taken.items()}
        routes = Routes(self._names(), self._metadata.routes)
        self._cutting = Cutting(upto, known, metadata=self._metadata.topic.name, routes=routes, founding=Founding())
        found = self._look_at(self._names())
        begin = {
            (name, number): offset if known.founded else _looking_back(offset, found[name], number)
            for name, offsets in upto.items()
            for number, offset in enumerate(offsets)
        }
        self._reading.begin({**begin, self._metadata_place: known.metadata})
        self._behind, self._moved_at, self._since = True, time.monotonic(), datetime.now(UTC)
        self._say(None, known)

    # -- the tick ---------------------------------------------------------------------------------------------------

    def _settled(
        self, taken: dict[str, Reached], ends: dict[str, Reached], noted: Mapping[str, Any]
    ) -> tuple[dict[str, Reached], dict[str, Any]]:
        """Read what is there; take what is whole of it."""
        metadata = self._continued_metadata(noted)
        self._add_partitions(ends)
        there = {(name, number): end for name, each in ends.items() for number, end in enumerate(each.upto)}
        self._cutting.looked(self._read_upto({**there, self._metadata_place: metadata.upto[0]}))
        known = self._known(noted)
        cut = self._cutting.advance(time.monotonic())
        upto = {name: reached.upto for name, reached in taken.items()} if cut is None else cut.upto
        self._watch(cut, moved=upto != {name: reached.upto for name, reached in taken.items()}, ends=ends, upto=upto)
        if cut is None or (
            all(cut.upto[name] == taken[name].upto for name in taken)
            and cut.state.metadata - known.metadata < _NOTE_MESSAGES
        ):
            return taken, {}
        if cut.state.founded and not known.founded:
            _LOG.info("the source %s is valid from %s on", self._config.source, cut.state.valid_from)
        note = {"id": metadata.id, "state": cut.state.model_dump(mode="json")}
        return {name: Reached(ends[name].id, cut.upto[name]) for name in taken}, {_NOTE: note}

    def _read_upto(self, there: Mapping[Partition, int]) -> list[Partition]:
        """Read for a turn; return the partitions of which all that is there was read."""
        give_up = time.monotonic() + _TURN_SECONDS
        while left := [place for place, end in there.items() if not self._reading.is_read(place, end)]:
            if time.monotonic() > give_up or self._stop.is_set():
                break
            self._reading.rest(self._far_ahead(left))
            for batch in self._reading.read():
                self._take(batch)
        return [place for place in there if place not in left]

    def _far_ahead(self, left: list[Partition]) -> list[Partition]:
        """Return what others have to catch up with, as long as they have something left to read."""
        if self._metadata_place in left:
            ahead = [place for place in left if place != self._metadata_place]
            ahead = [place for place in ahead if self._cutting.is_ahead(*place, by=_FAR_MESSAGES)]
            if ahead:
                return ahead
        if self._cutting.ends_in_flight > _FAR_MESSAGES and left != [self._metadata_place]:
            return [self._metadata_place]
        return []

    def _take(self, batch: Batch) -> None:
        topic, partition = batch.place
        decoded = decode_batch(batch.values, self._formats[topic], self._registries[topic])
        if batch.place == self._metadata_place:
            self._cutting.take_ends(ends_of(topic, batch.offsets, decoded), batch.read)
        else:
            self._cutting.take_changes(topic, partition, marks_of(topic, partition, batch.offsets, decoded), batch.read)

    def _add_partitions(self, ends: Mapping[str, Reached]) -> None:
        for name, reached in ends.items():
            added = self._cutting.add_partitions(name, len(reached.upto))
            if added:
                self._reading.add({(name, number): 0 for number in added})

    # -- the metadata topic -----------------------------------------------------------------------------------------

    @property
    def _metadata_place(self) -> Partition:
        return (self._metadata.topic.name, 0)

    def _continued_metadata(self, noted: Mapping[str, Any]) -> Reached:
        """Look at the metadata topic; refuse one of which something is missing."""
        name = self._metadata.topic.name
        begun = noted[_NOTE]["id"] if _NOTE in noted else self._metadata.topic.id
        found = self._look_at([name])[name]
        reached = continued(self._config.source, name, Reached(begun, (self._known(noted).metadata,)), found)
        if len(reached.upto) != 1:
            message = f"the topic {name} has {len(reached.upto)} partitions: the order of transactions is not known"
            raise DefiniteError(message, "Let Debezium write it into a topic with one partition.")
        return reached

    def _known(self, noted: Mapping[str, Any]) -> CutState:
        """Return what is known at the last tick."""
        if _NOTE in noted:
            return CutState.model_validate(noted[_NOTE]["state"])
        topics = (*self._config.topics, self._metadata.topic)
        whole = not any(offset for topic in topics for offset in topic.offsets)
        return CutState(metadata=self._metadata.topic.offsets[0], tops={}, founded=whole)

    def _look_at(self, names: list[str]) -> dict[str, Observed | None]:
        try:
            return self._client.look(names)
        except DefiniteError as refused:
            raise TransientError(refused.message, refused.remedy) from refused

    # -- for people -------------------------------------------------------------------------------------------------

    def _watch(
        self, cut: Cut | None, *, moved: bool, ends: Mapping[str, Reached], upto: Mapping[str, tuple[int, ...]]
    ) -> None:
        """Say what is waited for, where nothing moves although something is there."""
        self._behind = any(a < b for name, each in ends.items() for a, b in zip(upto[name], each.upto, strict=False))
        if moved or not self._behind:
            self._moved_at, self._since = time.monotonic(), datetime.now(UTC)
        said = None
        if time.monotonic() - self._moved_at >= self._patience:
            said = explained(self._cutting.held(), self._metadata.topic.name, self._since)
        if said != self._told or (cut is not None and moved):
            self._say(said, self._cutting.state)

    def _say(self, waiting: str | None, known: CutState) -> None:
        self._told = waiting
        tell(self._state, waiting, known)

    def _tell_clock(self, writer: ChangeLogWriter, asked: int) -> None:
        """Tell no moment as passed while something is there that was not taken."""
        if not self._behind:
            super()._tell_clock(writer, asked)


def _looking_back(offset: int, found: Observed | None, partition: int) -> int:
    first = 0 if found is None else found.starts[partition]
    return max(first, offset - LOOK_BACK) if offset > first else offset


def _registry(format_: ResolvedFormat) -> Registry | None:
    address = getattr(format_.format, "registry", None)
    return None if address is None else Registry(address)
