"""The cache folder, for files that can always be recreated: jars, a Java launcher, compiled kernels.

Files in the cache are never modified in place. A file is written under a temporary name and renamed when it is
complete, so any number of processes can share the cache, and a process that dies leaves no partial file.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

__all__ = ["cache_dir"]


def cache_dir() -> Path:
    """Return `PENSTOCK_CACHE`, or this platform's folder for user caches."""
    if own := os.environ.get("PENSTOCK_CACHE"):
        return Path(own).expanduser().resolve()
    if shared := os.environ.get("XDG_CACHE_HOME"):
        return Path(shared) / "penstock"
    return Path.home() / ("Library/Caches" if sys.platform == "darwin" else ".cache") / "penstock"
