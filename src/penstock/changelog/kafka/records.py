"""The records of a log in Kafka: their encoding in the index topic, and the chunks in the data topic.

A record of the index is a tuple of plain values, encoded as one JSON array: the kind, then its fields in order. A
message of the index topic consists of a header of two bytes and (part of) such an array::

    format (1) │ "." whole, or the last part; "+" more parts follow; "p" a lease, always whole │ JSON

Readers write leases, which may occur between the parts of another record; the header distinguishes them.

Chunks are read from the data topic by offset, without any other part of the log. The chunks of an extent are usually in
offset order, with chunks of other tables in between. The consumer reads through a short gap and seeks over a long one.
Between extents no partition is assigned, so that nothing is fetched needlessly.
"""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from penstock.changelog.chunk_codec import StoredChunk
from penstock.changelog.kafka.clients import DEFINITE, LogLocation, consumer, translated_error
from penstock.errors import DefiniteError, LogCorruptError, TableError, TransientError

__all__ = [
    "Assembler",
    "Created",
    "DataExpiredError",
    "Defined",
    "IndexedChunk",
    "Leased",
    "Opened",
    "Payloads",
    "Published",
    "Record",
    "Settled",
    "Staged",
    "StagedPart",
    "State",
    "TableFailure",
    "TableState",
    "data_lost",
    "from_text",
    "messages",
    "to_text",
]


class IndexedChunk(NamedTuple):
    """The description of a chunk in the index."""

    table: int
    version: int
    first: int
    last: int
    rows: int
    size: int
    flags: int
    """Its kinds of images, shifted left by one; the lowest bit is set if it omits unchanged TOAST values."""
    checksum: int
    offset: int
    """Of its first part in the data topic."""
    parts: int
    head: int
    """The number of bytes of its transactions; the remaining bytes are images."""
    staged: tuple[int, int, str | None] | None = None
    """For a chunk that was staged: xid, commit time, and the rows of its transactions that were rolled back."""
    changes: int = 0


class StagedPart(NamedTuple):
    """A chunk of a transaction in progress."""

    chunk: IndexedChunk
    live: tuple[tuple[int, int, int, int], ...]
    """Subtransactions that were not rolled back: row among its transactions, xid, number of images and of changes."""
    lost: tuple[int, ...] = ()
    """Rows of the subtransactions that were rolled back."""


class TableFailure(NamedTuple):
    """The error of a table."""

    table: str
    lsn: int
    message: str
    hint: str
    code: str = ""
    """The code of its class."""

    @classmethod
    def of(cls, error: TableError) -> TableFailure:
        """Return the record of an error."""
        return cls(error.table, error.lsn, error.message, error.hint, error.code)


class TableState(NamedTuple):
    """The metadata of a table, without its chunks."""

    table: int
    versions: tuple[tuple[str, int | None], ...]
    """Schema and first position of each version, from version 1 on."""
    valid: int
    generation: int
    changes: int = 0
    """The number of changes that were ever published."""


class Leased(NamedTuple):
    """The lease of a reader; without a position, the lease was removed."""

    reader: str
    at: int | None
    expires: int | None


class Created(NamedTuple):
    """The first record of a log."""

    serial: int
    start: int
    at: int


class Opened(NamedTuple):
    """A new writer."""

    serial: int
    owner: str


class Defined(NamedTuple):
    """A version of a table's schema, the first one of a generation that begins at `valid`, or both."""

    serial: int
    table: int
    version: int
    schema: str
    since: int | None
    generation: int
    valid: int


class Staged(NamedTuple):
    """Parts of a transaction in progress."""

    serial: int
    xid: int
    parts: tuple[StagedPart, ...]


class Settled(NamedTuple):
    """A staged transaction was prepared or rolled back."""

    serial: int
    xid: int
    prepared: bool
    aborted: tuple[int, ...]


