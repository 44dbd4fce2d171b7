"""Tests wait for conditions: none of them sleeps, or measures the machine, except where that is listed with a reason.

``penstock.testing.waiting`` has what to use instead.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
CLOCKS = {"monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "time", "time_ns"}

SLEEPS = {
    "changelog/crashing.py killed_writer": "the random point at which the writer is killed",
    "changelog/test_sqlite.py test_kill_9_between_and_inside_publishes": "the point at which the writer is killed",
    "engine/shop.py Shop.writing.write": "the writer paces itself",
    "engine/test_as_of.py test_two_sources_at_one_moment": "the writer paces itself",
    "engine/test_keeping.py Clock.__init__": "the keeper sleeps, on a clock that the test moves",
    "debezium/histories.py Tellers.work": "the writer paces itself",
    "embedded/test_postgres.py test_kill_9_while_it_starts_removes_everything": "the point at which it is killed",
    "end_to_end/test_bank.py Bank._start_again": "how long the victim stays away, at random",
    "end_to_end/test_chunked_kill.py test_a_copy_in_chunks_goes_on_where_it_was": "the random point of a kill",
    "end_to_end/test_debezium.py": "how long the victim stays away, at random",
    "end_to_end/test_kill.py test_a_jvm_that_is_killed_at_any_moment_is_a_loss_that_passes": "the point of a kill",
    "sources/kafka/test_ticks_following.py test_killed_again_and_again_under_a_running_producer": "the point of a kill",
    "sources/kafka/test_ticks_following.py written_on.work": "the writer paces itself",
    "sources/kafka/transactions/test_following.py transfers.work": "the writer paces itself",
    "sources/postgres/test_failover.py Writer.run": "the writer rests before it connects again",
    "sources/postgres/test_instance.py insert_until.write": "the writer paces itself",
    "sources/postgres/test_keepalive.py slow_disk.slowly": "the sleep is the slow disk",
    "sources/postgres/test_keepalive.py test_a_slow_disk_does_not_end_the_stream": "the writer paces itself",
    "spark/test_restarts.py test_restarts": "the random point of a stop",
}
"""Where a test may sleep, and why: a file, or a file and a function. None of these waits for something."""

TIMES = {
    "time_budget.py skip_after_deadline": "the deadline of a run is a time",
    "mutations/trial.py": "how long a trial took is reported, not tested",
    "debezium/test_transactions.py follow": "a part may end no transaction; nothing depends on how long it has",
    "changelog/test_interface.py test_wait_gives_up": "a wait is not shorter than asked for: no machine is too slow",
    "changelog/test_retention.py": "commit times, made by the test",
    "engine/test_retention.py Tables.change": "commit times, made by the test",
    "demo/test_load.py test_the_rate_is_not_exceeded": "a load is not faster than asked for: no machine is too slow",
    "end_to_end/test_bank.py": "how long the campaign runs",
    "end_to_end/test_debezium.py": "how long the campaign runs",
    "matrix.py": "a report for people",
    "sources/files/test_capture.py test_killed_again_and_again_while_files_grow": "the point of a kill",
    "sources/kafka/test_ticks_following.py test_one_tick_for_a_moment_and_none_while_nothing_comes": (
        "ticks are not more frequent than asked for: no machine is too slow"
    ),
    "tables/test_upkeep.py": "times of files, set by the test",
}
"""Where a test may look at a clock, and why."""


def calls(tree: ast.AST, names: set[str], within: tuple[str, ...] = ()) -> Iterator[tuple[str, int]]:
    """Yield where functions of the module `time` are called: the enclosing definitions, and the line."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield from calls(node, names, (*within, node.name))
            continue
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if node.value.id == "time" and node.attr in names:
                yield ".".join(within), node.lineno
        elif isinstance(node, ast.ImportFrom) and node.module == "time":
            yield from ((".".join(within), node.lineno) for alias in node.names if alias.name in names)
        yield from calls(node, names, within)


def unlisted(names: set[str], allowed: dict[str, str]) -> tuple[list[str], set[str]]:
    """Return the calls that no entry allows, and the entries that allow none."""
    found, unused = [], set(allowed)
    for path in sorted(TESTS.rglob("*.py")):
        file, text = str(path.relative_to(TESTS)), path.read_text(encoding="utf-8")
        if "time" not in text:
            continue
        for where, line in calls(ast.parse(text), names):
            entries = {file, f"{file} {where}"}
            unused -= entries
            if not entries & allowed.keys():
                found.append(f"tests/{file}:{line} in {where or 'the module'}")
    return found, unused


@pytest.mark.parametrize(("names", "allowed"), [({"sleep"}, SLEEPS), (CLOCKS, TIMES)], ids=["sleeps", "clocks"])
def test_time_is_used_only_where_that_is_listed(names: set[str], allowed: dict[str, str]) -> None:
    found, unused = unlisted(names, allowed)
    assert found == [], "wait for a condition: penstock.testing.waiting.until"
    assert unused == set(), "these entries are not needed any more"


@pytest.mark.parametrize(
    ("program", "where"),
    [
        ("import time\ntime.sleep(1)", ""),
        ("class A:\n    def f(self):\n        while True:\n            time.sleep(1)", "A.f"),
        ("def f():\n    def g():\n        run(lambda: time.sleep(1))", "f.g"),
        ("def f(pause=time.sleep):\n    pass", "f"),
        ("from time import sleep", ""),
    ],
)
def test_a_sleep_is_found(program: str, where: str) -> None:
    assert [found for found, _ in calls(ast.parse(program), {"sleep"})] == [where]


def test_a_sleep_of_another_program_is_not_ours() -> None:
    assert list(calls(ast.parse("PROGRAM = 'import time; time.sleep(600)'"), {"sleep"})) == []
