"""Decide whether capture may resume on the server that it reached: the same one, or one that continues its history.

::

    IDENTIFY_SYSTEM ──▶ another system ────────────▶ permanent error
        │               an earlier timeline ───────▶ permanent error: an old primary was started again
        │               the recorded timeline ─────▶ slot
        ▼
    a later timeline: a standby was promoted, or a backup restored
        │ TIMELINE_HISTORY: where did the recorded timeline end? (the fork)
        ├─ it is not among the ancestors ──────────▶ permanent error
        ├─ durable > fork ─────────────────────────▶ permanent error: the log is ahead of the server
        ├─ slot not synchronized from a primary ───▶ permanent error
        ▼
    end of the WAL < durable ──────────────────────▶ permanent error: an older data directory was restored
    slot exists, valid, confirmed ≤ durable ───────▶ resume, and record the timeline

Why no change is lost or duplicated: up to the fork the two servers have the same WAL, byte for byte, so the log's
transactions, all at or before ``durable ≤ fork``, are also those of the new primary. The new primary sends everything
after ``durable``, because its slot is confirmed up to ``durable`` at most; the decoder recognises earlier transactions
that are sent again by their LSN. A log beyond the fork contains transactions that the new primary never had, and
readers may have seen them: only a new snapshot helps.

A slot survives a failover only if it was created with ``failover`` and the standby synchronized it (Postgres 17 or
newer). A slot created after the promotion begins too late, and one from a restored backup may have missed catalog
changes; neither is marked ``synced``, and both are rejected. A slot keeps the mark after its server was promoted.

Timelines are only numbers: two standbys of one primary may both be promoted to timeline 2. So the fork is recorded with
the timeline, and compared at each connect. Both are stored before the first transaction of the new timeline is
published (see `Instance.config`): if they were stored later, a crash in between would leave a log that appears to be
ahead of its server.

A restored older data directory has the same system identifier and timeline. If its WAL ends before the log does, this
module detects it. If its WAL has since grown past the end of the log, `overlap` detects it in the transactions that the
server sends again.

With several hosts in the connection string, the connection that streams might reach another server. It must have the
same system identifier and timeline and accept writes, and only one server does (`require_same_server`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import psycopg

from penstock.errors import DefiniteError, ProtocolError, TransientError
from penstock.fields import with_fields
from penstock.positions import Lsn
from penstock.sources.postgres.config import PostgresInstanceConfig
from penstock.sources.postgres.pgoutput.overlap import different_history_error
from penstock.sources.postgres.replication.slot import check_slot, find_slot, identify
from penstock.sources.postgres.replication.wal import wal_flush_position

__all__ = ["Continuity", "Fork", "check_end", "parse_history", "require_same_server", "verify_continuity"]

_SYNCHRONIZED = "SELECT failover AND synced FROM pg_replication_slots WHERE slot_name = %s"
_SLOTS_SYNCHRONIZED_SINCE = 170_000
_MISSING_FILE = "58P01"


@dataclass(frozen=True)
class Fork:
    """The end of a timeline in the history of a later one."""

    timeline: int
    lsn: Lsn


@dataclass(frozen=True)
class Continuity:
    """How capture resumes."""

    config: PostgresInstanceConfig
    confirmed: Lsn
    """The server sends again the transactions of the log after this position."""


def verify_continuity(connection: psycopg.Connection[Any], config: PostgresInstanceConfig, durable: Lsn) -> Continuity:
    """Return how capture resumes over this replication connection without losing changes; raise if it cannot."""
    connection.cursor_factory = psycopg.ClientCursor  # replication connections do not support bound parameters
    system, timeline = identify(connection)
    if system != config.system:
        raise _wrong_server(config, f"its system identifier is {system}, that of the log {config.system}")
    _reject_standby(connection, config)
    history = _history(connection, timeline, config)
    _check_known_fork(history, timeline, config)
    if timeline != config.timeline:
        _check_fork(history, timeline, config, durable)
        _check_synchronized(connection, timeline, config, durable)
    slot = check_slot(find_slot(connection, config.slot), config.slot, config.source, durable)
    check_end(connection, config, durable)
    began = int(history[-1].lsn) if history else 0
    return Continuity(with_fields(config, timeline=timeline, forked_at=began), slot.confirmed)


def check_end(connection: psycopg.Connection[Any], config: PostgresInstanceConfig, durable: Lsn) -> None:
    """Reject a server whose WAL ends before the log does: Postgres only sends WAL that it has flushed to disk."""
    end = wal_flush_position(connection)
    if end >= durable:
        return
    if config.standby:  # after a restart it replays WAL from its last restartpoint
        message = f"the standby of source {config.source} has replayed up to {end}, but the log ends at {durable}"
        raise TransientError(message, "Penstock retries until the standby has caught up.")
    raise different_history_error(config.source, f"its WAL ends at {end}, and the log reaches {durable}")


def require_same_server(connection: psycopg.Connection[Any], config: PostgresInstanceConfig) -> None:
    """Reject a connection to another server than the one that passed the continuity check."""
    system, timeline = identify(connection)
    standby = connection.info.parameter_status("in_hot_standby") == "on"
    if (system, timeline, standby) != (config.system, config.timeline, config.standby):
        message = f"the second connection for source {config.source} reached another server than the first"
        raise TransientError(message, "Penstock retries.")


def parse_history(content: str) -> list[Fork]:
    """Parse a timeline history file: the ancestors, oldest first, and the position at which each of them ended."""
    forks = []
    for line in content.splitlines():
        fields = line.split("#", 1)[0].split(None, 2)
        if not fields:
            continue
        try:
            forks.append(Fork(int(fields[0]), Lsn.parse(fields[1])))
        except (IndexError, ValueError) as error:
            message = f"invalid line in timeline history: {line!r}"
            raise ProtocolError(message, "Check the .history files in pg_wal of that server.") from error
    return forks


def _history(connection: psycopg.Connection[Any], timeline: int, config: PostgresInstanceConfig) -> list[Fork]:
    """Return the history of a timeline; the first timeline has none."""
    if timeline == 1:
        return []
    try:
        row = connection.execute(f"TIMELINE_HISTORY {timeline}").fetchone()
    except psycopg.Error as error:
        if error.sqlstate == _MISSING_FILE:
            raise _wrong_server(config, f"the history file of its timeline {timeline} is missing") from error
        raise
    if row is None:
        message = f"Postgres returned no history of timeline {timeline}"
        raise TransientError(message, "Penstock retries.")
    content = row[1]
    return parse_history(content.decode() if isinstance(content, bytes) else str(content))


def _reject_standby(connection: psycopg.Connection[Any], config: PostgresInstanceConfig) -> None:
    row = connection.execute("SELECT pg_is_in_recovery()").fetchone()
    if row is None or (row[0] and not config.standby):
        message = f"the server of source {config.source} is a standby, but capture began on a primary"
        hint = (
            "Penstock retries until the server is promoted. With several hosts in the connection string, add"
            " target_session_attrs=read-write to connect to the primary."
        )
        raise TransientError(message, hint)


def _check_known_fork(history: list[Fork], timeline: int, config: PostgresInstanceConfig) -> None:
    """Reject a timeline of the recorded number that began at another position."""
    following = [*(fork.timeline for fork in history[1:]), timeline]
    began = {later: fork.lsn for later, fork in zip(following, history, strict=False)}
    known = Lsn(config.forked_at)
    found = began.get(config.timeline, known)
    if config.forked_at and found != known:
        raise _wrong_server(config, f"its timeline {config.timeline} began at {found}, that of the log at {known}")


def _check_fork(history: list[Fork], timeline: int, config: PostgresInstanceConfig, durable: Lsn) -> None:
    known = f"timeline {timeline}; the log is on timeline {config.timeline}"
    if timeline < config.timeline:
        hint = (
            "An old primary was started again, or a backup was restored. Stop that server, or direct its host name to"
            " the promoted server, and restart. If there is no such server: " + _recreate(config)
        )
        raise _wrong_server(config, f"it is on an earlier timeline ({known})", hint)
    ended = next((fork.lsn for fork in history if fork.timeline == config.timeline), None)
    if ended is None:
        raise _wrong_server(config, f"its history does not include the timeline of the log ({known})")
    if durable > ended:
        message = (
            f"the log of source {config.source} is ahead of the server after failover: the log ends at {durable}, but"
            f" the promoted server (timeline {timeline}) received the WAL of the old primary only up to {ended}"
        )
        hint = (
            f"{_recreate(config)} To prevent this, list the physical slots of the standbys in"
            " synchronized_standby_slots on the primary."
        )
        raise DefiniteError(message, hint)


def _check_synchronized(
    connection: psycopg.Connection[Any], timeline: int, config: PostgresInstanceConfig, durable: Lsn
) -> None:
    """Reject a slot that was not synchronized from the old primary."""
    row = None
    if connection.info.server_version >= _SLOTS_SYNCHRONIZED_SINCE:
        row = connection.execute(_SYNCHRONIZED, (config.slot,)).fetchone()
    if row is None or not row[0]:
        message = (
            f"the server of source {config.source} was promoted or restored (now on timeline {timeline}), and"
            f' replication slot "{config.slot}" was not synchronized to it: changes since {durable} may be lost'
        )
        hint = (
            f"{_recreate(config)} To survive the next failover, use Postgres 17 or newer, the option failover, and"
            " sync_replication_slots = on on the standby."
        )
        raise DefiniteError(message, hint)


def _wrong_server(config: PostgresInstanceConfig, why: str, hint: str = "") -> DefiniteError:
    message = f"the server of source {config.source} does not continue the history of the log: {why}"
    return DefiniteError(message, hint or _recreate(config))


def _recreate(config: PostgresInstanceConfig) -> str:
    return f"Drop the source with `penstock drop {config.source}` and capture it again."
