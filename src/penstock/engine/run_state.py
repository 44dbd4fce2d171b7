"""The state of the process that runs a home, in the file `run/process.json`, for the status in other processes.

The file is replaced atomically at each change. It counts only while the process that wrote it holds the home.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from penstock.engine.locks import holder
from penstock.layout import process_path
from penstock.private_file import replace_file

__all__ = ["ALARM_LOSSES", "ALARM_SPAN", "RunState", "read_run_state", "write_run_state"]

ALARM_LOSSES = 3
ALARM_SPAN = timedelta(minutes=10)
"""So many losses of Spark within this time are an alarm."""
_KEPT = 20


@dataclass(frozen=True)
class RunState:
    """The process that runs a home.

    `state` is ``starting``, ``running``, ``restarting Spark`` or ``stopping``, and `since` the time of its last change.
    `restarts` is the number of times that Spark was lost and started again, and `lost` the times of the last losses.
    `error` says why Spark could not be started, if that failed.
    """

    pid: int
    state: str
    since: str
    started: str
    restarts: int = 0
    lost: list[str] = field(default_factory=list)
    error: str | None = None

    def alarm(self, now: datetime | None = None) -> str | None:
        """Return a message if Spark was lost, or could not be started, repeatedly in the last minutes; else None."""
        after = (now or datetime.now(UTC)) - ALARM_SPAN
        recent = sum(datetime.fromisoformat(lost) > after for lost in self.lost)
        if recent < ALARM_LOSSES:
            return None
        if self.error:
            return f"Spark cannot be started: {self.error}"
        minutes = ALARM_SPAN.total_seconds() / 60
        return f"Spark's JVM ended {recent} times in the last {minutes:.0f} minutes; it is restarted each time"

    def losing(self, at: str) -> list[str]:
        """Return the times of the last losses, with another one."""
        return [*self.lost, at][-_KEPT:]


def write_run_state(home: Path, state: RunState) -> None:
    """Replace the file; only the process that runs the home calls this."""
    replace_file(process_path(home), json.dumps(asdict(state)))


def read_run_state(home: Path) -> RunState | None:
    """Return the state of the process that runs the home, or None if no process does, or it has no supervisor."""
    try:
        found = RunState(**json.loads(process_path(home).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None
    return found if found.pid == holder(home) else None
