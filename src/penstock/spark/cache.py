"""Where Penstock keeps what it can always make again: jars and a small Java launcher.

Nothing in the cache is ever changed in place. A file is made under another name beside its own and renamed when it
is whole, so that any number of processes may share the cache, and a process that dies leaves nothing half done.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

__all__ = ["cache_dir"]


def cache_dir() -> Path:
    """Return `PENSTOCK_CACHE`, or the folder that this platform has for a user's caches."""
    if own := os.environ.get("PENSTOCK_CACHE"):
        return Path(own).expanduser().resolve()
    if shared := os.environ.get("XDG_CACHE_HOME"):
        return Path(shared) / "penstock"
    return Path.home() / ("Library/Caches" if sys.platform == "darwin" else ".cache") / "penstock"
