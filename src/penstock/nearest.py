"""A name that is not known, answered with the nearest one that is."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = ["nearest"]


def nearest(wanted: str, known: Iterable[str]) -> str:
    """Suggest the nearest of the known names, as the end of a sentence; nothing where none is near."""
    found = difflib.get_close_matches(wanted, list(known), 1)
    return f"Did you mean {found[0]}?" if found else ""
