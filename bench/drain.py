"""How fast a topic fills, as consumers with ``read_committed`` see it, and the CPU time of those who fill it.

The end of the committed messages is sampled while the topic fills, with the CPU time of the processes: a consumer of
every message would take the cores from them. The messages are read afterwards, to count them at each sample, because
offsets also count the markers of transactions.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import psutil
from confluent_kafka import Consumer, KafkaException, TopicPartition

from penstock.errors import TransientError

__all__ = ["Drain", "Drained", "Topic", "cpu_seconds"]

_SAMPLE_SECONDS = 0.02
_STABLE_SECONDS = 1.0
_MARKER_SECONDS = 1.0
"""How long a read waits for messages: markers of transactions may be all that is left."""
_PATIENCE = 600.0


@dataclass(frozen=True)
class Drained:
    """The part of a drain that was measured."""

    messages: int
    seconds: float
    cpu_seconds: float
    """The CPU time of the candidate's processes."""
    machine_seconds: float
    """The CPU time of all processes of this machine, servers included."""

    @property
    def rate(self) -> float:
        """Messages per second."""
        return self.messages / self.seconds

    @property
    def cpu_per_million(self) -> float:
        """CPU seconds for a million messages."""
        return self.cpu_seconds / self.messages * 1e6

    @property
    def busy_cores(self) -> float:
        """The number of cores that were busy, with any process."""
        return self.machine_seconds / self.seconds


class Topic:
    """The committed messages of a topic with one partition, from the end of the previous drain on."""

    def __init__(self, bootstrap: str, name: str) -> None:
        self._place = TopicPartition(name, 0)
        self._reader = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "unused",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "allow.auto.create.topics": False,
                "log_level": 0,
            }
        )
        self.read = 0
        """The offset of the first message that was not read."""

    def end(self) -> int:
        """Return the end of the committed messages; 0 for a topic that does not exist."""
        with suppress(KafkaException):
            end: int = self._reader.get_watermark_offsets(self._place, timeout=10.0)[1]
            return end
        return 0

    def offsets(self, upto: int) -> npt.NDArray[np.int64]:
        """Read the messages before an offset; return their offsets."""
        found: list[int] = []
        self._reader.assign([TopicPartition(self._place.topic, 0, self.read)])
        idle_since = time.monotonic()
        while self.read < upto and time.monotonic() < idle_since + _MARKER_SECONDS:
            messages = [each for each in self._reader.consume(10_000, 0.1) if each.error() is None]
            if messages:
                found += [each.offset() or 0 for each in messages]
                self.read, idle_since = found[-1] + 1, time.monotonic()
        self._reader.unassign()
        self.read = upto
        return np.array(found, np.int64)

    def close(self) -> None:
        """Close the connection."""
        self._reader.close()


class Drain:
    """Samples a topic until it has a number of new messages."""

    def __init__(self, topic: Topic, messages: int, pids: Callable[[], Sequence[int]]) -> None:
        """Sample until `messages` are committed; `pids` are the processes whose CPU time counts."""
        self._topic, self._messages, self._pids = topic, messages, pids
        self._samples: list[tuple[float, int, float, float]] = []
        self._offsets = np.zeros(0, np.int64)
        deadline = time.monotonic() + _PATIENCE
        wanted = topic.read + messages
        while len(self._offsets) < messages:
            self._sample(wanted, deadline)
            self._offsets = np.concatenate([self._offsets, topic.offsets(self._samples[-1][1])])

    def since_first_commit(self) -> Drained:
        """Return the figures from the first commit on, without its messages: when work for them began is unknown.

        If there is only one commit, the figures are those of the whole drain, with the start of the processes.
        """
        times, counts, cpu, machine = self._columns()
        first, last = int(np.argmax(counts > 0)), int(np.argmax(counts >= self._messages))
        first = first if first < last else 0
        messages, seconds, used, all_used = (column[last] - column[first] for column in (counts, times, cpu, machine))
        return Drained(int(messages), float(seconds), float(used), float(all_used))

    def since(self, began: float) -> Drained:
        """Return the figures from a time on, in seconds since 1970."""
        times, counts, cpu, machine = self._columns()
        last = int(np.argmax(counts >= self._messages))
        used, all_used = (column[last] - np.interp(began, times, column) for column in (cpu, machine))
        return Drained(int(counts[last]), float(times[last] - began), float(used), float(all_used))

    def _columns(self) -> tuple[npt.NDArray[Any], ...]:
        """Return the times of samples, the number of messages that were committed, and the CPU times."""
        times, ends, cpu, machine = (np.array(column) for column in zip(*self._samples, strict=True))
        return times, np.searchsorted(self._offsets, ends), cpu, machine

    def _sample(self, wanted: int, deadline: float) -> None:
        """Sample until the topic has this end and stays the same for a while: markers of transactions count as well."""
        changed = time.monotonic()
        while not self._samples or self._samples[-1][1] < wanted or time.monotonic() < changed + _STABLE_SECONDS:
            if time.monotonic() > deadline:
                message = f"the topic has fewer than {self._messages} committed messages after {_PATIENCE:.0f} s"
                raise TransientError(message, "Check the logs of the servers, or use a faster machine.")
            before = self._samples[-1][1] if self._samples else -1
            used = sum(map(cpu_seconds, self._pids())), _machine_seconds()
            self._samples.append((time.time(), self._topic.end(), *used))
            if self._samples[-1][1] != before:
                changed = time.monotonic()
            time.sleep(_SAMPLE_SECONDS)


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process, all of its threads; 0 if it has ended."""
    with suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return 0.0


def _machine_seconds() -> float:
    """Return the CPU time of all processes together."""
    times = psutil.cpu_times()
    return float(times.user + times.nice + times.system + times.irq + times.softirq)
