"""What a source with transaction metadata waits for, and from when on it is valid: in words, in a file of its own.

The instance writes it; `penstock status` reads it, in another process. It is for people, and nothing rests on it: where
it is missing or cannot be read, nothing is said.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from penstock.sources.kafka.transactions.cuts import CutState, Held

__all__ = ["explained", "tell", "valid_from", "waits_for"]

_FILE = "transactions.json"
_LATER = "Nothing that is later is shown before that."


def explained(held: Held, metadata: str, since: datetime) -> str:
    """Say what is missing, since when, and what may be the reason."""
    moment = f"{since.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
    if held.copying:
        return (
            f"the first copy that Debezium makes is not over, waited for since {moment}. Its rows are shown all at "
            f"once. Perhaps Debezium is still copying, or was stopped: look at its connector."
        )
    if held.missing:
        lacks = ", ".join(f"{one.there} of {one.said} events in the topic {one.topic}" for one in held.missing)
        return (
            f"transaction {held.transaction} is not complete since {moment}: {lacks}. {_LATER} Perhaps Debezium is "
            f"still writing, or was stopped; or events were removed from the topic (compaction, retention), or go to "
            f"another topic (a transform of the connector)."
        )
    if held.without_end:
        return (
            f"{held.without_end} events wait for the END of their transaction in the topic {metadata} since {moment}. "
            f"{_LATER} Perhaps Debezium is still writing, or was stopped; or it writes metadata to another topic "
            f"(provide.transaction.metadata, topic.transaction)."
        )
    if held.repeating:
        where = ", ".join(f"partition {number} of the topic {topic}" for topic, number in held.repeating)
        return (
            f"Debezium repeats what it wrote before, since {moment}, and has not come to the end of that in {where}. "
            f"{_LATER} Perhaps it was stopped in the midst of it: look at its connector."
        )
    if held.founded:
        return f"messages that are there are still being read, since {moment}. What is whole of them is shown then."
    return (
        f"no transaction came as a whole since {moment}, when reading began in the middle of the topics. The first one "
        f"makes the source valid."
    )


def tell(state: Path, waiting: str | None, known: CutState) -> None:
    """Write what is so now; who reads it sees all of it, or what was there before."""
    said = {"waiting": waiting, "valid_from": _validity(known)}
    path = state / _FILE
    with suppress(OSError):
        path.with_suffix(".new").write_text(json.dumps(said), encoding="utf-8")
        path.with_suffix(".new").replace(path)


def waits_for(state: Path) -> str | None:
    """Return what the instance with this folder waits for; None where it does not wait."""
    return _read(state).get("waiting")


def valid_from(state: Path) -> str | None:
    """Return from when on the source is valid; None where that is from the beginning of the topics, or not known."""
    return _read(state).get("valid_from")


def _validity(known: CutState) -> str | None:
    if not known.founded or known.valid_from is None:
        return None
    if known.valid_from_ms is None:
        return f"the copy at {known.valid_from}"
    moment = datetime.fromtimestamp(known.valid_from_ms / 1000, UTC)
    return f"the transaction that committed at {known.valid_from}, {moment:%Y-%m-%d %H:%M:%S.%f} UTC"


def _read(state: Path) -> Mapping[str, str | None]:
    with suppress(OSError, ValueError):
        said = json.loads((state / _FILE).read_text(encoding="utf-8"))
        if isinstance(said, dict):
            return said
    return {}
