"""What Debezium calls a transaction, as numbers: which one it is, and a position that rises from one to the next.

======== ========================= ============================== ===========================================
upstream id                        which one                      position
======== ========================= ============================== ===========================================
Postgres ``571:53195832``          the transaction's id           the LSN: of an END, that of the commit
MySQL    ``0e4d…-02010a22a99e:10`` the number of the GTID         the same; comparable on one server only
MySQL    ``file=bin.000003,pos=5`` number of the file, and offset the same
======== ========================= ============================== ===========================================

Other connectors have ids without an order: repeated transactions could not be told from new ones without remembering
all of them. They are refused, as is every id that is not written like one of these.
"""

from __future__ import annotations

import enum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import DefiniteError

__all__ = ["Ids", "Upstream", "read_ids"]

_OFFSET_BITS = 40
"""Of a position in a binlog file; what is left of 63 bits is the file's number."""
_NO_ORDER = (
    "Transactions of Postgres and MySQL have an order, as Debezium 2 and newer write them. "
    "For others leave out TRANSACTION METADATA."
)


class Upstream(enum.StrEnum):
    """How ids are written."""

    POSTGRES = r"^(?P<which>\d{1,18}):(?P<position>\d{1,19})$"
    GTID = r"^(?P<server>[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}):(?P<position>\d{1,18})$"
    BINLOG = r"^file=.*\.(?P<file>\d{1,6}),pos=(?P<position>\d{1,12})$"


class Ids(NamedTuple):
    """Ids as numbers, each of one transaction."""

    upstream: Upstream
    server: str
    """Whose numbers these are, where that is told; else empty."""
    which: npt.NDArray[np.int64]
    position: npt.NDArray[np.int64]


def read_ids(topic: str, ids: pa.StringArray) -> Ids | None:
    """Read ids without nulls; None where there is none."""
    if not len(ids):
        return None
    for upstream in Upstream:
        if pc.match_substring_regex(ids[:1], upstream.value)[0].as_py():
            return _read(topic, upstream, pc.extract_regex(ids, upstream.value))
    raise _unknown(topic)


def _read(topic: str, upstream: Upstream, parts: pa.StructArray) -> Ids:
    if parts.null_count:
        raise _unknown(topic)
    position = _numbers(topic, parts, "position")
    match upstream:
        case Upstream.POSTGRES:
            return Ids(upstream, "", _numbers(topic, parts, "which"), position)
        case Upstream.GTID:
            return Ids(upstream, _one_server(topic, parts), position, position)
    if np.any(position >> _OFFSET_BITS):
        raise _unknown(topic)
    places = _numbers(topic, parts, "file") << _OFFSET_BITS | position
    return Ids(upstream, "", places, places)


def _one_server(topic: str, parts: pa.StructArray) -> str:
    servers = pc.unique(pc.utf8_lower(pc.struct_field(parts, "server"))).to_pylist()
    if len(servers) > 1:
        message = f"transactions of several MySQL servers are in the topic {topic}: their GTIDs have no common order"
        raise DefiniteError(message, "Leave out TRANSACTION METADATA; or let Debezium write topics for each server.")
    return str(servers[0])


def _numbers(topic: str, parts: pa.StructArray, name: str) -> npt.NDArray[np.int64]:
    try:
        numbers: npt.NDArray[np.int64] = pc.struct_field(parts, name).cast(pa.int64()).to_numpy()
    except pa.ArrowInvalid:
        raise _unknown(topic) from None
    return numbers


def _unknown(topic: str) -> DefiniteError:
    return DefiniteError(f"the topic {topic} has ids of transactions that cannot be put in order", _NO_ORDER)
