"""The paths of files and folders in a home.

::

    home/
      penstock.db        the catalog
      log/SOURCE.db      the change log of a source
      lake/SOURCE/TABLE  its base tables (Delta), see `folder_name`
      state/SOURCE/      files that its instance keeps in addition to the log
      secrets/SOURCE/    secrets that were given as plaintext (secrets/sink-SINK/ of sinks)
      logs/              the log of the running process
      run/               locks, the state of the running process, the output of capture processes, and the token of
                         Spark Connect

Other users can enter none of these folders, nor read the catalog, even in a home that was created for all to read.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

__all__ = [
    "base_path",
    "capture_log_path",
    "catalog_path",
    "connect_token_path",
    "defects_path",
    "event_log_path",
    "folder_name",
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
    return lake_path(home, source) / folder_name(table)


def folder_name(table: str) -> str:
    """Return the folder of a table in the lake, by its local name.

    A plain name is its own folder. Names are given upstream, and others mean something to a file system, to Delta or to
    Spark: ``..``, ``a/b``, ``_delta_log``, ``.hidden``, ``year=2024``, ``50%``. Of such a name, and of a long one, the
    folder has the plain characters and a hash; no plain name contains the ``~`` between them.
    """
    if _PLAIN.fullmatch(table) and len(table.encode()) <= _LONGEST:
        return table
    plain = _NOT_PLAIN.sub("_", table).strip("_")[:_SHORTENED]
    return f"{plain}~{hashlib.sha256(table.encode()).hexdigest()[:16]}"


_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
_NOT_PLAIN = re.compile(r"[^A-Za-z0-9]+")
_LONGEST, _SHORTENED = 100, 40


def quarantine_path(home: Path, source: str, table: str) -> Path:
    """Return the folder of a table's quarantined messages, by its local name."""
    return lake_path(home, source) / ".quarantine" / folder_name(table)


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


def connect_token_path(home: Path) -> Path:
    """Return the file with the token that clients of Spark Connect have to send."""
    return run_path(home) / "connect.token"


def capture_log_path(home: Path, source: str) -> Path:
    """Return the file that receives the output of a source's capture process."""
    return run_path(home) / f"capture-{source}.log"


def event_log_path(home: Path) -> Path:
    """Return the log of the running home: JSON lines; older files have a number appended."""
    return home / "logs" / "penstock.log"


def defects_path(home: Path, source: str) -> Path:
    """Return the file that records the stacks of unexpected exceptions in a source's snapshot, apply and repair."""
    return run_path(home) / f"defects-{source}.log"
