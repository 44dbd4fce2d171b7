"""The choice of files to compact: bounded steps that terminate."""

from __future__ import annotations

import random

from penstock.tables.compaction import FileState, files_to_compact

MB = 1 << 20


def files(count: int, size: int = 64 * MB, deleted: int = 0, **known: int) -> list[FileState]:
    return [FileState(f"{size}-{deleted}-{number}-{known}", size, 1000, deleted, **known) for number in range(count)]


def in_order(count: int) -> list[FileState]:
    return [FileState(f"ordered {n}", 64 * MB, 1000, 0, 10 * n, 10 * n + 9) for n in range(count)]


def test_compacted_table_is_not_changed() -> None:
    assert files_to_compact(in_order(1000)) == []
    assert files_to_compact([]) == []


def test_many_small_files_are_compacted() -> None:
    assert files_to_compact([*in_order(10), *files(40, 1000)]) == []
    assert files_to_compact([*in_order(10), *files(41, 1000)]) == files(41, 1000)


def test_files_with_many_deleted_rows_are_compacted() -> None:
    assert files_to_compact([*in_order(10), *files(1, deleted=200)]) == []
    assert files_to_compact([*in_order(10), *files(1, deleted=201)]) == files(1, deleted=201)
    assert files_to_compact(files(1, 1000, deleted=900)) == [], "a small file alone is not worth a commit"


def test_files_with_overlapping_keys_are_compacted() -> None:
    wide = files(7, low=3, high=9995)
    chosen = files_to_compact([*in_order(1000), *wide])
    assert set(wide) < set(chosen)
    assert len(chosen) == 8, "and one of the ordered files that they overlap"
    assert files_to_compact([*in_order(1000), *wide[:6]]) == []


def test_files_with_indivisible_key_ranges_are_not_compacted() -> None:
    assert files_to_compact(files(100, low=5, high=5)) == []
    assert files_to_compact(files(100)) == [], "their keys are unknown"


def test_step_is_limited() -> None:
    assert len(files_to_compact(files(100, deleted=900), step=640 * MB)) == 10
    assert len(files_to_compact(files(3, 900 * MB, deleted=900), step=640 * MB)) == 1, "at least one file"


def test_steps_terminate() -> None:
    """Files with scattered keys, as after an initial snapshot of random keys."""
    rng = random.Random(1)
    table = [FileState(f"copied {n}", 64 * MB, 1000, 0, *sorted(rng.sample(range(100_000), 2))) for n in range(300)]
    for step in range(1000):
        chosen = files_to_compact(table)
        if not chosen:
            break
        low = min(file.low for file in chosen if file.low is not None)
        high = max(file.high for file in chosen if file.high is not None)
        cuts = [low + (high - low) * n // len(chosen) for n in range(len(chosen) + 1)]
        table = [file for file in table if file not in chosen]
        table += [
            FileState(f"step {step} {n}", 64 * MB, 1000, 0, cuts[n], max(cuts[n], cuts[n + 1] - 1))
            for n in range(len(chosen))
        ]
    assert step < 400
