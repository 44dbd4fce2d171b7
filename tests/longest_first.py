"""The order in which files of tests are handed to workers: those that take longest come first.

`make test` gives each worker whole files, one at a time, so that what a file shares is made once. A long file that is
begun last keeps one worker busy while the others have nothing left to do. Only workers reorder: a run in one process
stays in the order of the folders.

The order is of measured times, and need not be exact: what matters is that no file of more than a minute is missing.
`pytest --durations=50` shows them. Between those of `end_to_end`, which start several JVMs each, stand two others, so
that few of them run at once.
"""

from __future__ import annotations

import pytest

__all__ = ["LONGEST", "longest_first"]

LONGEST = (
    "tests/end_to_end/test_kill.py",
    "tests/test_bench.py",
    "tests/control/test_altering.py",
    "tests/end_to_end/test_debezium.py",
    "tests/control/test_topics.py",
    "tests/envelopes/test_real_debezium.py",
    "tests/end_to_end/test_cluster.py",
    "tests/control/test_repair.py",
    "tests/tables/test_base.py",
    "tests/end_to_end/test_bank.py",
    "tests/control/test_copies.py",
    "tests/control/test_copying.py",
    "tests/end_to_end/test_whole_path.py",
    "tests/control/test_as_of.py",
    "tests/control/test_shards.py",
    "tests/end_to_end/test_chunked_kill.py",
    "tests/tables/test_overlay.py",
    "tests/tables/test_histories.py",
    "tests/end_to_end/test_demo.py",
    "tests/control/test_schema_changes.py",
    "tests/control/test_upkeeping.py",
    "tests/cli/test_verify.py",
    "tests/tables/test_bounds.py",
    "tests/tables/test_upkeep.py",
    "tests/tables/test_compare.py",
    "tests/spark/test_session.py",
    "tests/control/test_other_kinds.py",
    "tests/changelog/test_sqlite_damage.py",
    "tests/control/test_beside.py",
    "tests/tables/test_fold.py",
    "tests/spark/test_restarts.py",
    "tests/spark/test_connect.py",
    "tests/changelog/test_kafka_faults.py",
)
"""Files, as ids of tests begin."""


def longest_first(items: list[pytest.Item]) -> None:
    """Bring tests into this order, in place; the rest follows as it was."""
    place = {file: number for number, file in enumerate(LONGEST)}
    items.sort(key=lambda item: place.get(item.nodeid.partition("::")[0], len(LONGEST)))
