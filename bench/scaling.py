"""Cost of a fixed batch as the table grows: Penstock compared with hand-written code, with recent and random keys."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Protocol

from bench.rounds import Sample, Spread, alternate, median_ratio, print_table, warm_rounds

__all__ = ["RANDOM", "RECENT", "ScaledTable", "first_key", "growth_ratio"]

RECENT, RANDOM = "recent", "random"


class ScaledTable(Protocol):
    """A table of one size, and its batches."""

    rows: int
    batch: int
    """The number of changes of a batch."""

    def apply_batches(self, keys: str) -> Iterator[Sample]:
        """Apply one batch after the other with Penstock."""

    def merge_by_hand(self, keys: str) -> Iterator[Sample]:
        """Apply the same batches with hand-written code."""


def first_key(rows: int, keys: str) -> int:
    """Return the lowest key that a batch may change: recent keys are the newest 5 %."""
    return rows * 19 // 20 if keys == RECENT else 0


def growth_ratio(tables: Sequence[ScaledTable], rounds: int, unit: str) -> float:
    """Measure tables of two sizes, print, and return the cost ratio of the larger to the smaller with recent keys."""
    found = {keys: _measured(tables, keys, rounds) for keys in (RECENT, RANDOM)}
    shown = []
    for keys, samples in found.items():
        for table in tables:
            subject, reference = samples[f"{table.rows} penstock"], samples[f"{table.rows} by hand"]
            times = [Spread.of([s.seconds for s in taken]) for taken in (subject, reference)]
            ratio, rate = median_ratio(subject, reference), table.batch / times[0].median
            cells = [*(time.show(".2f") for time in times), ratio.show(".2f"), f"{rate:,.0f}"]
            shown.append([f"{table.rows:,} rows", keys, *cells])
    header = ("table", "keys", "seconds", "seconds by hand", "penstock / by hand", f"{unit}/s")
    print_table(f"a batch of {tables[0].batch:,} {unit}, {rounds} rounds: min / median / max", header, shown)
    ratios = {keys: _ratio(samples, tables) for keys, samples in found.items()}
    print(", ".join(f"{keys} keys: {each:.2f} times the cost with 10 times the rows" for keys, each in ratios.items()))
    return ratios[RECENT]


def _ratio(samples: dict[str, list[Sample]], tables: Sequence[ScaledTable]) -> float:
    small, large = (Spread.of([s.seconds for s in samples[f"{table.rows} penstock"]]).median for table in tables)
    return large / small


def _measured(tables: Sequence[ScaledTable], keys: str, rounds: int) -> dict[str, list[Sample]]:
    """Alternate between all; the warm-up is not counted."""
    warm = warm_rounds()
    candidates = {}
    for table in tables:
        candidates[f"{table.rows} penstock"] = table.apply_batches(keys)
        candidates[f"{table.rows} by hand"] = table.merge_by_hand(keys)
    found = alternate({name: partial(_next, taken) for name, taken in candidates.items()}, rounds + warm)
    return {name: samples[warm:] for name, samples in found.items()}


def _next(taken: Iterator[Sample], _: int) -> Sample:
    return next(taken)
