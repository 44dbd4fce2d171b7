"""Record what Debezium writes: ``python -m tests.debezium.record``.

It replaces the golden recordings next to this file, which `make test` reads instead of a running Debezium. Record again
when `debezium.lock` names another version, or when a history changes. `make test-deep` records too, into a temporary
folder, and compares: it fails if Debezium's output differs.

::

    Postgres ─▶ one Debezium, five connectors ─▶ broker, registry ─▶ golden/types, golden/bank

    start       snapshot of bank, while tellers work
    kill        no position was stored: bank is snapshotted again, and types too. Its slot exists, so that this snapshot
                is not consistent: tables are read one after the other
    restart     cleanly: positions are stored, and from here on a kill causes repeats
    kill        during changes; `PENSTOCK_DEBEZIUM_KILLS` times, once in the golden recordings

Histories are the same in each run. Positions, times and xids differ, and so do the points of kills: which messages
are repeated, and how often.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from tests.debezium.histories import (
    BANK,
    TYPES,
    Tellers,
    change_types,
    make_bank,
    make_types,
    reset_bank,
    rows_of,
)
from tests.debezium.recording import TRANSACTION, Recording, read_topic, schema_id, since_first

from penstock.formats import Registry, RegistryAddress
from penstock.testing.debezium import Converter, Debezium
from penstock.testing.kafka import start_kafka
from penstock.testing.postgres import start_postgres
from penstock.testing.registry import start_registry

GOLDEN = Path(__file__).parent / "golden"
KILLS = int(os.environ.get("PENSTOCK_DEBEZIUM_KILLS", "1"))
RECORDINGS = {"types": TYPES, "bank": BANK}
CONVERTERS = {"types": list(Converter), "bank": [Converter.AVRO, Converter.JSON]}
TRANSACTIONS = 12
"""How many transactions the tellers commit between a start and a kill of Debezium."""
_PARTITIONS = {
    "topic.creation.default.partitions": "2",
    "topic.creation.groups": "single",
    "topic.creation.single.include": r".*\.(transaction|message)",
    "topic.creation.single.partitions": "1",
    "topic.creation.single.replication.factor": "1",
}


def record(folder: Path, postgres: str, bootstrap: str, registry: str, kills: int = KILLS) -> dict[str, Recording]:
    """Take both recordings from an empty database; `folder` is Debezium's."""
    make_bank(postgres)
    make_types(postgres)
    with Debezium(folder, postgres, bootstrap, registry) as debezium:
        _add(debezium, "bank", _PARTITIONS)
        with _tellers_at_work(postgres):
            debezium.start()
            debezium.await_all()
            debezium.kill()
            _add(debezium, "types", {})
            debezium.start()
            debezium.await_all()
        debezium.restart()
        reset_bank(postgres)
        with closing(Tellers(postgres, 1, keys_change=True)) as tellers:
            _kill_repeatedly(debezium, postgres, tellers, kills)
    return {name: _recorded(name, postgres, bootstrap, registry, kills) for name in RECORDINGS}


def _add(debezium: Debezium, name: str, settings: dict[str, str]) -> None:
    for converter in CONVERTERS[name]:
        debezium.add(_prefix(name, converter), RECORDINGS[name], converter, settings)


def _prefix(name: str, converter: Converter) -> str:
    return f"{name}_{converter.name.lower()}"


@contextmanager
def _tellers_at_work(postgres: str) -> Iterator[None]:
    """Let tellers work slowly meanwhile. No key changes: a second snapshot does not show which keys were removed."""
    stop = threading.Event()

    def work() -> None:
        with closing(Tellers(postgres, 0, keys_change=False)) as tellers:
            while not stop.wait(0.3):
                tellers.work(1)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _kill_repeatedly(debezium: Debezium, postgres: str, tellers: Tellers, kills: int) -> None:
    for number in range(kills):
        change_types(postgres, 2 * number)
        tellers.work(TRANSACTIONS)
        debezium.await_all()
        change_types(postgres, 2 * number + 1)
        working = threading.Thread(target=tellers.work, args=[TRANSACTIONS, 0.02])
        working.start()
        debezium.kill()
        debezium.start()
        working.join()
    change_types(postgres, 2 * kills)
    tellers.work(TRANSACTIONS)
    debezium.await_all()


def _recorded(name: str, postgres: str, bootstrap: str, registry: str, kills: int) -> Recording:
    topics = {
        (converter, table): read_topic(bootstrap, f"{_prefix(name, converter)}.{table}")
        for converter in CONVERTERS[name]
        for table in [*RECORDINGS[name], TRANSACTION]
    }
    parts = (
        part
        for (converter, _), topic in topics.items()
        for one in topic.messages
        for part in (one.key, one.value)
        if converter is Converter.AVRO and part is not None
    )
    found = Registry(RegistryAddress(url=registry)).schemas({schema_id(part) for part in parts})
    schemas = {number: schema.text for number, schema in found.items() if schema is not None}
    assert len(schemas) == len(found)
    rows = {table: rows_of(postgres, table) for table in RECORDINGS[name]}
    return Recording(since_first(topics), schemas, rows, kills)


def main() -> None:
    """Record with temporary servers, and replace the golden recordings."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        with (
            start_postgres(fsync=False) as postgres,
            start_kafka(folder / "kafka") as broker,
            start_registry(folder / "registry") as registry,
        ):
            made = record(folder / "debezium", postgres.url, broker.bootstrap, registry.url, kills=1)
    for name, recording in made.items():
        shutil.rmtree(GOLDEN / name, ignore_errors=True)
        recording.save(GOLDEN / name)
        files = [path for path in (GOLDEN / name).rglob("*") if path.is_file()]
        print(f"{name}: {len(files)} files, {sum(path.stat().st_size for path in files):,} bytes")


if __name__ == "__main__":
    main()
