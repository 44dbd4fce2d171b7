"""Suggestions for misspelled names: the most similar known name."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = ["nearest"]


def nearest(wanted: str, known: Iterable[str], quote: str = "") -> str:
    """Return "Did you mean NAME?" with the most similar known name, ignoring case; empty if none is similar."""
    by_case = {name.casefold(): name for name in known}
    found = difflib.get_close_matches(wanted.casefold(), list(by_case), 1)
    return f"Did you mean {quote}{by_case[found[0]]}{quote}?" if found else ""