class Published(NamedTuple):
    """One atomic step of all tables."""

    serial: int
    durable: int
    committed_at: int | None
    published_at: int
    peak: int
    """The newest commit time up to this publication."""
    chunks: tuple[IndexedChunk, ...]
    """Chunks that were staged come first."""
    ended: tuple[int, ...]
    """Staged transactions that this record publishes."""
    errors: tuple[TableFailure, ...]
    last: tuple[int, int, int] | None = None
    """The last transaction in it that changed a row: position, xid, commit time."""


class State(NamedTuple):
    """The new start of history and all small data, so that earlier records are not needed for it."""

    serial: int
    owner: str
    valid: int
    valid_at: int
    """The newest commit time up to `valid`."""
    durable: int
    peak: int
    committed_at: int | None
    published_at: int | None
    tables: tuple[TableState, ...]
    errors: tuple[TableFailure, ...]
    staged: tuple[tuple[int, bool, tuple[StagedPart, ...]], ...]
    leases: tuple[Leased, ...]
    covered: int
    """Leases at this offset of the index or later are not included."""
    data_end: int
    """The offset after the last published one in the data topic."""
    last: tuple[int, int, int] | None = None
    """The last transaction that changed a row."""


Record = Created | Opened | Defined | Staged | Settled | Published | State


# -- encoding ----------------------------------------------------------------------------------------------------------

_FORMAT = 1
_LAST, _MORE, _LEASE = b"."[0], b"+"[0], b"p"[0]
_KINDS: dict[str, type[Record] | type[Leased]] = {
    "create": Created,
    "open": Opened,
    "define": Defined,
    "stage": Staged,
    "settle": Settled,
    "publish": Published,
    "state": State,
    "pin": Leased,
}
_NAMES = {kind: name for name, kind in _KINDS.items()}


def messages(record: Record | Leased, limit: int) -> list[bytes]:
    """Return the messages of a record, each of at most `limit` bytes."""
    text = json.dumps([_NAMES[type(record)], *record], separators=(",", ":")).encode()
    if isinstance(record, Leased):
        return [bytes((_FORMAT, _LEASE)) + text]
    step = limit - 2
    parts = [text[at : at + step] for at in range(0, len(text), step)]
    heads = [bytes((_FORMAT, _MORE))] * (len(parts) - 1) + [bytes((_FORMAT, _LAST))]
    return [head + part for head, part in zip(heads, parts, strict=True)]


