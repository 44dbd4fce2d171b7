"""What the commits of a base table say of themselves, as ``userMetadata``: the position, or the chunk of a copy."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from penstock.positions import Lsn

__all__ = ["Copied", "chunk_in", "memory_in", "of_chunk", "of_position", "position_in"]


class Copied(NamedTuple):
    """How far the copy of a table in chunks is, by its last chunk."""

    number: int
    rows: int
    size: int
    """In bytes; both of all chunks so far."""
    upto: tuple[str, ...] | None
    """The last key; None: there is none behind it, the copy is whole."""
    high: Lsn


def of_position(incarnation: str, position: Lsn, memory: str | None = None) -> str:
    """Say that the table stands at a position with this commit, and what is to be known to go on from there."""
    told = {"incarnation": incarnation, "position": str(position)}
    return json.dumps({"penstock": told if memory is None else {**told, "memory": memory}})


def memory_in(text: str | None, incarnation: str) -> str | None:
    """Read what is to be known to go on; None for commits that say nothing of it."""
    memory = _mine(text, incarnation).get("memory")
    return None if memory is None else str(memory)


def position_in(text: str | None, incarnation: str) -> Lsn | None:
    """Read the position; None for the commits of others and of earlier incarnations."""
    position = _mine(text, incarnation).get("position")
    return None if position is None else Lsn.parse(position)


def of_chunk(incarnation: str, chunk: Copied) -> str:
    """Say how far a copy is with this commit."""
    told = {"incarnation": incarnation, "chunk": {**chunk._asdict(), "high": str(chunk.high)}}
    return json.dumps({"penstock": told})


def chunk_in(text: str | None, incarnation: str) -> Copied | None:
    """Read the chunk; None for other commits."""
    chunk = _mine(text, incarnation).get("chunk")
    if chunk is None:
        return None
    upto = None if chunk["upto"] is None else tuple(chunk["upto"])
    return Copied(chunk["number"], chunk["rows"], chunk["size"], upto, Lsn.parse(chunk["high"]))


def _mine(text: str | None, incarnation: str) -> dict[str, Any]:
    """Return what we wrote; nothing for what others did, and for other incarnations."""
    try:
        mine = json.loads(text or "")["penstock"]
        return dict(mine) if mine["incarnation"] == incarnation else {}
    except (ValueError, KeyError, TypeError):
        return {}
