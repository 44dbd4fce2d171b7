"""Verify that transactions which the server resends are those of the log, so that both have the same history.

::

                 slot's confirmed          last          durable
    server  ──────────┼──────────────────────┼──────────────┼───────────▶  sent
    log     ────────────────────────────────■──────────────┤
                       └─ sent again ───────────────────────┘

System identifier and timeline stay the same when an older data directory is restored in place (a file-level backup, a
storage snapshot). The server then writes a different history at the same LSNs. Dropping what it "sends again" by LSN
would drop new transactions, while the log keeps some that the server never had.

The slot is part of the data directory. So its confirmed position is one that the directory had reached, and any
difference lies after it. Capture requests everything from there on, and confirms nothing more until it has reached
`durable`:

* The last transaction of the log (`Commit`: end LSN, xid, commit time) must be sent again, unless the slot is confirmed
  beyond it. The WAL is one chain: a server with this commit at this position has the same WAL before it.
* After it, the log has no change up to `durable`. A transaction in that range that changes a captured table is not in
  the log, and can no longer be added to it.

A server that lost the confirmed position of its slot in a crash (it stores it at checkpoints) sends the same
transactions again, and capture resumes. While capture runs, the slot follows within a second, so there is usually next
to nothing to resend.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from penstock.changelog.interface import Commit
from penstock.errors import DefiniteError
from penstock.positions import Lsn

__all__ = ["Overlap", "different_history_error"]


class Overlap:
    """The range between a slot's confirmed position and the end of the log, until it is verified."""

    def __init__(self, source: str, confirmed: Lsn, durable: Lsn, last: Commit | None) -> None:
        self._source = source
        self._confirmed = confirmed
        self._durable = durable
        self._last = last
        self._last_lsn = last.lsn if last is not None else Lsn.ZERO
        self._last_expected = last is not None and last.lsn > confirmed
        self._verified = confirmed >= durable

    def confirmable(self, durable: Lsn) -> Lsn:
        """Return up to where the slot may be confirmed, when the log is durable up to `durable`."""
        return durable if self._verified else self._confirmed

    def check(
        self,
        lsns: npt.NDArray[np.int64],
        xids: npt.NDArray[np.int64],
        times: npt.NDArray[np.int64],
        changing: npt.NDArray[np.bool_],
    ) -> None:
        """Check received transactions, in commit order; `changing` marks those that change captured tables.

        Raises a `DefiniteError` if they differ from those of the log.
        """
        if self._verified:
            return
        at = int(np.searchsorted(lsns, self._last_lsn))
        if self._last is not None and self._last_expected and at < len(lsns):
            if Commit(Lsn(int(lsns[at])), int(xids[at]), int(times[at])) != self._last:
                evidence = (
                    f"its commit at {Lsn(int(lsns[at]))} differs from the last commit of the log, at {self._last_lsn}"
                )
                raise different_history_error(self._source, evidence)
            self._last_expected = False
        foreign = changing & (lsns > self._last_lsn) & (lsns <= self._durable)
        if foreign.any():
            lsn = Lsn(int(lsns[np.flatnonzero(foreign)[0]]))
            evidence = f"it has a transaction at {lsn} that the log, which reaches further, does not have"
            raise different_history_error(self._source, evidence)
        self.advance(Lsn(int(lsns[-1])) if len(lsns) else Lsn.ZERO)

    def advance(self, lsn: Lsn) -> None:
        """Record that everything up to a position was received."""
        if self._verified or lsn < self._durable:
            return
        if self._last_expected:
            evidence = f"it does not resend the last transaction of the log, at {self._last_lsn}"
            raise different_history_error(self._source, evidence)
        self._verified = True


def different_history_error(source: str, evidence: str) -> DefiniteError:
    """Return the error of a source whose server has another history than its log, at the same positions."""
    message = (
        f"the server of source {source} has another history than the log, under the same system identifier and"
        f" timeline: {evidence}; an older data directory or storage snapshot was restored"
    )
    hint = (
        "If the original server returns, restart. Otherwise drop the source with"
        f" `penstock drop {source}` and create it again, which takes new snapshots of its tables."
    )
    return DefiniteError(message, hint)
