"""What a fixed batch costs as the table grows: ours against by hand, with recent keys and with random ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Protocol

from bench.rounds import Sample, Spread, alternate, median_ratio, print_table

__all__ = ["RANDOM", "RECENT", "Growing", "first_key", "grown"]

RECENT, RANDOM = "recent", "random"


class Growing(Protocol):
    """A table of one size, and the batches for it."""

    rows: int
    batch: int
    """How many changes a batch has."""

    def applied(self, keys: str) -> Iterator[Sample]:
        """Apply one batch after the other as Penstock does it."""

    def by_hand(self, keys: str) -> Iterator[Sample]:
        """Apply the same batches by hand."""


def first_key(rows: int, keys: str) -> int:
    """Return from which key on a batch of a table chooses: recent ones are the newest 5 %."""
    return rows * 19 // 20 if keys == RECENT else 0


def grown(tables: Sequence[Growing], rounds: int, what: str) -> float:
    """Measure tables of two sizes, print, and return what the larger costs, with recent keys, over the smaller."""
    found = {keys: _measured(tables, keys, rounds) for keys in (RECENT, RANDOM)}
    shown = []
    for keys, samples in found.items():
        for table in tables:
            subject, reference = samples[f"{table.rows} ours"], samples[f"{table.rows} by hand"]
            times = [Spread.of([s.seconds for s in taken]) for taken in (subject, reference)]
            ratio, rate = median_ratio(subject, reference), table.batch / times[0].median
            cells = [*(time.show(".2f") for time in times), ratio.show(".2f"), f"{rate:,.0f}"]
            shown.append([f"{table.rows:,} rows", keys, *cells])
    header = ("table", "keys", "seconds", "seconds by hand", "ours / by hand", f"{what}/s")
    print_table(f"a batch of {tables[0].batch:,} {what}, {rounds} rounds: least / median / most", header, shown)
    ratios = {keys: _ratio(samples, tables) for keys, samples in found.items()}
    print(", ".join(f"{keys} keys: {each:.2f} times the cost for 10 times the rows" for keys, each in ratios.items()))
    return ratios[RECENT]


def _ratio(samples: dict[str, list[Sample]], tables: Sequence[Growing]) -> float:
    small, large = (Spread.of([s.seconds for s in samples[f"{table.rows} ours"]]).median for table in tables)
    return large / small


def _measured(tables: Sequence[Growing], keys: str, rounds: int) -> dict[str, list[Sample]]:
    """Let all take turns; the first round is not counted."""
    contestants = {}
    for table in tables:
        contestants[f"{table.rows} ours"] = table.applied(keys)
        contestants[f"{table.rows} by hand"] = table.by_hand(keys)
    found = alternate({name: partial(_next, taken) for name, taken in contestants.items()}, rounds + 1)
    return {name: samples[1:] for name, samples in found.items()}


def _next(taken: Iterator[Sample], _: int) -> Sample:
    return next(taken)
