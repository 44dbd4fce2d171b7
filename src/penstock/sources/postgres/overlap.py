"""What the server sends again, held against what the log has: the proof that its history is that of the log.

::

                 slot's confirmed          last          durable
    server  ──────────┼──────────────────────┼──────────────┼───────────▶  sent
    log     ────────────────────────────────■──────────────┤
                       └─ sent again ───────────────────────┘

System identifier and timeline stay the same when an older data directory is put back in its place (a file-level backup,
a storage snapshot). The server then writes another history over the same LSNs, and dropping what it "sends again" by
its LSN would drop new transactions, while the log keeps some that the server has never had.

The slot is part of that directory. So it is confirmed up to a position which the directory had, and all that differs
lies behind it. Capture asks for everything from there on, and confirms nothing more until it has come to `durable`:

* The last transaction of the log (`Commit`: where it ends, its id, its commit time) has to be sent again, if the slot
  is not confirmed beyond it. The WAL is one chain: who has this commit at this place has the same WAL before it.
* Behind it the log has no change up to `durable`. A transaction in there that changes a captured table is not in the
  log, and cannot be put there any more.

A server that merely forgot how far its slot was (it stores that at checkpoints) sends the same again, and capture goes
on. While capture runs, the slot follows within a second, so mostly there is next to nothing to send again.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from penstock.changelog.interface import Commit
from penstock.errors import DefiniteError
from penstock.positions import Lsn

__all__ = ["Overlap", "restored"]


class Overlap:
    """What lies between a slot's confirmed position and the end of the log, until it was seen."""

    def __init__(self, source: str, confirmed: Lsn, durable: Lsn, last: Commit | None) -> None:
        self._source = source
        self._confirmed = confirmed
        self._durable = durable
        self._last = last
        self._behind = last.lsn if last is not None else Lsn.ZERO
        self._awaited = last is not None and last.lsn > confirmed
        self._passed = confirmed >= durable

    def confirmable(self, durable: Lsn) -> Lsn:
        """Return up to where the slot may be confirmed, when the log has `durable`."""
        return durable if self._passed else self._confirmed

    def see(
        self,
        lsns: npt.NDArray[np.int64],
        xids: npt.NDArray[np.int64],
        times: npt.NDArray[np.int64],
        changing: npt.NDArray[np.bool_],
    ) -> None:
        """Look at transactions that were sent, in commit order; `changing` are those that change captured tables.

        Raises a `DefiniteError` where they are not those of the log.
        """
        if self._passed:
            return
        at = int(np.searchsorted(lsns, self._behind))
        if self._last is not None and self._awaited and at < len(lsns):
            if Commit(Lsn(int(lsns[at])), int(xids[at]), int(times[at])) != self._last:
                how = f"its commit at {Lsn(int(lsns[at]))} is not the last one of the log, at {self._behind}"
                raise restored(self._source, how)
            self._awaited = False
        strange = changing & (lsns > self._behind) & (lsns <= self._durable)
        if strange.any():
            lsn = Lsn(int(lsns[np.flatnonzero(strange)[0]]))
            how = f"it has a transaction at {lsn} that the log, which reaches further, does not have"
            raise restored(self._source, how)
        self.reach(Lsn(int(lsns[-1])) if len(lsns) else Lsn.ZERO)

    def reach(self, lsn: Lsn) -> None:
        """Take note that everything up to a position was sent."""
        if self._passed or lsn < self._durable:
            return
        if self._awaited:
            how = f"it does not send the last transaction of the log, at {self._behind}, again"
            raise restored(self._source, how)
        self._passed = True


def restored(source: str, how: str) -> DefiniteError:
    """Return the error of a source whose server has another history than its log, at the same positions."""
    message = (
        f"the server behind source {source} has another history than the log, under the same system identifier and"
        f" timeline: {how}. An older data directory or storage snapshot was put back there"
    )
    hint = (
        "If the other server comes back, start again. Otherwise drop the source with"
        f" `penstock drop {source}` and capture it again: its tables are then copied afresh."
    )
    return DefiniteError(message, hint)
