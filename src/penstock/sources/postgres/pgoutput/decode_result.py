"""The result of decoding: what to discard, stage and publish."""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.changelog.interface import Chunk, Commit, StagedCommit
from penstock.errors import DefiniteError, TableError
from penstock.positions import Lsn

__all__ = ["DecodeResult"]


@dataclass
class DecodeResult:
    """The result of one call of `Decoder.decode`."""

    consumed: int = 0
    """Number of consumed bytes of the buffer."""
    durable: Lsn | None = None
    """Every transaction up to this position is in `chunks` or was staged before."""
    committed_at: int | None = None
    chunks: list[Chunk] = field(default_factory=list)
    open_chunks: list[Chunk] = field(default_factory=list)
    """Parts of the transaction `open_xid`, which is still in progress."""
    open_xid: int = 0
    staged: dict[int, StagedCommit] = field(default_factory=dict)
    """Committed transactions whose parts were staged."""
    discarded: list[int] = field(default_factory=list)
    """Transactions whose staged parts are void. Apply before `open_chunks`: a prepared transaction may be resent."""
    prepared: dict[int, frozenset[int]] = field(default_factory=dict)
    """Prepared transactions and their rolled-back subtransactions. Apply after `open_chunks`."""
    last: Commit | None = None
    """The last of the transactions that changed a captured table, if any."""
    errors: list[TableError] = field(default_factory=list)
    interference: DefiniteError | None = None
    """Why capture must stop at the transaction after `durable`, which is not part of this result."""
    uncertain: bool = False
    """Whether the interference may have been rolled back: a message in a block lacks its subtransaction's xid."""
    changes: int = 0
    more: bool = False
    """Whether the buffer holds more that can be decoded at once."""
