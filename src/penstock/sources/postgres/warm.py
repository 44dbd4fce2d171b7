"""Compile all kernels ahead of time: ``python -m penstock.sources.postgres.warm``.

They are cached on disk beside their modules, so this is done once per installation; without it the first capture and
the first copy do it.
"""

from __future__ import annotations

import importlib

from penstock.sources.postgres import types

__all__ = ["warm"]


def warm() -> None:
    """Compile, or load from the cache, every kernel of capture and copy."""
    for module in ("pump", "scan", "copy"):  # their kernels have signatures: they are compiled on import
        importlib.import_module(f"penstock.sources.postgres.{module}")
    types.warm()


if __name__ == "__main__":
    warm()
