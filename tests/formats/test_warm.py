"""Kernels run from the compilation cache, in a process that did not compile them."""

from __future__ import annotations

import subprocess
import sys

from penstock.formats.warm import warm


def test_kernels_load_from_the_cache_and_recursive_ones_run() -> None:
    """numba crashes on some recursive functions only when it loads them, hence the second process."""
    warm()
    done = subprocess.run([sys.executable, "-m", "penstock.formats.warm"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
