"""What sinks of all kinds have: a name, a source, and a limit of the history that is retained for them."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

from pydantic import BaseModel, Field, field_validator

from penstock.errors import UsageError
from penstock.sources.interface import is_name
from penstock.sql.syntax.values import Span
from penstock.units import parse_duration

__all__ = ["NamedSink", "RetainLimit"]


class NamedSink(BaseModel):
    """The name of a sink, and of what it reads."""

    name: str
    source: str = Field(description="the name of the source, as the user gave it")

    @field_validator("name")
    @classmethod
    def _plain_name(cls, name: str) -> str:
        if not is_name(name):
            message = f"invalid sink name {name!r}"
            raise UsageError(
                message,
                "Use a lower-case letter, then lower-case letters, digits and underscores, at most 41 characters.",
            )
        return name


class RetainLimit(BaseModel):
    """The option that limits the history that a sink retains."""

    retain_limit: Annotated[str | None, Span()] = Field(
        default=None,
        description="how long history is retained for a sink that is behind; after that it stops with an error; "
        "default: no limit",
    )

    @field_validator("retain_limit")
    @classmethod
    def _is_a_duration(cls, text: str | None) -> str | None:
        if text is not None:
            parse_duration(text)
        return text

    def retain_limit_span(self) -> timedelta | None:
        """Return how long history is retained for a sink that is behind; None without a limit."""
        return None if self.retain_limit is None else parse_duration(self.retain_limit)
