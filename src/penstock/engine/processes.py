"""The processes of a running home, and the memory, processor time, threads and files that they use.

They are found from the pid of the running process: its capture processes by their module and source, Spark's JVM by
its program, and the Python workers of Spark below it. All other children count as ``other``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import psutil

__all__ = ["ProcessUsage", "process_usage"]

_CAPTURE = "penstock.engine.capture_process"


@dataclass(frozen=True)
class ProcessUsage:
    """The usage of the processes of one kind: ``run``, ``capture``, ``jvm``, ``worker`` or ``other``.

    `source` is the source of a capture process, and empty otherwise.
    """

    process: str
    source: str
    resident_bytes: int
    cpu_seconds: float
    threads: int
    open_files: int


def process_usage(pid: int | None) -> list[ProcessUsage]:
    """Return the usage of a running home, by kind and source; an empty list if no process runs it."""
    found: dict[tuple[str, str], ProcessUsage] = {}
    for each in _usages(pid) if pid is not None else ():
        known = found.get((each.process, each.source))
        found[each.process, each.source] = each if known is None else _sum(known, each)
    return [found[kind] for kind in sorted(found)]


def _usages(pid: int) -> Iterator[ProcessUsage]:
    try:
        running = psutil.Process(pid)
        processes = [running, *running.children(recursive=True)]
    except psutil.Error:
        return
    for process in processes:
        try:
            with process.oneshot():
                kind, source = ("run", "") if process == running else _kind(process)
                times = process.cpu_times()
                used = (process.memory_info().rss, times.user + times.system, process.num_threads(), process.num_fds())
        except psutil.Error:  # it has just ended, or belongs to another user
            continue
        yield ProcessUsage(kind, source, *used)


def _kind(process: psutil.Process) -> tuple[str, str]:
    command = process.cmdline()
    if _CAPTURE in command and command.index(_CAPTURE) + 2 < len(command):
        return "capture", command[command.index(_CAPTURE) + 2]
    if process.name() == "java":
        return "jvm", ""
    return ("worker", "") if "pyspark.daemon" in command else ("other", "")


def _sum(one: ProcessUsage, other: ProcessUsage) -> ProcessUsage:
    return ProcessUsage(
        one.process,
        one.source,
        one.resident_bytes + other.resident_bytes,
        one.cpu_seconds + other.cpu_seconds,
        one.threads + other.threads,
        one.open_files + other.open_files,
    )