class Assembler:
    """Assembles records from the messages of an index, in order."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._began = 0

    def feed(self, message: bytes, offset: int) -> tuple[Record | Leased, int] | None:
        """Return the record that this message completes, if any, and the offset of its first message."""
        if len(message) < 2 or message[0] != _FORMAT:
            raise _foreign(message)
        if message[1] == _LEASE:
            return _decode(message[2:]), offset
        if not self._parts:
            self._began = offset
        self._parts.append(message[2:])
        if message[1] == _MORE:
            return None
        text, self._parts = b"".join(self._parts), []
        return _decode(text), self._began


def to_text(data: bytes) -> str:
    """Encode bytes as text for JSON."""
    return base64.b64encode(data).decode()


def from_text(text: str) -> bytes:
    """Decode the text that `to_text` returned."""
    return base64.b64decode(text)


def _decode(text: bytes) -> Record | Leased:
    try:
        name, *fields = json.loads(text.decode())
        return _typed(_KINDS[name](*fields))
    except (ValueError, TypeError, KeyError) as error:
        message = "the index of the change log is damaged: it contains a record that cannot be read"
        raise LogCorruptError(message, "Drop the source and create it again.") from error


def _typed(record: Record | Leased) -> Record | Leased:
    """Convert the JSON arrays of a record to their types."""
    if isinstance(record, Published):
        errors = tuple(TableFailure(*error) for error in record.errors)
        return record._replace(chunks=tuple(IndexedChunk(*chunk) for chunk in record.chunks), errors=errors)
    if isinstance(record, Staged):
        return record._replace(parts=_staged_parts(record.parts))
    if isinstance(record, State):
        return record._replace(
            tables=tuple(TableState(*table) for table in record.tables),
            errors=tuple(TableFailure(*error) for error in record.errors),
            staged=tuple((xid, prepared, _staged_parts(parts)) for xid, prepared, parts in record.staged),
            leases=tuple(Leased(*lease) for lease in record.leases),
        )
    return record


def _staged_parts(parts: Sequence[Any]) -> tuple[StagedPart, ...]:
    return tuple(StagedPart(IndexedChunk(*chunk), live, lost) for chunk, live, lost in parts)


def _foreign(message: bytes) -> DefiniteError:
    if message and message[0] > _FORMAT:
        text = f"the change log has format {message[0]}, but this version of Penstock supports formats up to {_FORMAT}"
        return DefiniteError(text, "Use the version of Penstock that wrote it, or a newer one.")
    text = "the index of the change log is damaged: it contains a message that Penstock did not write"
    return LogCorruptError(
        text, "Deny other programs write access to its topics, then drop the source and create it again."
    )


# -- data topic --------------------------------------------------------------------------------------------------------

_TIMEOUT = 60.0
_READ_THROUGH = 8
_EXPIRED = {KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE}
_FETCHING = {
    "isolation.level": "read_uncommitted",
    # A fetch at the end of the topic waits for new data, and a seek waits for that fetch.
    "fetch.wait.max.ms": 2,
    "fetch.queue.backoff.ms": 2,
    "fetch.message.max.bytes": 4 << 20,
    "queued.max.messages.kbytes": 16 << 10,
}


class DataExpiredError(Exception):
    """The data topic has no message at an offset: it was removed, or it never existed."""


def data_lost(location: LogLocation, what: str) -> LogCorruptError:
    """Return the error for data that should exist but does not."""
    message = f"the change log {location.name} is damaged: the data of {what} is missing"
    return LogCorruptError(message, "Drop the source and create it again.")


class Payloads:
    """A reader of the data topic; its client is created when first needed."""

    def __init__(self, location: LogLocation) -> None:
        self._location = location
        self._client: Consumer | None = None
        self._at: int | None = None
        """The next offset that the client returns; None if no partition is assigned."""

    def chunk(self, location: tuple[int, ...]) -> StoredChunk:
        """Read a chunk."""
        offset, parts, head = location
        messages = list(self._messages(offset, parts))
        whole = memoryview(messages[0] if parts == 1 else b"".join(messages))
        return StoredChunk(whole[:head], whole[head:])

    def pause(self) -> None:
        """Stop fetching."""
        if self._client is not None and self._at is not None:
            self._client.unassign()
        self._at = None

    def close(self) -> None:
        """Close the client."""
        if self._client is not None:
            self._client.close()
        self._client = self._at = None

    def _messages(self, offset: int, count: int) -> Iterator[bytes]:
        client = self._seek(offset)
        for wanted in range(offset, offset + count):
            message = self._message(client, wanted)
            self._at = wanted + 1
            yield message.value() or b""

    def _seek(self, offset: int) -> Consumer:
        if self._client is None:
            self._client = consumer(self._location, **_FETCHING)
        if self._at is None or not self._at <= offset <= self._at + _READ_THROUGH:
            self._client.assign([TopicPartition(self._location.data, 0, offset)])
            self._at = offset
        return self._client

    def _message(self, client: Consumer, wanted: int) -> Message:
        """Wait for the message at an offset, skipping those of other chunks."""
        deadline = time.monotonic() + _TIMEOUT
        while time.monotonic() < deadline:
            message = client.poll(0.2)
            if message is None:
                continue
            if (error := message.error()) is not None:
                self._check(error)
            elif (found := message.offset() or 0) == wanted:
                return message
            elif found > wanted:
                self._at = None
                raise DataExpiredError
        self._at = None
        message_ = f"timeout while reading the data of the change log {self._location.name}"
        raise TransientError(message_, f"Check that the brokers at {self._location.brokers} are running and reachable.")

    def _check(self, error: KafkaError) -> None:
        if error.code() in _EXPIRED:
            self._at = None
            raise DataExpiredError
        if error.code() in DEFINITE or error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
            self._at = None
            raise translated_error(self._location, "read", error)
