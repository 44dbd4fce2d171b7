"""Positions for AS OF: which position of each source a view reads, and waiting until a log has reached it.

::

    as_of: a timestamp ───────────────▶ for each source the last transaction committed at or before it
           an LSN ────────────────────▶ of the one source: all transactions that ended at or before it
           source → LSN or timestamp ─▶ each its own; sources that are not named are read as of now
           shards → timestamp ────────▶ all sources of this name

A timestamp is resolved only when every source is known to have passed it, so the answer never changes. The commit time
of a transaction is no later than the moment at which it first became visible (see `changelog.interface`): a user who
reads a row in one source and then writes to a second source never finds the second write without the first.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta

from penstock.changelog.as_of import Asked, not_yet, position_as_of
from penstock.changelog.interface import ChangeLog, Frontiers
from penstock.errors import PenstockError, UsageError
from penstock.positions import Lsn, parse_as_of

__all__ = ["AsOf", "Chosen", "asked_of", "choose_positions", "durable_now", "reached", "seconds"]

AsOf = Lsn | datetime | str | Mapping[str, Lsn | datetime | str]
"""What a user may ask for: a position, a moment, the text of one; or one of these per source."""

_LOOK_SECONDS = 0.1
_NO_SHARDS: Mapping[str, str] = {}


def seconds(wait: float | timedelta | None) -> float:
    """Return how long to wait."""
    return wait.total_seconds() if isinstance(wait, timedelta) else wait or 0.0


def asked_of(
    as_of: AsOf | None, sources: Sequence[str], part_of: Mapping[str, str] = _NO_SHARDS
) -> dict[str, Asked | None]:
    """Return what is asked of each source; None: as it is now.

    `part_of` has the names that users gave to shards: what is asked of such a name is asked of all that are part of it.
    """
    if isinstance(as_of, Mapping):
        unknown = sorted(set(as_of) - set(sources) - set(part_of.values()))
        if unknown:
            message = f"there is no source {unknown[0]} to be read as of another moment"
            raise UsageError(message, f"Known are: {', '.join([*sources, *dict.fromkeys(part_of.values())]) or 'none'}")
        return {source: _asked_of_one(as_of, source, part_of.get(source, source)) for source in sources}
    asked = None if as_of is None else parse_as_of(as_of)
    if isinstance(asked, Lsn) and len(sources) > 1:
        message = f"this home has several sources, and {asked} is a position in one of them"
        raise UsageError(message, _name_one(sources[0], asked))
    return dict.fromkeys(sources, asked)


def _asked_of_one(as_of: Mapping[str, Lsn | datetime | str], source: str, whole: str) -> Asked | None:
    if source in as_of:
        return parse_as_of(as_of[source])
    asked = parse_as_of(as_of[whole]) if whole in as_of else None
    if isinstance(asked, Lsn):
        message = f"source {whole} is made of shards, and {asked} is a position in one of them"
        raise UsageError(message, _name_one(source, asked))
    return asked


def _name_one(source: str, asked: Lsn) -> str:
    return f"Name the source, in Python as_of={{'{source}': '{asked}'}}, in SQL behind a table; or give a time."


@dataclass(frozen=True)
class Chosen:
    """The position at which a source is read, and how far its log could be read then."""

    position: Lsn
    frontiers: Frontiers


def choose_positions(
    logs: Mapping[str, ChangeLog], asked: Mapping[str, Asked | None], wait: float = 0.0
) -> dict[str, Chosen]:
    """Choose a position for each source; wait so many seconds for those that are not that far."""
    with ExitStack() as opened:
        readers = {source: opened.enter_context(closing(logs[source].reader())) for source in asked}
        give_up = time.monotonic() + wait
        while True:
            stands = {source: reader.frontiers() for source, reader in readers.items()}
            wanted = {source: (stands[source], want) for source, want in asked.items() if want is not None}
            behind = {source: told for source, told in wanted.items() if not told[0].reach(told[1])}
            if not behind:
                chosen = {s: position_as_of(s, readers[s], *told) for s, told in wanted.items()}
                return {source: Chosen(chosen.get(source, found.durable), found) for source, found in stands.items()}
            if time.monotonic() >= give_up:
                raise not_yet(behind)
            time.sleep(_LOOK_SECONDS)


_REACHED_LOOK_SECONDS = 0.1


def reached(log: ChangeLog, position: Lsn, stop: threading.Event) -> Lsn | None:
    """Return the durable frontier once it is at a position; None when told to stop before."""
    with closing(log.reader()) as reader:
        while not stop.is_set():
            durable = reader.wait(Lsn(position - 1), _REACHED_LOOK_SECONDS).durable
            if durable >= position:
                return durable
    return None


def durable_now(log: ChangeLog) -> Lsn | None:
    """Return what a log has on disk; None where it cannot be read."""
    with suppress(PenstockError), closing(log.reader()) as reader:
        return reader.frontiers().durable
    return None
