"""Following the index topic: it is read from its beginning, then as it grows, into an `Index` in memory.

A look (`refresh`) asks the broker where the stable end is, through a connection of its own: a broker answers one
request of a connection after the other, and the fetch that waits for news would hold the question up.

The end lies behind the marker of the last Kafka transaction, and a client never shows markers. So everything is read
when all but the last offset is: that one is a marker, or else a pin. Who asks for pins waits until the client says that
it has seen the end (`strict`).

Where `retain` has cut the index beyond this reader, it begins again at the cut.
"""

from __future__ import annotations

import time

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from penstock.changelog.kafka.clients import DEFINITE, MISSING, Place, cause_of, consumer, explained, missing
from penstock.changelog.kafka.index import Index
from penstock.changelog.kafka.records import Assembler, Pinned
from penstock.changelog.kafka.topics import topics_exist
from penstock.errors import DefiniteError, PenstockError, TransientError
from penstock.kafka_offsets import told_watermarks
from penstock.positions import Lsn

__all__ = ["Tail"]

_PATIENCE = 60.0
_IDLE_MS = 250
_SLICE = 0.2
_ASKING = 3.0
_AT_ONCE = 1000
_CUT = {KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE}


class Tail:
    """The index of a log and the clients that keep it up to date; they are made when it is first asked for."""

    def __init__(self, place: Place) -> None:
        self.index = Index()
        self._place = place
        self._follower: Consumer | None = None
        self._asker: Consumer | None = None
        self._assembler = Assembler()
        self.next = 0
        """Everything before this offset was read."""

    def refresh(self, *, strict: bool = False, patience: float | None = None) -> Index:
        """Read everything that is committed now."""
        deadline = time.monotonic() + (_PATIENCE if patience is None else patience)
        _, end = self._ends(deadline)
        while self.next < end and (not self.index.whole or strict or self.next < end - 1):
            self._pump(_SLICE)
            if time.monotonic() > deadline:
                raise self._late()
        if not self.index.whole:
            message = f"{self._place.index} at {self._place.brokers} is not the index of a change log: it is empty"
            raise DefiniteError(message, "Drop the source and add it afresh.")
        return self.index

    def until(self, serial: int, deadline: float) -> None:
        """Read until a record is there."""
        while self.index.serial is None or self.index.serial < serial:
            self._pump(_SLICE)
            if time.monotonic() > deadline:
                raise self._late()

    def wait(self, beyond: Lsn, timeout: float) -> Index:
        """Read until `durable` lies beyond a position, or for so many seconds."""
        deadline = time.monotonic() + timeout
        if self._follower is None or timeout <= 0:
            self.refresh()
        while self.index.durable <= beyond and (left := deadline - time.monotonic()) > 0:
            self._pump(min(left, _SLICE))
        return self.index if self.index.whole else self.refresh()

    def close(self) -> None:
        """Let go of the clients."""
        for client in (self._follower, self._asker):
            if client is not None:
                client.close()
        self._follower = self._asker = None

    def _ends(self, deadline: float) -> tuple[int, int]:
        """Ask the broker where the index begins, and how far it can be read."""
        while True:
            try:
                return self._asked()
            except KafkaException as error:
                cause = cause_of(error)
                self._check(cause)
                if time.monotonic() > deadline:
                    raise explained(self._place, "read", cause) from error
                time.sleep(0.05)

    def _asked(self) -> tuple[int, int]:
        if self._asker is None:
            self._asker = consumer(self._place, **{"isolation.level": "read_committed"})
        try:
            place = TopicPartition(self._place.index, 0)
            first, end = told_watermarks(self._asker.get_watermark_offsets(place, timeout=_ASKING))
        except KafkaException:
            # One that saw a broker come up may go on saying that it does not know the topic: take another.
            self._asker.poll(0)  # what it has to say of its connections
            self._asker.close()
            self._asker = None
            raise
        self._place.trouble = None
        return first, end

    def _check(self, cause: KafkaError) -> None:
        """Raise what will not pass. A broker that stops may look like one that refuses us, once it had let us in."""
        if cause.code() in MISSING and self._is_missing():
            raise missing(self._place)
        refused = self._place.trouble if self._follower is None else None
        if cause.code() in DEFINITE or (refused is not None and refused.code() in DEFINITE):
            raise explained(self._place, "read", cause)

    def _is_missing(self) -> bool:
        """Ask the brokers: a client says of a topic that it is not there also when nobody answers it."""
        try:
            return not topics_exist(self._place, _ASKING)
        except TransientError:
            return False

    def _following(self) -> Consumer:
        if self._follower is None:
            self._follower = consumer(
                self._place,
                **{"isolation.level": "read_committed", "enable.partition.eof": True, "fetch.wait.max.ms": _IDLE_MS},
            )
            self._begin(self._follower)
        return self._follower

    def _begin(self, follower: Consumer) -> None:
        """Begin at the first record that is there: a client that is given a number need not ask, and starts faster."""
        first, _ = self._ends(time.monotonic() + _PATIENCE)
        self.index, self._assembler, self.next = Index(), Assembler(), first
        follower.assign([TopicPartition(self._place.index, 0, first)])

    def _pump(self, timeout: float) -> None:
        """Take in what has come, after waiting for the first of it."""
        follower = self._following()
        first = follower.poll(timeout)
        if first is None:
            return
        for message in (first, *follower.consume(_AT_ONCE, 0)):
            if not self._take(message):
                return self._begin(follower)
        return None

    def _take(self, message: Message) -> bool:
        """Take in a message; say whether it is one that follows those before."""
        error, offset = message.error(), message.offset() or 0
        if error is None:
            self._apply(message.value() or b"", offset)
            self.next = offset + 1
        elif error.code() == KafkaError._PARTITION_EOF:
            self.next = max(self.next, offset)
        elif error.code() in _CUT:
            return False
        else:
            self._check(error)
        return True

    def _apply(self, value: bytes, offset: int) -> None:
        found = self._assembler.feed(value, offset)
        if found is None:
            return
        record, began = found
        if isinstance(record, Pinned):
            self.index.apply_pin(record, began)
        else:
            self.index.apply(record, began)

    def _late(self) -> PenstockError:
        message = f"the index of the change log {self._place.name} could not be read to its end in time"
        return TransientError(message, f"Check that the brokers at {self._place.brokers} are up and reached from here.")
