"""The transaction that a source with transaction metadata waits for, and the start of its validity, as text in a file.

The instance writes the file; `penstock status` reads it, in another process. It is informational only: if it is missing
or cannot be read, nothing is reported.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from penstock.private_file import replace_file
from penstock.sources.kafka.transactions.cuts import CutBlockers, CutState

__all__ = ["read_wait_reason", "valid_from", "wait_reason", "write_wait_status"]

_FILE = "transactions.json"
_LATER = "Later transactions become visible after it."


def wait_reason(blockers: CutBlockers, metadata: str, since: datetime) -> str:
    """Return what is missing, since when, and possible reasons."""
    moment = f"{since.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
    if blockers.copying:
        return (
            f"waiting since {moment} for Debezium's initial snapshot to complete. Its rows become visible all at "
            f"once. Debezium is still copying, or was stopped: check the connector."
        )
    if blockers.settles_after is not None:
        read_at = datetime.fromtimestamp(blockers.settles_after / 1000, UTC)
        return (
            f"waiting since {moment} for a transaction that commits after {read_at:%Y-%m-%d %H:%M:%S} UTC. Debezium "
            f"took its snapshot again, table by table: its rows are consistent with the first transaction after it. If "
            f"the database is idle, update a row of any table of the connector."
        )
    if blockers.missing:
        lacks = ", ".join(f"{one.read} of {one.expected} events in topic {one.topic}" for one in blockers.missing)
        return (
            f"transaction {blockers.transaction} is incomplete since {moment}: {lacks}. {_LATER} Debezium is still "
            f"writing, or was stopped; or events were removed from the topic (compaction, retention), or are written "
            f"to another topic (by a transform of the connector)."
        )
    if blockers.without_end:
        return (
            f"{blockers.without_end} events wait for the END of their transaction in topic {metadata} since {moment}. "
            f"{_LATER} Debezium is still writing, or was stopped; or it writes metadata to another topic "
            f"(provide.transaction.metadata, topic.transaction)."
        )
    if blockers.repeating:
        where = ", ".join(f"partition {number} of topic {topic}" for topic, number in blockers.repeating)
        return (
            f"since {moment} Debezium repeats messages that it wrote before, and has not finished in {where}. "
            f"{_LATER} Debezium may have been stopped meanwhile: check the connector."
        )
    if blockers.founded:
        return f"reading available messages since {moment}. Complete transactions become visible afterwards."
    return (
        f"no complete transaction since {moment}, when reading started in the middle of the topics. The source becomes "
        f"valid with the first one."
    )


def write_wait_status(state: Path, waiting: str | None, known: CutState) -> None:
    """Write the status atomically, unless the folder was removed: a concurrent reader sees the old or the new file."""
    status = {"waiting": waiting, "valid_from": _validity(known)}
    with suppress(OSError):
        if state.is_dir():
            replace_file(state / _FILE, json.dumps(status))


def read_wait_reason(state: Path) -> str | None:
    """Return what the instance with this state folder waits for, or None."""
    return _read(state).get("waiting")


def valid_from(state: Path) -> str | None:
    """Return the start of the source's validity; None if it is the beginning of the topics, or unknown."""
    return _read(state).get("valid_from")


def _validity(known: CutState) -> str | None:
    if not known.founded or known.valid_from is None:
        return None
    if known.valid_from_ms is None:
        return f"the snapshot at {known.valid_from}"
    moment = datetime.fromtimestamp(known.valid_from_ms / 1000, UTC)
    return f"the transaction that committed at {known.valid_from}, {moment:%Y-%m-%d %H:%M:%S.%f} UTC"


def _read(state: Path) -> Mapping[str, str | None]:
    with suppress(OSError, ValueError):
        status = json.loads((state / _FILE).read_text(encoding="utf-8"))
        if isinstance(status, dict):
            return status
    return {}
