"""``python -m penstock.cli``: the same as ``penstock``."""

from __future__ import annotations

from penstock.cli.main import main

__all__ = ["main"]

main()
