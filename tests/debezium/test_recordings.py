"""Debezium's output: snapshots, changes, repeats and transactions; and that it still matches the recordings."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from tests.debezium.changes import Changes, Transaction
from tests.debezium.conftest import DEEP, Recordings
from tests.debezium.histories import ACCOUNTS, START
from tests.debezium.record import CONVERTERS, TRANSACTIONS
from tests.debezium.recording import Recording

from penstock.testing.debezium import Converter

RECORDED = [(name, converter) for name, converters in CONVERTERS.items() for converter in converters]
EACH_RECORDING = pytest.mark.parametrize(
    ("name", "converter"), RECORDED, ids=lambda each: getattr(each, "name", each).lower()
)


def reproducible_transactions(name: str, changes: Changes) -> list[Transaction]:
    """Return the transactions that are the same in each run: for the bank, from the reset of all balances.

    The order in which one UPDATE changes its rows is up to Postgres. Balances before the reset depend on the tellers.
    """
    found = [Transaction(one.counts, sorted(one.events, key=str)) for one in changes.transactions()]
    if name == "bank":
        (reset,) = [place for place, one in enumerate(found) if len(one.events) == 2 * ACCOUNTS]
        written = sorted(([*event[:3], None, *event[4:]] for event in found[reset].events), key=str)
        return [Transaction(found[reset].counts, written), *found[reset + 1 :]]
    return found


def times_written(changes: Changes) -> dict[str, set[int]]:
    """Return, by transaction, how many times its events are in the topics."""
    times = Counter(
        (str(value["source"]["txId"]), value["transaction"]["total_order"])
        for records in changes.records.values()
        for _, value in records
        if value["transaction"] is not None
    )
    return {number: {times[one] for one in times if one[0] == number} for number, _ in times}


def test_recording_round_trips(golden: Recordings, tmp_path: Path) -> None:
    for name, recording in golden.items():
        recording.save(tmp_path / name)
        assert Recording.load(tmp_path / name) == recording


@EACH_RECORDING
def test_snapshot_changes_and_repeats_after_a_crash(recordings: Recordings, name: str, converter: Converter) -> None:
    recording = recordings[name]
    changes = Changes(recording, converter)
    copies = {table: Counter(value["op"] for _, value in changes.records[table])["r"] for table in recording.tables}
    expected = {"types": {"public.typed": 9, "public.moved": 20}, "bank": dict.fromkeys(recording.tables, 2 * ACCOUNTS)}
    assert copies == expected[name], "killed before it stored a position, it takes the snapshot again; otherwise once"
    once = reproducible_transactions(name, changes)
    assert {event[1] for one in once for event in one.events} == {"c", "u", "d"}
    written = times_written(changes)
    ends = dict.fromkeys(end["id"].partition(":")[0] for end in changes.metadata if end["status"] == "END")
    counts = [written[number] for number in list(ends)[-len(once) :]]
    assert counts[0] == {recording.kills + 1}, "changes after the last clean stop are repeated"
    assert counts[-1] == {1}
    assert max(map(max, counts)) == recording.kills + 1


@EACH_RECORDING
def test_transaction_metadata_has_the_event_counts(recordings: Recordings, name: str, converter: Converter) -> None:
    changes = Changes(recordings[name], converter)
    once = reproducible_transactions(name, changes)
    for one in once:
        assert one.counts == Counter(event[0] for event in one.events)
    statuses = Counter(message["status"] for message in changes.metadata)
    assert statuses["BEGIN"] >= statuses["END"] >= len(once)
    if name == "bank":
        assert len(once) == 1 + TRANSACTIONS * (2 * recordings[name].kills + 1)
        assert {event[4]["balance"] for event in once[0].events} == {START}


@EACH_RECORDING
@pytest.mark.deep
@pytest.mark.timeout(DEEP[1].args[0])
def test_debezium_output_matches_the_recording(
    golden: Recordings, fresh: Recordings, name: str, converter: Converter
) -> None:
    old, new = Changes(golden[name], converter), Changes(fresh[name], converter)
    assert new.schemas() == old.schemas()
    recorded = reproducible_transactions(name, old)
    assert reproducible_transactions(name, new)[: len(recorded)] == recorded
    for table in golden[name].tables:
        assert new.snapshot_rows(table).keys() == old.snapshot_rows(table).keys()
        assert new.tombstones(table) >= old.tombstones(table)
        if name == "types":  # for the bank, the rows depend on the progress of the tellers
            assert new.snapshot_rows(table) == old.snapshot_rows(table)
    if fresh[name].kills == golden[name].kills:
        assert fresh[name].rows == golden[name].rows
