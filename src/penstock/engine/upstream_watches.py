"""The upstream systems of a home, asked again and again by one thread that shows its status.

Each source keeps its connection between two questions: a connection per question would be more than 80,000 a day.
"""

from __future__ import annotations

from penstock.catalog.store import SourceRecord
from penstock.engine.catalog_records import instance_of
from penstock.sources.interface import InstanceConfig
from penstock.sources.upstream_status import UpstreamStatus, UpstreamWatch

__all__ = ["UpstreamWatches"]


class UpstreamWatches:
    """The watches of all sources of a home, until `close`."""

    def __init__(self) -> None:
        self._watches: dict[str, tuple[InstanceConfig, UpstreamWatch]] = {}

    def status(self, source: SourceRecord) -> UpstreamStatus | None:
        """Ask the upstream system of a source; a source whose config has changed is connected again."""
        instance = instance_of(source)
        known = self._watches.get(source.name)
        if known is None or known[0] != instance:
            if known is not None:
                known[1].close()
            known = self._watches[source.name] = instance, instance.upstream_watch()
        return known[1].status()

    def keep(self, sources: set[str]) -> None:
        """Close the watches of all other sources."""
        for name in self._watches.keys() - sources:
            self._watches.pop(name)[1].close()

    def close(self) -> None:
        """Close all connections."""
        self.keep(set())
