"""``FROM FILE``: the types of a source that reads a folder."""

from __future__ import annotations

from penstock.sources.files.source import FileConfig, FileSource
from penstock.sources.interface import InstanceFactory, Kind
from penstock.sources.polling import SteppingFactory

__all__ = ["KIND"]


def _factory() -> InstanceFactory:
    from penstock.sources.files.instance import FileInstance

    return SteppingFactory(FileInstance)


KIND = Kind(FileSource, FileConfig, _factory)
