"""Compile all kernels ahead of time: ``python -m penstock.sources.postgres.warm``.

They are cached on disk (`penstock.kernel_cache`), so this is done once per installation and user; otherwise the first
capture and the first copy compile them.
"""

from __future__ import annotations

import importlib

from penstock.sources.postgres import types

__all__ = ["warm"]


def warm() -> None:
    """Compile every kernel of capture and copy, or load it from the cache."""
    # Kernels with signatures are compiled on import.
    for module in ("replication.pump", "pgoutput.scan", "snapshot.copy_format"):
        importlib.import_module(f"penstock.sources.postgres.{module}")
    types.warm()


if __name__ == "__main__":
    warm()
