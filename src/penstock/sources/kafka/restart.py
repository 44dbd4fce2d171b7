"""The statement that restarts a source with the current content of its topics, if a topic cannot be resumed.

The table of a source with one topic can be read again by itself. Tables of several topics share their ticks, and those
with transaction metadata their positions: none of them can restart alone.
"""

from __future__ import annotations

from penstock.sources.kafka.sql_options import KafkaSqlOptions

__all__ = ["can_restart_table", "restart_hint"]


def can_restart_table(what: KafkaSqlOptions) -> bool:
    """Return whether the table of a source can be read again without recreating the source."""
    return len(what.names()) == 1 and what.envelope.transaction_metadata_topic is None


def restart_hint(source: str, what: KafkaSqlOptions) -> str:
    """Return the hint with the statements, the one that loses least first."""
    drop = f"DROP SOURCES {source}; then create it again."
    if not can_restart_table(what):
        return f"To restart with the current messages of the topics: {drop}"
    retry = f"ALTER SOURCES {source} RETRY TABLE {source};"
    return f"To restart with the current messages of the topic: {retry} If that is rejected: {drop}"
