"""Penstock: Postgres tables in Apache Spark, live and transaction-consistent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.errors import DefiniteError, PenstockError, TableError, TransientError, UsageError
from penstock.positions import Lsn

if TYPE_CHECKING:
    from penstock.changelog.transactions import Transaction
    from penstock.home import Home
    from penstock.home import open_home as connect
    from penstock.home import open_home as open
    from penstock.live import Live
    from penstock.spark.session import configure, session

__all__ = [
    "DefiniteError",
    "Home",
    "Live",
    "Lsn",
    "PenstockError",
    "TableError",
    "Transaction",
    "TransientError",
    "UsageError",
    "configure",
    "connect",
    "open",
    "session",
]

_LATER = {
    "Home": ("penstock.home", "Home"),
    "Live": ("penstock.live", "Live"),
    "Transaction": ("penstock.changelog.transactions", "Transaction"),
    "configure": ("penstock.spark.session", "configure"),
    "connect": ("penstock.home", "open_home"),
    "open": ("penstock.home", "open_home"),
    "session": ("penstock.spark.session", "session"),
}


def __getattr__(name: str) -> Any:
    """Import names that need Spark on first access, so that Spark workers and the capture process never load it."""
    if name not in _LATER:
        message = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(message)
    import importlib

    module, attribute = _LATER[name]
    return getattr(importlib.import_module(module), attribute)
