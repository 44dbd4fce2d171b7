"""Tests wait for conditions: no test sleeps or reads a clock, except those listed here with a reason.

Use ``penstock.testing.waiting`` instead.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
CLOCKS = {"monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "time", "time_ns"}

SLEEPS = {
    "changelog/writer_crashes.py killed_writer": "the random point at which the writer is killed",
    "changelog/test_sqlite.py test_kill_9_between_and_inside_publishes": "the point at which the writer is killed",
    "engine/shop.py Shop.writing.write": "the writer paces itself",
    "engine/test_as_of_views.py test_two_sources_are_consistent_at_one_time": "the writer paces itself",
    "engine/test_leases.py Clock.__init__": "the keeper sleeps, on a clock that the test moves",
    "debezium/histories.py Tellers.work": "the writer paces itself",
    "embedded/test_postgres.py test_kill_9_during_start_removes_everything": "the point at which it is killed",
    "end_to_end/test_bank.py Bank._restart": "the random downtime of the killed process",
    "end_to_end/test_incremental_snapshot_kill.py test_snapshot_resumes_after_a_kill": "the random point of a kill",
    "end_to_end/test_debezium.py": "the random downtime of the killed process",
    "end_to_end/test_sink_kill.py kill_and_check": "the random point of a kill",
    "end_to_end/function_home.py main": "the main thread has nothing to do",
    "end_to_end/test_kill.py test_run_survives_kills_of_the_jvm_and_of_capture": "the point of a kill",
    "soak.py _measure": "it looks at a running process once a second",
    "sources/kafka/test_tick_instance.py test_repeated_kills_under_a_running_producer": "the point of a kill",
    "sources/kafka/test_tick_instance.py background_writer.work": "the writer paces itself",
    "sources/kafka/transactions/test_instance.py transfers.work": "the writer paces itself",
    "sources/postgres/test_failover.py Writer.run": "the writer pauses before it reconnects",
    "sources/postgres/test_instance.py insert_until.write": "the writer paces itself",
    "sources/postgres/test_keepalive.py slow_disk.publish_slowly": "the sleep is the slow disk",
    "sources/postgres/test_keepalive.py test_slow_disk_does_not_end_the_stream": "the writer paces itself",
    "spark/test_stream_restarts.py test_restarts": "the random point of a stop",
}
"""Where a test may sleep, and why: a file, or a file and a function. None of these sleeps waits for a condition."""

TIMES = {
    "time_budget.py skip_after_deadline": "the deadline of a run is a time",
    "time_budget.py SharedSetup.pytest_fixture_setup": "durations are printed",
    "mutations/trial.py": "the duration of a trial is reported, not tested",
    "debezium/test_transactions.py follow": "a part may complete no transaction; no result depends on the duration",
    "changelog/test_interface.py test_wait_times_out": "a lower bound: holds on a slow machine",
    "changelog/test_retention.py": "commit times, set by the test",
    "engine/test_retention.py Tables.change": "commit times, set by the test",
    "sources/postgres/test_copy.py test_rate": "a lower bound: holds on a slow machine",
    "demo/test_load.py test_rate_is_not_exceeded": "a lower bound: holds on a slow machine",
    "end_to_end/test_bank.py": "how long the campaign runs",
    "end_to_end/test_debezium.py": "how long the campaign runs",
    "matrix.py": "durations are printed",
    "sources/files/test_capture.py test_repeated_kills_while_files_grow": "the point of a kill",
    "sources/kafka/test_tick_instance.py test_one_tick_per_interval_and_none_while_idle": (
        "a lower bound: holds on a slow machine"
    ),
    "soak.py _measure": "how long it runs",
    "tables/test_compaction.py": "times of files, set by the test",
}
"""Where a test may read a clock, and why."""


def calls(tree: ast.AST, names: set[str], within: tuple[str, ...] = ()) -> Iterator[tuple[str, int]]:
    """Yield the calls of functions of the module `time`: the enclosing definitions, and the line."""
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
    """Return the calls that no entry allows, and the unused entries."""
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
def test_sleeps_and_clocks_are_listed(names: set[str], allowed: dict[str, str]) -> None:
    found, unused = unlisted(names, allowed)
    assert found == [], "wait for a condition: penstock.testing.waiting.until"
    assert unused == set(), "remove these unused entries"


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


def test_sleep_inside_a_program_text_is_ignored() -> None:
    assert list(calls(ast.parse("PROGRAM = 'import time; time.sleep(600)'"), {"sleep"})) == []
