"""The records of the index, and their bytes.

A record is a tuple of plain values. Its bytes are JSON, as one array: the kind, then its fields in order. A message of
the index topic is a head of two bytes and (part of) such an array::

    format (1) │ "." whole, or the last part; "+" more follow; "p" a pin, always whole │ JSON

Pins are written by readers and may stand between the parts of another record; so they are told apart by the head.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from penstock.errors import DefiniteError, LogCorruptError

__all__ = [
    "Assembler",
    "Created",
    "Defined",
    "Described",
    "Failed",
    "Opened",
    "Pinned",
    "Published",
    "Record",
    "Settled",
    "Staged",
    "StagedPart",
    "State",
    "TableState",
    "from_text",
    "messages",
    "to_text",
]

_FORMAT = 1
_LAST, _MORE, _PIN = b"."[0], b"+"[0], b"p"[0]


class Described(NamedTuple):
    """A chunk, as the index describes it."""

    table: int
    version: int
    first: int
    last: int
    rows: int
    size: int
    flags: int
    """Its kinds of images, shifted left by one; the lowest bit: it leaves out unchanged TOAST values."""
    checksum: int
    offset: int
    """Of its first part in the data topic."""
    parts: int
    head: int
    """How many of its bytes are its transactions; the rest are images."""
    staged: tuple[int, int, str | None] | None = None
    """Of one that was staged: xid, commit time, and rows of its transactions that were rolled back."""


class StagedPart(NamedTuple):
    """A chunk of a transaction in progress."""

    chunk: Described
    live: tuple[tuple[int, int, int], ...]
    """Subtransactions that were not rolled back: row among its transactions, xid, images."""
    lost: tuple[int, ...] = ()
    """Rows of those that were."""


class Failed(NamedTuple):
    """A table's error."""

    table: str
    lsn: int
    message: str
    hint: str


class TableState(NamedTuple):
    """All about a table but its chunks."""

    table: int
    versions: tuple[tuple[str, int | None], ...]
    """Schema and since when it holds, from version 1 on."""
    valid: int
    generation: int


class Pinned(NamedTuple):
    """A reader's pin; without a position, it was taken away."""

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
    """A version of a table's schema, the first of a generation that begins at `valid`, or both."""

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
    """A staged transaction was prepared, or rolled back."""

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
    """The newest commit time up to here."""
    chunks: tuple[Described, ...]
    """Those that were staged come first."""
    ended: tuple[int, ...]
    """Staged transactions that this published."""
    errors: tuple[Failed, ...]
    last: tuple[int, int, int] | None = None
    """The last transaction in it that changed something: position, xid, commit time."""


class State(NamedTuple):
    """Where history begins from now on, and all that is small, so that earlier records need not be kept for it."""

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
    errors: tuple[Failed, ...]
    staged: tuple[tuple[int, bool, tuple[StagedPart, ...]], ...]
    pins: tuple[Pinned, ...]
    covered: int
    """Pins from this offset of the index on are not among these."""
    data_end: int
    """Behind the last offset of the data topic that had been published."""
    last: tuple[int, int, int] | None = None
    """The last transaction that changed something."""


Record = Created | Opened | Defined | Staged | Settled | Published | State
_KINDS: dict[str, type[Record] | type[Pinned]] = {
    "create": Created,
    "open": Opened,
    "define": Defined,
    "stage": Staged,
    "settle": Settled,
    "publish": Published,
    "state": State,
    "pin": Pinned,
}
_NAMES = {kind: name for name, kind in _KINDS.items()}


def messages(record: Record | Pinned, limit: int) -> list[bytes]:
    """Return the messages of a record, each of `limit` bytes at most."""
    text = json.dumps([_NAMES[type(record)], *record], separators=(",", ":")).encode()
    if isinstance(record, Pinned):
        return [bytes((_FORMAT, _PIN)) + text]
    step = limit - 2
    parts = [text[at : at + step] for at in range(0, len(text), step)]
    heads = [bytes((_FORMAT, _MORE))] * (len(parts) - 1) + [bytes((_FORMAT, _LAST))]
    return [head + part for head, part in zip(heads, parts, strict=True)]


class Assembler:
    """Makes records of the messages of an index, in their order."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._began = 0

    def feed(self, message: bytes, offset: int) -> tuple[Record | Pinned, int] | None:
        """Return the record that ends with this message, if one does, and the offset of its first message."""
        if len(message) < 2 or message[0] != _FORMAT:
            raise _foreign(message)
        if message[1] == _PIN:
            return _decode(message[2:]), offset
        if not self._parts:
            self._began = offset
        self._parts.append(message[2:])
        if message[1] == _MORE:
            return None
        text, self._parts = b"".join(self._parts), []
        return _decode(text), self._began


def to_text(data: bytes) -> str:
    """Return bytes as JSON can hold them."""
    return base64.b64encode(data).decode()


def from_text(text: str) -> bytes:
    """Read what `to_text` wrote."""
    return base64.b64decode(text)


def _decode(text: bytes) -> Record | Pinned:
    try:
        name, *fields = json.loads(text.decode())
        return _typed(_KINDS[name](*fields))
    except (ValueError, TypeError, KeyError) as error:
        message = "the index of the change log is damaged: it holds a record that cannot be read"
        raise LogCorruptError(message, "Drop the source and capture it afresh.") from error


def _typed(record: Record | Pinned) -> Record | Pinned:
    """Give what JSON holds as arrays its types again."""
    if isinstance(record, Published):
        errors = tuple(Failed(*error) for error in record.errors)
        return record._replace(chunks=tuple(Described(*chunk) for chunk in record.chunks), errors=errors)
    if isinstance(record, Staged):
        return record._replace(parts=_staged_parts(record.parts))
    if isinstance(record, State):
        return record._replace(
            tables=tuple(TableState(*table) for table in record.tables),
            errors=tuple(Failed(*error) for error in record.errors),
            staged=tuple((xid, prepared, _staged_parts(parts)) for xid, prepared, parts in record.staged),
            pins=tuple(Pinned(*pin) for pin in record.pins),
        )
    return record


def _staged_parts(parts: Sequence[Any]) -> tuple[StagedPart, ...]:
    return tuple(StagedPart(Described(*chunk), live, lost) for chunk, live, lost in parts)


def _foreign(message: bytes) -> DefiniteError:
    if message and message[0] > _FORMAT:
        said = f"the change log has format {message[0]}; this Penstock knows formats up to {_FORMAT}"
        return DefiniteError(said, "Use the version of Penstock that wrote it, or a newer one.")
    said = "the index of the change log is damaged: it holds a message that is none of Penstock's"
    return LogCorruptError(said, "Let nobody else write to its topics; drop the source and capture it afresh.")
