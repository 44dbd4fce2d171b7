"""The lookup from a time to a position, and back.

Commit times are not always ordered like positions: Postgres takes the commit time before it reserves the position in
the WAL. The lookup finds the longest prefix of history that contains no transaction later than the given time. Each
publication records the newest commit time or clock reading up to it, its peak, which never decreases. The first
publication whose peak is too late contains the first transaction that is too late, which its chunks identify; or it
only reports a clock reading.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.changelog.interface import transaction_schema
from penstock.changelog.kafka.index import Index
from penstock.changelog.kafka.records import Payloads
from penstock.positions import Lsn

__all__ = ["peak_at", "position_at"]

_Numbers = npt.NDArray[np.int64]


def position_at(index: Index, payloads: Payloads, moment: int) -> Lsn | None:
    """Return the last position up to which no transaction is later than `moment`; None if that history was removed."""
    if moment < index.valid_at:
        return None
    late = bisect_right(index.publications.peak, moment)
    if late == len(index.publications.peak):
        return Lsn(index.durable)
    before, upto = _bounds(index, late)
    lsns, times = _transactions(index, payloads, before, upto)
    first_late = lsns[times > moment].min(initial=upto)
    return Lsn(int(lsns[lsns < first_late].max(initial=before)))


def peak_at(index: Index, payloads: Payloads, position: int) -> int:
    """Return the newest time up to a position."""
    if position <= index.valid:
        return index.valid_at
    cut = bisect_left(index.publications.durable, position)
    peak = index.publications.peak[cut - 1] if cut else index.valid_at
    if cut == len(index.publications.durable):
        return peak
    before, upto = _bounds(index, cut)
    if upto == position:
        return index.publications.peak[cut]
    lsns, times = _transactions(index, payloads, before, upto)
    return int(times[lsns <= position].max(initial=peak))


def _bounds(index: Index, publication: int) -> tuple[int, int]:
    """Return the positions between which a publication lies, as far as it is retained."""
    durable = index.publications.durable
    return max(index.valid, durable[publication - 1] if publication else 0), durable[publication]


def _transactions(index: Index, payloads: Payloads, before: int, upto: int) -> tuple[_Numbers, _Numbers]:
    """Read positions and commit times of all transactions in (before, upto]."""
    lsns, times = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for ref in index.all_chunks(before, upto):
        if ref.staged is not None:
            lsns.append(np.array([ref.last]))
            times.append(np.array([ref.staged[1]]))
            continue
        stored = payloads.chunk(ref.location)
        stored.verify(ref.checksum, f"the chunk at offset {ref.location[0]}")
        batch = pa.ipc.read_record_batch(pa.py_buffer(stored.transactions), transaction_schema())
        lsns.append(batch.column(0).to_numpy())
        times.append(batch.column(2).cast(pa.int64()).to_numpy())
    payloads.pause()
    positions, timestamps = np.concatenate(lsns), np.concatenate(times)
    return positions[positions > before], timestamps[positions > before]
