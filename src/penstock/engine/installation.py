"""Prepare an installation ahead of its first start: Spark's jars, the Java launcher, compiled kernels.

All of it is in the cache (`penstock.cache`). Without this, the first start downloads the jars, and the first rows wait
until their kernels are compiled. An image, or a machine without network access, prepares the cache when it is built.

Kernels are compiled by several processes, one for the formats and one for each kind of source that has kernels: numba
uses one core. They are compiled for the processor of this machine; an image that also runs on others sets
``NUMBA_CPU_NAME``, when it is built and when it runs (``generic`` is any processor of the architecture).
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

from penstock.cache import cache_dir
from penstock.errors import DefiniteError

__all__ = ["compile_kernels", "fetch_spark"]

_Progress = Callable[[str], None]


def fetch_spark(progress: _Progress) -> int:
    """Download the jars that are not in the cache, and choose the Java for Spark; return the bytes of the jars."""
    from penstock.spark.jars import ensure_jars
    from penstock.spark.java import find_java, java_home

    java = find_java()
    progress(f"Java {java.version}: {java.home}")
    java_home()
    jars = ensure_jars(progress)
    progress(f"{len(jars)} jars: {cache_dir() / 'jars'}")
    return _bytes(jars)


def compile_kernels(progress: _Progress) -> int:
    """Compile the kernels that are not in the cache; return the bytes of all of them."""
    from penstock.kernel_cache import is_writable, kernel_folder

    folder = kernel_folder()
    if not is_writable(folder):
        message = f"could not write to cache folder {folder}"
        raise DefiniteError(message, "Set PENSTOCK_CACHE to a writable folder.")
    todo = _warm_functions()
    progress(f"compiling kernels of {', '.join(todo)}")
    with ProcessPoolExecutor(os.cpu_count(), multiprocessing.get_context("spawn")) as pool:
        compiled = {pool.submit(warm): name for name, warm in todo.items()}
        for done in as_completed(compiled):
            done.result()
            progress(f"compiled kernels of {compiled[done]}")
    kernels = list(folder.rglob("*.nbc"))
    progress(f"{len(kernels)} kernels: {folder}")
    return _bytes(path for path in folder.rglob("*") if path.is_file())


def _warm_functions() -> dict[str, Callable[[], None]]:
    from penstock.formats.warm import warm
    from penstock.sources.kinds import kinds

    return {"formats": warm, **{name: kind.warm for name, kind in kinds().items() if kind.warm is not None}}


def _bytes(files: Iterable[Path]) -> int:
    return sum(file.stat().st_size for file in files)
