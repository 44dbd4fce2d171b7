"""The metadata topic as a value: what a config stores of it."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from penstock.formats import ResolvedFormat
from penstock.sources.kafka.topic_table import FollowedTopic

__all__ = ["TransactionMetadata"]


class TransactionMetadata(BaseModel):
    """The topic in which Debezium says which changes are one transaction."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    topic: FollowedTopic
    format: ResolvedFormat
    """Of its values."""
    routes: dict[str, str] = Field(default_factory=dict)
    """Topics by table (``schema.table``), where they are not called by it; see `routes`."""
