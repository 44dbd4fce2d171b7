"""The example packages of source kinds, installed for a test."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import penstock.sources.kinds
from penstock.testing.waiting import PATIENCE

__all__ = ["EXAMPLES", "installed"]

EXAMPLES = Path(__file__).parent.parent.parent / "examples"


@contextmanager
def installed(package: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Install an example package into a folder that is on the path of this process and of those that it starts."""
    command = [*(sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation")]
    subprocess.run([*command, "--target", str(folder), str(EXAMPLES / package)], check=True, timeout=PATIENCE)
    monkeypatch.syspath_prepend(str(folder))
    paths = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    _clear_caches()
    yield
    _clear_caches()
    sys.modules.pop(package.replace("-", "_"), None)


def _clear_caches() -> None:
    importlib.invalidate_caches()
    penstock.sources.kinds.kinds.cache_clear()
    penstock.sources.kinds._load.cache_clear()
