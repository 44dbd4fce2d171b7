"""Which files are written anew: rules that come to an end, in bounded steps."""

from __future__ import annotations

import random

from penstock.tables.compaction import FileState, worn_files

MB = 1 << 20


def files(count: int, size: int = 64 * MB, deleted: int = 0, **known: int) -> list[FileState]:
    return [FileState(f"{size}-{deleted}-{number}-{known}", size, 1000, deleted, **known) for number in range(count)]


def in_order(count: int) -> list[FileState]:
    return [FileState(f"ordered {n}", 64 * MB, 1000, 0, 10 * n, 10 * n + 9) for n in range(count)]


def test_a_table_in_good_order_is_left_alone() -> None:
    assert worn_files(in_order(1000)) == []
    assert worn_files([]) == []


def test_small_files_are_put_together_when_they_are_many() -> None:
    assert worn_files([*in_order(10), *files(40, 1000)]) == []
    assert worn_files([*in_order(10), *files(41, 1000)]) == files(41, 1000)


def test_files_with_many_deleted_rows_are_written_anew() -> None:
    assert worn_files([*in_order(10), *files(1, deleted=200)]) == []
    assert worn_files([*in_order(10), *files(1, deleted=201)]) == files(1, deleted=201)
    assert worn_files(files(1, 1000, deleted=900)) == [], "a small one is not worth a commit"


def test_files_over_one_another_are_put_in_order() -> None:
    wide = files(7, low=3, high=9995)
    chosen = worn_files([*in_order(1000), *wide])
    assert set(wide) < set(chosen)
    assert len(chosen) == 8, "and the one file of those in order that they lie over"
    assert worn_files([*in_order(1000), *wide[:6]]) == []


def test_files_that_cannot_be_divided_are_left_alone() -> None:
    assert worn_files(files(100, low=5, high=5)) == []
    assert worn_files(files(100)) == [], "nothing is known of their keys"


def test_a_step_is_limited() -> None:
    assert len(worn_files(files(100, deleted=900), step=640 * MB)) == 10
    assert len(worn_files(files(3, 900 * MB, deleted=900), step=640 * MB)) == 1, "but it does something"


def test_steps_come_to_an_end() -> None:
    """Files with keys all over the table, as a first copy of random keys has them."""
    chance = random.Random(1)
    table = [FileState(f"copied {n}", 64 * MB, 1000, 0, *sorted(chance.sample(range(100_000), 2))) for n in range(300)]
    for step in range(1000):
        chosen = worn_files(table)
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
