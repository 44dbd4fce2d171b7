"""Restarting with what topics have, where a topic cannot be continued: the statement that does it.

The table of a source with one topic can be read again by itself. Tables of several topics share their ticks, and those
with transaction metadata their positions: none of them can start again alone.
"""

from __future__ import annotations

from penstock.sources.kafka.sql_options import KafkaSqlOptions

__all__ = ["begins_alone", "how_to_begin_anew"]


def begins_alone(what: KafkaSqlOptions) -> bool:
    """Say whether the table of a source can be read anew without the source being made again."""
    return len(what.names()) == 1 and what.envelope.transaction_metadata_topic is None


def how_to_begin_anew(source: str, what: KafkaSqlOptions) -> str:
    """Say what to do: what loses least first."""
    drop = f"DROP SOURCES {source}; then create it again."
    if not begins_alone(what):
        return f"Begin anew with what the topics have: {drop}"
    retry = f"ALTER SOURCES {source} RETRY TABLE {source};"
    return f"Begin anew with what the topic has: {retry} Where that is refused: {drop}"
