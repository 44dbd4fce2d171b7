"""From a time to a position.

Commit times do not always rise with positions: Postgres takes the time before it takes the place in the WAL. What is
looked for is the longest beginning of history in which nothing is later than the time asked for. ``moment`` holds, for
each publication, the newest commit time up to there, which does rise. The first publication that is too new holds the
transaction that is, and its chunks tell which.
"""

from __future__ import annotations

import sqlite3

import numpy as np
import pyarrow as pa

from penstock.changelog.interface import transaction_schema
from penstock.positions import Lsn

__all__ = ["position_at"]

_TRANSACTIONS = """
SELECT c.last_lsn, c.xid, c.committed_at, p.transactions FROM chunk c JOIN payload p ON p.chunk = c.id
WHERE c.last_lsn > ?1 AND c.first_lsn <= ?2 AND c.last_lsn <= ?2
"""


def position_at(db: sqlite3.Connection, moment: int) -> Lsn | None:
    """Return the last position before which nothing is later than `moment`; None where the log no longer knows."""
    valid, valid_at, durable = db.execute("SELECT valid, valid_at, durable FROM frontier").fetchone()
    if moment < valid_at:
        return None
    late = db.execute("SELECT min(lsn) FROM moment WHERE newest_at > ?", (moment,)).fetchone()[0]
    if late is None:
        return Lsn(durable)
    before = db.execute("SELECT coalesce(max(lsn), ?) FROM moment WHERE lsn < ?", (valid, late)).fetchone()[0]
    return Lsn(_within(db, before, late, moment))


def _within(db: sqlite3.Connection, before: int, late: int, moment: int) -> int:
    """Look at the transactions of one publication: the last one before the first that is too late."""
    lsns, times = [before], [moment]
    for lsn, xid, committed_at, transactions in db.execute(_TRANSACTIONS, (before, late)):
        if xid is not None:
            lsns.append(lsn)
            times.append(committed_at)
            continue
        batch = pa.ipc.read_record_batch(pa.py_buffer(transactions), transaction_schema())
        lsns.extend(batch.column(0).to_numpy())
        times.extend(batch.column(2).cast(pa.int64()).to_numpy())
    places, moments = np.array(lsns), np.array(times)
    first_late = min(places[moments > moment], default=late)
    return int(places[places < first_late].max())
