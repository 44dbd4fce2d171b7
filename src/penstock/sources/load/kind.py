"""The kind ``LOAD GENERATOR``: a source that generates a load."""

from __future__ import annotations

from penstock.sources.interface import Kind
from penstock.sources.load.source import LoadConfig, LoadInstance, LoadSource
from penstock.sources.polling import PollingFactory

__all__ = ["KIND"]

KIND = Kind(LoadSource, LoadConfig, lambda: PollingFactory(LoadInstance))
