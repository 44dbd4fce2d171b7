"""Where things lie in a home.

::

    home/
      penstock.db        the catalog
      log/SOURCE.db      the change log of a source
      lake/SOURCE/TABLE  its base tables (Delta)
      state/SOURCE/      what its instance keeps beside the log
      secrets/SOURCE/    secrets that were given in clear; the owner alone reads them
      run/               locks, and what capture processes say
"""

from __future__ import annotations

from pathlib import Path

__all__ = [
    "base_path",
    "capture_log_path",
    "catalog_path",
    "defects_path",
    "lake_path",
    "log_path",
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
    """Return the folder of the messages that a table could not take in, by its local name."""
    return lake_path(home, source) / ".quarantine" / table


def repair_path(home: Path, source: str, repair: int) -> Path:
    """Return the folder in which a repair keeps the rows that it read, while it lasts."""
    return lake_path(home, source) / ".repairs" / str(repair)


def secrets_path(home: Path, source: str) -> Path:
    """Return the folder that keeps the secrets of a source, where somebody gave them in clear."""
    return home / "secrets" / source


def state_path(home: Path, source: str) -> Path:
    """Return the folder in which the instance of a source keeps what it likes."""
    return home / "state" / source


def run_path(home: Path) -> Path:
    """Return the folder that tells of a running instance."""
    return home / "run"


def capture_log_path(home: Path, source: str) -> Path:
    """Return the file into which the capture process of a source writes what it says."""
    return run_path(home) / f"capture-{source}.log"


def defects_path(home: Path, source: str) -> Path:
    """Return the file that tells where exceptions came from that nobody expected, in copy and apply of a source."""
    return run_path(home) / f"defects-{source}.log"
