"""What a decoder gives out: what is to be published, staged and discarded, in that order of time."""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.changelog.interface import Chunk, Commit, StagedCommit
from penstock.errors import DefiniteError, TableError
from penstock.positions import Lsn

__all__ = ["Decoded"]


@dataclass
class Decoded:
    """What one call of `Decoder.decode` found."""

    consumed: int = 0
    """Bytes of the buffer that are done with."""
    durable: Lsn | None = None
    """Every transaction up to here is in `chunks` or was staged before."""
    committed_at: int | None = None
    chunks: list[Chunk] = field(default_factory=list)
    open_chunks: list[Chunk] = field(default_factory=list)
    """Parts of the transaction `open_xid`, which is still in progress."""
    open_xid: int = 0
    staged: dict[int, StagedCommit] = field(default_factory=dict)
    """Transactions whose parts were staged, and that have committed."""
    discarded: list[int] = field(default_factory=list)
    """Transactions whose staged parts are void. Before `open_chunks`: one that was prepared may be sent again."""
    prepared: dict[int, frozenset[int]] = field(default_factory=dict)
    """Transactions that are prepared, after `open_chunks`, and their subtransactions that were rolled back."""
    last: Commit | None = None
    """The last of them that changed a captured table, if one did."""
    errors: list[TableError] = field(default_factory=list)
    interference: DefiniteError | None = None
    """Why capture must not go on: with the transaction after `durable`, nothing of which is in here."""
    uncertain: bool = False
    """Whether that may have been rolled back: of a message in a block, Postgres does not tell the subtransaction."""
    changes: int = 0
    more: bool = False
    """Whether the buffer holds more that could be decoded at once."""
