"""Positions for AS OF: which position of each source a view reads, and waiting until a log has reached it.

::

    as_of: a timestamp ───────────────▶ for each source the last transaction committed at or before it
           an LSN ────────────────────▶ of the one source: all transactions that ended at or before it
           source → LSN or timestamp ─▶ one per source; sources that are not named are read as of now
           shards → timestamp ────────▶ all shards of this sharded source

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

from penstock.changelog.as_of import PositionOrTime, not_yet_captured, position_as_of
from penstock.changelog.interface import ChangeLog, Frontiers
from penstock.errors import PenstockError, UsageError
from penstock.positions import Lsn, parse_as_of

__all__ = ["AsOf", "Chosen", "choose_positions", "durable_now", "reached", "requested_positions", "seconds"]

AsOf = Lsn | datetime | str | Mapping[str, Lsn | datetime | str]
"""The values of AS OF: a position, a timestamp, the text of one, or a mapping from sources to these."""

_POLL_SECONDS = 0.1
_NO_SHARDS: Mapping[str, str] = {}


def seconds(wait: float | timedelta | None) -> float:
    """Return a wait time in seconds."""
    return wait.total_seconds() if isinstance(wait, timedelta) else wait or 0.0


def requested_positions(
    as_of: AsOf | None, sources: Sequence[str], part_of: Mapping[str, str] = _NO_SHARDS
) -> dict[str, PositionOrTime | None]:
    """Return the requested position or timestamp of each source; None means as of now.

    `part_of` maps shards to their sharded source: a timestamp for that name applies to all its shards.
    """
    if isinstance(as_of, Mapping):
        unknown = sorted(set(as_of) - set(sources) - set(part_of.values()))
        if unknown:
            message = f"AS OF names source {unknown[0]}, which does not exist"
            raise UsageError(message, f"Sources: {', '.join([*sources, *dict.fromkeys(part_of.values())]) or 'none'}.")
        return {source: _requested_position(as_of, source, part_of.get(source, source)) for source in sources}
    requested = None if as_of is None else parse_as_of(as_of)
    if isinstance(requested, Lsn) and len(sources) > 1:
        message = f"LSN {requested} is ambiguous: this home has several sources"
        raise UsageError(message, _name_source_hint(sources[0], requested))
    return dict.fromkeys(sources, requested)


def _requested_position(as_of: Mapping[str, Lsn | datetime | str], source: str, whole: str) -> PositionOrTime | None:
    if source in as_of:
        return parse_as_of(as_of[source])
    requested = parse_as_of(as_of[whole]) if whole in as_of else None
    if isinstance(requested, Lsn):
        message = f"LSN {requested} is ambiguous: source {whole} is sharded"
        raise UsageError(message, _name_source_hint(source, requested))
    return requested


def _name_source_hint(source: str, requested: Lsn) -> str:
    return (
        f"Name the source: as_of={{'{source}': '{requested}'}} in Python, AS OF after a table in SQL. Or give a time."
    )


@dataclass(frozen=True)
class Chosen:
    """The position at which a source is read, and the frontiers of its log at that time."""

    position: Lsn
    frontiers: Frontiers


def choose_positions(
    logs: Mapping[str, ChangeLog], requested: Mapping[str, PositionOrTime | None], wait: float = 0.0
) -> dict[str, Chosen]:
    """Choose a position for each source; wait up to `wait` seconds for the logs to reach the requested positions."""
    with ExitStack() as opened:
        readers = {source: opened.enter_context(closing(logs[source].reader())) for source in requested}
        deadline = time.monotonic() + wait
        while True:
            frontiers = {source: reader.frontiers() for source, reader in readers.items()}
            wanted = {source: (frontiers[source], want) for source, want in requested.items() if want is not None}
            pending = {source: target for source, target in wanted.items() if not target[0].has_reached(target[1])}
            if not pending:
                chosen = {s: position_as_of(s, readers[s], *target) for s, target in wanted.items()}
                return {source: Chosen(chosen.get(source, found.durable), found) for source, found in frontiers.items()}
            if time.monotonic() >= deadline:
                raise not_yet_captured(pending)
            time.sleep(_POLL_SECONDS)


_REACHED_POLL_SECONDS = 0.1


def reached(log: ChangeLog, position: Lsn, stop: threading.Event) -> Lsn | None:
    """Return the durable frontier once it has reached a position; None if `stop` is set before."""
    with closing(log.reader()) as reader:
        while not stop.is_set():
            durable = reader.wait(Lsn(position - 1), _REACHED_POLL_SECONDS).durable
            if durable >= position:
                return durable
    return None


def durable_now(log: ChangeLog) -> Lsn | None:
    """Return the durable frontier of a log; None if the log cannot be read."""
    with suppress(PenstockError), closing(log.reader()) as reader:
        return reader.frontiers().durable
    return None
