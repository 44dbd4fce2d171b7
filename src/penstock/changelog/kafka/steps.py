"""The writer's steps: each is in the index once, whatever the brokers do in between.

::

    step ─▶ commit ─▶ seen in the index ─▶ done
              │ error
              ▼
    a successor in the index? ─▶ DefiniteError: another writer has taken over
    fenced without one?       ─▶ TransientError: the broker gave up on us (a pause beyond the transaction's time)
    else: new session (ends what was pending, either way) ─▶ read the index to its end
              └─ the step's serial number is there ─▶ done; else ─▶ the same step again

Whether a commit that was not answered has happened is thus never guessed. A writer whose step failed for good is
broken: it refuses all further steps, for what its caller believes may no longer be so.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Sequence

from confluent_kafka import KafkaError, KafkaException

from penstock.changelog.frames import StoredChunk
from penstock.changelog.kafka.clients import DEFINITE, Place, cause_of, explained, is_fenced
from penstock.changelog.kafka.records import Opened, Record, messages
from penstock.changelog.kafka.session import Session, Written
from penstock.changelog.kafka.tail import Tail
from penstock.errors import DefiniteError, PenstockError, TransientError

__all__ = ["Steps"]

_LIMIT = 90.0
"""How long a step is tried, in seconds."""
_INIT_SECONDS = 20.0
_CLOSED = "this writer of the change log was closed"
_INTERRUPTED = "a step of this writer of the change log was interrupted"
_REOPEN = "Open the log again: that ends what was pending."
_BACKOFF = (0.05, 0.1, 0.2, 0.5, 1.0)

_Build = Callable[[int, list[Written]], Record]


class Steps:
    """Being the writer of a log: from the first session to the error that ends it, or `close`."""

    def __init__(self, place: Place, tail: Tail, limit: int) -> None:
        self._place = place
        self._tail = tail
        self._limit = limit
        self._owners: tuple[str, ...] = ()
        """Who may be named as the writer; anybody else is a successor."""
        self._broken: PenstockError | None = None
        self._session = self._new_session(time.monotonic() + _LIMIT)
        self._open()

    def take(self, payloads: Sequence[StoredChunk], build: _Build) -> None:
        """Take a step: `build` makes its record from its serial number and where the payloads are."""
        self.check()
        try:
            self._take(payloads, build)
        except BaseException as error:
            self._broken = error if isinstance(error, PenstockError) else TransientError(_INTERRUPTED, _REOPEN)
            self._session.abandon()
            raise

    def check(self) -> None:
        """Refuse where there can be no further step."""
        if self._broken is not None:
            raise self._broken

    def close(self) -> None:
        """Give up being the writer."""
        if self._broken is None:
            self._session.abandon()
        self._broken = TransientError(_CLOSED, _REOPEN)

    def _open(self) -> None:
        """Put ourselves down as the writer; from then on another name there is a successor's."""
        owner = uuid.uuid4().hex
        self._owners = (self._tail.refresh().owner, owner)
        self.take((), lambda serial, _: Opened(serial, owner))
        self._owners = (owner,)
        self._check_owner()

    def _take(self, payloads: Sequence[StoredChunk], build: _Build) -> None:
        deadline = time.monotonic() + _LIMIT
        before = self._tail.index.serial or 0
        while (self._tail.index.serial or 0) <= before:
            try:
                self._session.commit(payloads, lambda at: self._messages(build(before + 1, at)), deadline)
                self._tail.until(before + 1, deadline)
            except KafkaException as error:
                self._mend(cause_of(error), deadline)

    def _messages(self, record: Record) -> list[bytes]:
        return messages(record, self._session.part)

    def _mend(self, cause: KafkaError, deadline: float) -> None:
        """Get a new session and learn what became of the step; or raise."""
        self._session.abandon()
        if cause.code() in DEFINITE:
            raise explained(self._place, "written", cause)
        self._tail.refresh(patience=deadline - time.monotonic())
        self._check_owner()
        if is_fenced(cause):
            message = f"the brokers have given up on this writer of the change log {self._place.name}"
            raise TransientError(message, _REOPEN)
        self._session = self._new_session(deadline)
        self._tail.refresh(patience=deadline - time.monotonic())
        self._check_owner()

    def _check_owner(self) -> None:
        if self._tail.index.owner not in self._owners:
            message = f"another writer has taken over the change log {self._place.name}"
            raise DefiniteError(message, "Run one capture per source: stop this one, or the other.")

    def _new_session(self, deadline: float) -> Session:
        """Connect, and be patient: a broker that comes up says for a while that it is not ready."""
        for attempt in range(1000):
            try:
                session = Session(self._place, self._limit)
                session.begin(_INIT_SECONDS)
                return session
            except KafkaException as error:
                cause = cause_of(error)
                if cause.code() in DEFINITE or time.monotonic() > deadline:
                    raise explained(self._place, "written", cause) from error
                time.sleep(_BACKOFF[min(attempt, len(_BACKOFF) - 1)])
        raise AssertionError
