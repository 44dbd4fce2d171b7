"""The bytes of chunks."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from pathlib import Path

from penstock.changelog.frames import StoredChunk
from penstock.changelog.sqlite.seals import damaged

__all__ = ["load_payloads"]

_LOAD = "SELECT chunk, transactions, images FROM payload WHERE chunk IN (SELECT value FROM json_each(?))"


def load_payloads(db: sqlite3.Connection, path: Path, ids: Sequence[int]) -> dict[int, StoredChunk]:
    """Return those that are there; whoever asks knows their checksums."""
    rows = db.execute(_LOAD, (json.dumps(ids),)).fetchall()
    for id_, transactions, images in rows:
        if type(transactions) is not bytes or type(images) is not bytes:
            raise damaged(path, f"the data of chunk {id_} is something else")
    return {id_: StoredChunk(transactions, images) for id_, transactions, images in rows}
