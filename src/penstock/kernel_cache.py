"""The cache of compiled kernels: one folder for each state of the kernels' sources.

numba keys the machine code of a function on the file of that function alone. A function that it calls, or a constant
that it uses, may be in another file: after a change there, numba would run the old code. The folder is therefore named
after a hash of every source file that defines kernels and of all modules of the package that those import, directly or
through other modules: a constant may come from a module that only passes it on. A change in any of them compiles all
kernels again.

Imports are found with a regular expression over the text. Parsing the same files takes 15 times as long, and every
process that loads kernels would wait for it. Only imports at the top level of a module count: kernels see its globals.

The folder is in the cache of the user (`penstock.cache.cache_dir`), not beside the sources: an installation may be
read-only, and belong to another user. If it cannot be written, kernels are compiled into a temporary folder.
"""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

from numba import config, njit

from penstock.cache import cache_dir

__all__ = ["cached_njit", "fingerprint", "kernel_sources"]

_PACKAGE = Path(__file__).parent
_COMPILES = re.compile(r"^(?:from|import) (?:numba|penstock\.kernel_cache|penstock\.formats\.jit|\S+\.kernel)\b", re.M)
_IMPORTS = re.compile(r"^(?:from (penstock[\w.]*) import (\([^)]*\)|.*)|import (penstock[\w.]*))", re.M)


def cached_njit(*signature: Any, **options: Any) -> Callable[..., Any]:
    """Decorate a function like `numba.njit`, with its machine code in the cache."""
    settings: Any = config
    settings.CACHE_DIR = _folder()
    untyped: Any = njit
    decorated: Callable[..., Any] = untyped(*signature, cache=True, **options)
    return decorated


def kernel_sources(package: Path = _PACKAGE) -> list[Path]:
    """Return the source files that define kernels, or functions that kernels call, and all modules that they import."""
    modules = {_module_name(file, package): file for file in package.rglob("*.py")}
    texts = {file: file.read_text(encoding="utf-8") for file in modules.values()}
    found = {file for file, text in texts.items() if _COMPILES.search(text)}
    pending = list(found)
    while pending:
        names = _imported_names(texts[pending.pop()])
        imported = {modules[name] for name in names if name in modules} - found
        found |= imported
        pending += imported
    return sorted(found)


def _module_name(file: Path, package: Path) -> str:
    return ".".join(file.relative_to(package.parent).with_suffix("").parts).removesuffix(".__init__")


def _imported_names(text: str) -> Iterator[str]:
    """Yield the modules that the text of a module imports, and the names in them, which may be modules too."""
    for module, names, alone in _IMPORTS.findall(text):
        yield module or alone
        for name in re.findall(r"\w+", names):
            yield f"{module}.{name}"


def fingerprint(sources: Iterable[Path], package: Path = _PACKAGE) -> str:
    """Return a hash of the names and contents of source files."""
    found = hashlib.sha256()
    for source in sources:
        content = source.read_bytes()
        found.update(f"{source.relative_to(package)}\0{len(content)}\0".encode() + content)
    return found.hexdigest()[:32]


@cache
def _folder() -> str:
    """Return the folder of the kernels of these sources; one that the user set for numba comes first."""
    name = fingerprint(kernel_sources())
    chosen = os.environ.get("NUMBA_CACHE_DIR")
    wanted = Path(chosen) if chosen else cache_dir() / "kernels"
    try:
        (wanted / name).mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=wanted / name).close()
    except OSError:
        return tempfile.mkdtemp(prefix="penstock-kernels-")
    return str(wanted / name)
