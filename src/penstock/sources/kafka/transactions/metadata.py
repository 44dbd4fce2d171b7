"""The metadata topic as a value, as a config stores it."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from penstock.formats import ResolvedFormat
from penstock.sources.kafka.topic_table import SourceTopic

__all__ = ["TransactionMetadata"]


class TransactionMetadata(BaseModel):
    """The topic to which Debezium writes transaction metadata."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    topic: SourceTopic
    format: ResolvedFormat
    """The format of its values."""
    routes: dict[str, str] = Field(default_factory=dict)
    """Topics by table (``schema.table``), for topics not named after their table; see `routes`."""
