"""The kind ``FILE``: a source that reads a folder of files."""

from __future__ import annotations

from penstock.sources.files.source import FileConfig, FileSource
from penstock.sources.interface import InstanceFactory, Kind
from penstock.sources.polling import PollingFactory

__all__ = ["KIND"]


def _factory() -> InstanceFactory:
    from penstock.sources.files.instance import FileInstance

    return PollingFactory(FileInstance)


KIND = Kind(FileSource, FileConfig, _factory)
