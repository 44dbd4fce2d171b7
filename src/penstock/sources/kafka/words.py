"""Values that are one of a few words, read in any case."""

from __future__ import annotations

import enum
from typing import Self

__all__ = ["Word"]


class Word(enum.StrEnum):
    """An enum whose values may be written in upper or lower case: ``SASL_SSL`` and ``sasl_ssl`` are the same."""

    @classmethod
    def _missing_(cls, value: object) -> Self | None:
        wanted = value.casefold() if isinstance(value, str) else None
        return next((word for word in cls if word.value.casefold() == wanted), None)
