"""The messages of our sink and those of Debezium, for the same history: message by message, field by field."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.debezium.recording import TRANSACTION, Recording
from tests.sinks.debezium_recording import (
    GOLDEN,
    PREFIX,
    TABLES,
    begin_history,
    change_rows,
    insert_rows,
    our_messages,
    record,
    recorded,
)
from tests.sources.postgres.capturing import Capture

from penstock.positions import Lsn
from penstock.testing.kafka import KafkaBroker
from penstock.testing.registry import SchemaRegistry

VOLATILE = {"ts_ms", "ts_us", "ts_ns"}
POSITIONS = {"lsn", "sequence", "txId"}
"""Of the source: the log has the position of the commit, not of each change; and rows of a snapshot have no txId."""


def position(database: Any) -> Lsn:
    return Lsn.parse(database.execute("SELECT pg_current_wal_insert_lsn()::text")[0][0])


def captured(database: Any, folder: Path, prefix: str, run: Callable[[Callable[[], None]], None]) -> Any:
    """Return our messages of a history that `run` performs; it calls its argument after the rows of the snapshot."""
    begin_history(database.url)
    capture = Capture(database.url, folder / "log.db", database.name)
    capture.start()
    snapshot: list[Lsn] = []
    try:
        run(lambda: snapshot.append(position(database)))
        capture.wait(position(database))
    finally:
        capture.stop()
    return our_messages(capture.log, snapshot[0], prefix, database.name)


def require_equal(ours: dict[str, list[tuple[Any, Any]]], recording: Recording) -> None:
    for table in (*TABLES, TRANSACTION):
        theirs = with_events(recorded(recording, table))
        operations = [
            [value and value["payload"].get("op", "t") for _, value in each] for each in (ours[table], theirs)
        ]
        assert operations[0] == operations[1], table
        problems = [
            problem
            for number, (our, their) in enumerate(zip(ours[table], theirs, strict=True))
            for part in range(2)
            for problem in differences(f"{table} {number} {('key', 'value')[part]}", our[part], their[part])
        ]
        assert not problems, "\n".join(problems)


def with_events(messages: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    """Return messages without transactions that have no events; Debezium reports those too."""
    payloads = [value["payload"] for _, value in messages if value is not None]
    empty = {xid_of(payload) for payload in payloads if payload.get("event_count") == 0}
    return [pair for pair in messages if pair[1] is None or xid_of(pair[1]["payload"]) not in empty]


def xid_of(payload: Any) -> str | None:
    return str(payload["id"]).partition(":")[0] if "status" in payload else None


def differences(path: str, our: Any, their: Any) -> list[str]:
    """Return where two messages differ, except for the allowed differences."""
    if isinstance(our, dict) and isinstance(their, dict):
        names = [name for name in {**our, **their} if not is_allowed(path, name, our, their)]
        return [
            problem
            for name in names
            for problem in (
                differences(f"{path}.{name}", our[name], their[name])
                if name in our and name in their
                else [f"{path}.{name}: only {'ours' if name in our else 'theirs'}: {our.get(name, their.get(name))}"]
            )
        ]
    if path.endswith("data_collections") and our is not None and their is not None:  # in the order of a hash table
        our, their = (sorted(each, key=lambda one: str(one["data_collection"])) for each in (our, their))
    if isinstance(our, list) and isinstance(their, list) and len(our) == len(their):
        names = [
            str(each.get("field", number)) if isinstance(each, dict) else str(number) for number, each in enumerate(our)
        ]
        return [p for n, a, b in zip(names, our, their, strict=True) for p in differences(f"{path}[{n}]", a, b)]
    if isinstance(our, float) and isinstance(their, float) and np.float32(our) == np.float32(their):
        return []
    return [] if our == their and type(our) is type(their) else [f"{path}: {our!r:.200} is {their!r:.200} in Debezium"]


def is_allowed(path: str, name: str, our: Any, their: Any) -> bool:
    if path.startswith(TRANSACTION) and name == "id":
        return str(our[name]).partition(":")[1:2] == (":",)
    if path.endswith("payload"):
        return name in VOLATILE and isinstance(our[name], int)
    if path.endswith("payload.source"):
        is_copied = their["snapshot"] != "false"
        return name in VOLATILE | POSITIONS | {"db"} or (is_copied and name == "snapshot")
    if path.endswith("[a_mood].items"):
        return name == "optional"  # Debezium fails on an array of an enum with a null
    if name == "named":
        return not their[name]  # Debezium loses values of type name that arrive by replication
    return path.endswith("payload.transaction") and name == "id"


def test_golden_messages(database: Any, tmp_path: Path) -> None:
    def run(copied: Callable[[], None]) -> None:
        insert_rows(database.url)
        copied()
        change_rows(database.url)

    ours = captured(database, tmp_path, PREFIX, run)
    require_equal(ours, Recording.load(GOLDEN))


@pytest.mark.deep
@pytest.mark.timeout(900)
def test_messages_of_a_running_debezium(
    database: Any, broker: KafkaBroker, registry: SchemaRegistry, tmp_path: Path
) -> None:
    prefix = f"sink_{database.name}"
    made: list[Recording] = []

    def run(copied: Callable[[], None]) -> None:
        folder = tmp_path / "debezium"
        made.append(record(folder, database.url, broker.bootstrap, registry.url, prefix, copied))

    ours = captured(database, tmp_path, prefix, run)
    require_equal(ours, made[0])
