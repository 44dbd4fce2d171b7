"""Which position each source is read at, for a view of the past.

::

    asked: a moment ──────────────▶ for each source the last transaction at or before it
           an LSN ────────────────▶ of the one source: all transactions that ended at or before it
           source → LSN or moment ▶ each its own; a source that is not named is read as it is now

A moment is answered only when every source is known to have passed it, so the answer stays. A transaction counts as
committed no later than the moment at which somebody could first see it (see `changelog.interface`): who saw one in the
first source and then wrote into the second is never found there without what was seen.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass
from datetime import datetime, timedelta

from penstock.changelog.interface import ChangeLog, ChangeLogReader, Frontiers
from penstock.errors import HistoryGone, TransientError, UsageError
from penstock.positions import Lsn, parse_as_of

__all__ = ["AsOf", "Chosen", "asked_of", "choose_positions", "seconds"]

AsOf = Lsn | datetime | str | Mapping[str, Lsn | datetime | str]
"""What a user may ask for: a position, a moment, the text of one; or one of these per source."""

_LOOK_SECONDS = 0.1

_Asked = Lsn | datetime | None


def seconds(wait: float | timedelta | None) -> float:
    """Return how long to wait."""
    return wait.total_seconds() if isinstance(wait, timedelta) else wait or 0.0


def asked_of(as_of: AsOf | None, sources: list[str]) -> dict[str, _Asked]:
    """Return what is asked of each source; None: as it is now."""
    if isinstance(as_of, Mapping):
        unknown = sorted(set(as_of) - set(sources))
        if unknown:
            message = f"there is no source {unknown[0]} to be read as of another moment"
            raise UsageError(message, f"Known are: {', '.join(sources) or 'none'}")
        return {source: parse_as_of(as_of[source]) if source in as_of else None for source in sources}
    asked = None if as_of is None else parse_as_of(as_of)
    if isinstance(asked, Lsn) and len(sources) > 1:
        message = f"this home has several sources, and {asked} is a position in one of them"
        remedy = (
            f"Name the source, in Python as_of={{'{sources[0]}': '{asked}'}}, in SQL behind a table; or give a time."
        )
        raise UsageError(message, remedy)
    return dict.fromkeys(sources, asked)


@dataclass(frozen=True)
class Chosen:
    """The position at which a source is read, and how far its log could be read then."""

    position: Lsn
    frontiers: Frontiers


def choose_positions(
    logs: Mapping[str, ChangeLog], asked: Mapping[str, _Asked], wait: float = 0.0
) -> dict[str, Chosen]:
    """Choose a position for each source; wait so many seconds for those that are not that far."""
    with ExitStack() as opened:
        readers = {source: opened.enter_context(closing(logs[source].reader())) for source in asked}
        give_up = time.monotonic() + wait
        while True:
            stands = {source: reader.frontiers() for source, reader in readers.items()}
            behind = [source for source, want in asked.items() if want is not None and not stands[source].reach(want)]
            if not behind:
                return {s: Chosen(_position(s, readers[s], stands[s], want), stands[s]) for s, want in asked.items()}
            if time.monotonic() >= give_up:
                raise _not_yet(behind, stands, asked)
            time.sleep(_LOOK_SECONDS)


def _position(source: str, reader: ChangeLogReader, stands: Frontiers, asked: _Asked) -> Lsn:
    if asked is None:
        return stands.durable
    if isinstance(asked, Lsn) and asked >= stands.valid:
        return asked
    if isinstance(asked, Lsn):
        raise _begins_later(source, asked, stands)
    try:
        return reader.position_at(asked)
    except HistoryGone as gone:
        raise _begins_later(source, asked, reader.frontiers()) from gone


def _begins_later(source: str, asked: Lsn | datetime, frontiers: Frontiers) -> HistoryGone:
    """Say from when on a source can be read."""
    message = (
        f"source {source} cannot be read as of {_told(asked)}: its history begins at {frontiers.valid},"
        f" {_told(frontiers.valid_at)}"
    )
    return HistoryGone(message, "Ask for that or a later one. To keep more from now on, raise its `retain history`.")


def _not_yet(behind: list[str], stands: Mapping[str, Frontiers], asked: Mapping[str, _Asked]) -> TransientError:
    told = [_how_far(source, stands[source], asked[source]) for source in behind]
    message = "that is not known yet: " + "; ".join(told)
    return TransientError(message, "Wait for it (in Python `wait`), ask for an earlier one, or see `penstock status`.")


def _how_far(source: str, stands: Frontiers, asked: _Asked) -> str:
    if isinstance(asked, Lsn):
        return f"source {source} has come to {stands.durable}, not to {asked}"
    return f"source {source} has come to {_told(stands.passed)}, not to {_told(asked)}"


def _told(asked: _Asked) -> str:
    return asked.isoformat(sep=" ") if isinstance(asked, datetime) else str(asked)
