"""Whether capture may go on at the server that it reached: the same one, or one that provably continues its history.

::

    IDENTIFY_SYSTEM ──▶ another system ────────────▶ definite error
        │               an earlier timeline ───────▶ definite error: an old primary is back
        │               the timeline we know ──────▶ slot
        ▼
    a later timeline: a standby was promoted, or a backup restored
        │ TIMELINE_HISTORY: where did our timeline end? (the fork)
        ├─ ours is not among its ancestors ────────▶ definite error
        ├─ durable > fork ─────────────────────────▶ definite error: the log is ahead of the server
        ├─ slot not synchronised from a primary ───▶ definite error
        ▼
    end of the WAL < durable ──────────────────────▶ definite error: an older data directory was put back
    slot: there, valid, confirmed ≤ durable ───────▶ go on, and remember the timeline

Why nothing is lost or doubled. Up to the fork the two servers have the same WAL, byte for byte, so that the log's
transactions, all at or before ``durable ≤ fork``, are those of the new primary too. What the new primary has after
``durable`` it sends, because its slot is confirmed up to ``durable`` at most; what it sends again from before, the
decoder recognises by its LSN. A log beyond the fork holds transactions that the new primary never had, and readers may
have seen them: there is no way on from there but a new copy.

A slot comes along only if it was made with ``failover`` and the standby synchronised it (Postgres 17 or newer). One
made by hand after the promotion begins too late, one from a restored backup may have missed catalog changes; neither
is marked ``synced``, and both are refused. The mark stays on a slot after its server was promoted.

Timelines are only numbers: two standbys of one primary may both be promoted to timeline 2. So the fork is remembered
with the timeline, and compared at each connect. Both are stored before the first transaction of the new timeline is
published (see `Instance.config`): stored later, a crash in between would leave a log that looks ahead of its server.

An older data directory that was put back has the same system and timeline. Where its WAL ends before the log does, that
is seen here. Where it has grown past that by now, it is seen in what the server sends again: see `overlap`.

With several hosts in the connection string, the connection that then streams might reach another server: it has to be
one of the same system and timeline that takes writes, and there is only one such (`require_same_server`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import psycopg

from penstock.errors import DefiniteError, ProtocolError, TransientError
from penstock.fields import with_fields
from penstock.positions import Lsn
from penstock.sources.postgres.config import PostgresInstanceConfig
from penstock.sources.postgres.overlap import restored
from penstock.sources.postgres.slot import check_slot, find_slot, identify
from penstock.sources.postgres.wal import flushed

__all__ = ["Continuity", "Fork", "check_end", "continued", "parse_history", "require_same_server"]

_SYNCHRONISED = "SELECT failover AND synced FROM pg_replication_slots WHERE slot_name = %s"
_SLOTS_SYNCHRONISED_SINCE = 170_000
_MISSING_FILE = "58P01"


@dataclass(frozen=True)
class Fork:
    """The end of a timeline in the history of a later one."""

    timeline: int
    lsn: Lsn


@dataclass(frozen=True)
class Continuity:
    """How capture goes on."""

    config: PostgresInstanceConfig
    confirmed: Lsn
    """From here on the server sends again what the log has."""


def continued(connection: psycopg.Connection[Any], config: PostgresInstanceConfig, durable: Lsn) -> Continuity:
    """Return how capture goes on over this replication connection, without a loss; or raise."""
    connection.cursor_factory = psycopg.ClientCursor  # such a connection takes no bound parameters
    system, timeline = identify(connection)
    if system != config.system:
        raise _another(config, f"its system identifier is {system}, that of the log {config.system}")
    _refuse_standby(connection, config)
    history = _history(connection, timeline, config)
    _check_known_fork(history, timeline, config)
    if timeline != config.timeline:
        _check_fork(history, timeline, config, durable)
        _check_synchronised(connection, timeline, config, durable)
    slot = check_slot(find_slot(connection, config.slot), config.slot, config.source, durable)
    check_end(connection, config, durable)
    began = int(history[-1].lsn) if history else 0
    return Continuity(with_fields(config, timeline=timeline, forked_at=began), slot.confirmed)


def check_end(connection: psycopg.Connection[Any], config: PostgresInstanceConfig, durable: Lsn) -> None:
    """Refuse a server whose WAL ends before the log does: Postgres sends nothing that is not on its disk."""
    end = flushed(connection)
    if end >= durable:
        return
    if config.standby:  # after a start it replays again what it had
        message = f"the standby behind source {config.source} has replayed up to {end}; the log reaches {durable}"
        raise TransientError(message, "It will be asked again until it has caught up.")
    raise restored(config.source, f"its WAL ends at {end}, and the log reaches {durable}")


def require_same_server(connection: psycopg.Connection[Any], config: PostgresInstanceConfig) -> None:
    """Refuse a connection that reached another server than the one that was found to continue the history."""
    system, timeline = identify(connection)
    standby = connection.info.parameter_status("in_hot_standby") == "on"
    if (system, timeline, standby) != (config.system, config.timeline, config.standby):
        message = f"another server answered for source {config.source} in between"
        raise TransientError(message, "It will be asked again.")


def parse_history(content: str) -> list[Fork]:
    """Read a timeline history file: the ancestors, oldest first, and where each of them ended."""
    forks = []
    for line in content.splitlines():
        fields = line.split("#", 1)[0].split(None, 2)
        if not fields:
            continue
        try:
            forks.append(Fork(int(fields[0]), Lsn.parse(fields[1])))
        except (IndexError, ValueError) as error:
            message = f"a timeline history has a timeline and an LSN in each line, not {line!r}"
            raise ProtocolError(message, "Look at the .history files in pg_wal of that server.") from error
    return forks


def _history(connection: psycopg.Connection[Any], timeline: int, config: PostgresInstanceConfig) -> list[Fork]:
    """Ask for the history of a timeline; the first has none."""
    if timeline == 1:
        return []
    try:
        row = connection.execute(f"TIMELINE_HISTORY {timeline}").fetchone()
    except psycopg.Error as error:
        if error.sqlstate == _MISSING_FILE:
            raise _another(config, f"it has lost the history of its timeline {timeline}") from error
        raise
    if row is None:
        message = f"Postgres did not tell the history of timeline {timeline}"
        raise TransientError(message, "It will be asked again.")
    content = row[1]
    return parse_history(content.decode() if isinstance(content, bytes) else str(content))


def _refuse_standby(connection: psycopg.Connection[Any], config: PostgresInstanceConfig) -> None:
    row = connection.execute("SELECT pg_is_in_recovery()").fetchone()
    if row is None or (row[0] and not config.standby):
        message = f"the server behind source {config.source} is a standby: it takes no writes, its slots are not read"
        hint = (
            "It will be tried again, until it is promoted. With several hosts in the connection, add"
            " target_session_attrs=read-write: the primary is then found among them."
        )
        raise TransientError(message, hint)


def _check_known_fork(history: list[Fork], timeline: int, config: PostgresInstanceConfig) -> None:
    """Compare where our timeline began: there may be two of the same number."""
    following = [*(fork.timeline for fork in history[1:]), timeline]
    began = {later: fork.lsn for later, fork in zip(following, history, strict=False)}
    known = Lsn(config.forked_at)
    found = began.get(config.timeline, known)
    if config.forked_at and found != known:
        raise _another(config, f"its timeline {config.timeline} began at {found}, that of the log at {known}")


def _check_fork(history: list[Fork], timeline: int, config: PostgresInstanceConfig, durable: Lsn) -> None:
    known = f"timeline {timeline}; the log follows {config.timeline}"
    if timeline < config.timeline:
        hint = (
            "An old primary is back, or a backup was restored. Take it out of the connection so that the server that"
            " was promoted is reached, and start again; if there is none: " + _afresh(config)
        )
        raise _another(config, f"it is at an earlier state of it ({known})", hint)
    ended = next((fork.lsn for fork in history if fork.timeline == config.timeline), None)
    if ended is None:
        raise _another(config, f"its history does not go back to it ({known})")
    if durable > ended:
        message = (
            f"the log of source {config.source} is ahead of the server after failover: it reaches {durable}, and what"
            f" the server that was promoted (timeline {timeline}) has of the old one ends at {ended}"
        )
        hint = (
            f"{_afresh(config)} So that it does not happen again, list the slots of the standbys in"
            " synchronized_standby_slots on the primary."
        )
        raise DefiniteError(message, hint)


def _check_synchronised(
    connection: psycopg.Connection[Any], timeline: int, config: PostgresInstanceConfig, durable: Lsn
) -> None:
    """Refuse a slot that did not come from the old primary."""
    row = None
    if connection.info.server_version >= _SLOTS_SYNCHRONISED_SINCE:
        row = connection.execute(_SYNCHRONISED, (config.slot,)).fetchone()
    if row is None or not row[0]:
        message = (
            f"the server behind source {config.source} was promoted or restored (now timeline {timeline}), and the slot"
            f" {config.slot} was not synchronised to it: changes since {durable} may be lost"
        )
        hint = (
            f"{_afresh(config)} To survive the next failover: Postgres 17 or newer, a slot made with failover, and"
            " sync_replication_slots = on at the standby."
        )
        raise DefiniteError(message, hint)


def _another(config: PostgresInstanceConfig, how: str, hint: str = "") -> DefiniteError:
    message = f"the server behind source {config.source} is not the one whose changes the log holds: {how}"
    return DefiniteError(message, hint or _afresh(config))


def _afresh(config: PostgresInstanceConfig) -> str:
    return f"Drop the source with `penstock drop {config.source}` and capture it again."
