"""A name that is not known, answered with the nearest one that is."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = ["nearest"]


def nearest(wanted: str, known: Iterable[str]) -> str:
    """Suggest the nearest of the known names, as the end of a sentence, in any case; nothing where none is near."""
    by_case = {name.casefold(): name for name in known}
    found = difflib.get_close_matches(wanted.casefold(), list(by_case), 1)
    return f"Did you mean {by_case[found[0]]}?" if found else ""
