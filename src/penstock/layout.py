"""The paths of files and folders in a home.

::

    home/
      penstock.db        the catalog
      log/SOURCE.db      the change log of a source
      lake/SOURCE/TABLE  its base tables (Delta)
      state/SOURCE/      files that its instance keeps in addition to the log
      secrets/SOURCE/    secrets that were given as plaintext, readable by the owner only (secrets/sink-SINK/ of sinks)
      logs/              the log of the running process, readable by the owner only
      run/               locks, the state of the running process, and the output of capture processes
"""

from __future__ import annotations

from pathlib import Path

__all__ = [
    "base_path",
    "capture_log_path",
    "catalog_path",
    "defects_path",
    "event_log_path",
    "lake_path",
    "log_path",
    "process_path",
    "quarantine_path",
    "repair_path",
    "run_path",
    "secrets_path",
    "state_path",
]


def catalog_path(home: Path) -> Path:
    """Return the catalog's file."""
    return home / "penstock.db"


def log_path(home: Path, source: str) -> Path:
    """Return the change log of a source."""
    return home / "log" / f"{source}.db"


def lake_path(home: Path, source: str) -> Path:
    """Return the folder of a source's base tables."""
    return home / "lake" / source


def base_path(home: Path, source: str, table: str) -> Path:
    """Return the folder of one base table, by its local name."""
    return lake_path(home, source) / table


def quarantine_path(home: Path, source: str, table: str) -> Path:
    """Return the folder of a table's quarantined messages, by its local name."""
    return lake_path(home, source) / ".quarantine" / table


def repair_path(home: Path, source: str, repair: int) -> Path:
    """Return the folder in which a repair stages the rows that it read; it is removed when the repair ends."""
    return lake_path(home, source) / ".repairs" / str(repair)


def secrets_path(home: Path, source: str) -> Path:
    """Return the folder of the secrets of a source that were given as plaintext."""
    return home / "secrets" / source


def state_path(home: Path, source: str) -> Path:
    """Return the folder in which the instance of a source keeps files of its own."""
    return home / "state" / source


def run_path(home: Path) -> Path:
    """Return the folder of locks and process logs."""
    return home / "run"


def process_path(home: Path) -> Path:
    """Return the file with the state of the process that runs the home."""
    return run_path(home) / "process.json"


def capture_log_path(home: Path, source: str) -> Path:
    """Return the file that receives the output of a source's capture process."""
    return run_path(home) / f"capture-{source}.log"


def event_log_path(home: Path) -> Path:
    """Return the log of the running home: JSON lines; older files have a number appended."""
    return home / "logs" / "penstock.log"


def defects_path(home: Path, source: str) -> Path:
    """Return the file that records the stacks of unexpected exceptions in a source's snapshot, apply and repair."""
    return run_path(home) / f"defects-{source}.log"
