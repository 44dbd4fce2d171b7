"""The cache of compiled kernels: one folder for each state of the kernels' sources.

numba keys the machine code of a function on the file of that function alone. A function that it calls, or a constant
that it uses, may be in another file: after a change there, numba would run the old code. The folder is therefore named
after a hash of every source file that defines kernels and of all modules of the package that those import, directly or
through other modules: a constant may come from a module that only passes it on. A change in any of them compiles all
kernels again.

Imports are found with a regular expression over the text. Parsing the same files takes 15 times as long, and every
process that loads kernels would wait for it. Only imports at the top level of a module count: kernels see its globals.

The folder is in the cache of the user (`penstock.cache.cache_dir`), not beside the sources: an installation may be
read-only, and belong to another user. If it cannot be written, as in a container with a read-only file system, its
kernels are copied into a folder for temporary files that all processes of the user share: numba accepts no folder that
it cannot write to.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

from numba import config, njit

from penstock.cache import cache_dir

__all__ = ["cached_njit", "fingerprint", "is_writable", "kernel_folder", "kernel_sources"]

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


def kernel_folder() -> Path:
    """Return the cache folder of the kernels of these sources; one that the user set for numba comes first."""
    chosen = os.environ.get("NUMBA_CACHE_DIR")
    return (Path(chosen) if chosen else cache_dir() / "kernels") / fingerprint(kernel_sources())


def is_writable(folder: Path) -> bool:
    """Return whether files can be written to a folder; create it if it does not exist."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError:
        return False
    return True


@cache
def _folder() -> str:
    """Return the folder that numba uses."""
    wanted = kernel_folder()
    return str(wanted if is_writable(wanted) else _temporary_copy(wanted))


def _temporary_copy(kernels: Path) -> Path:
    """Return a writable copy of `kernels`, which may not exist; the first process of the user creates it."""
    own = Path(tempfile.gettempdir(), f"penstock-kernels-{os.getuid()}")
    own.mkdir(mode=0o700, exist_ok=True)
    if not _is_private(own):  # another user may have created it, and numba executes what it finds there
        own = Path(tempfile.mkdtemp(prefix="penstock-kernels-"))
    copy = own / kernels.name
    if not copy.is_dir():
        begun = Path(tempfile.mkdtemp(dir=own))
        if kernels.is_dir():
            shutil.copytree(kernels, begun, copy_function=shutil.copyfile, dirs_exist_ok=True)
        for folder in (begun, *(path for path in begun.rglob("*") if path.is_dir())):
            folder.chmod(0o700)
        try:
            begun.rename(copy)
        except OSError:  # another process was first
            shutil.rmtree(begun)
    return copy


def _is_private(folder: Path) -> bool:
    """Return whether a path is a folder of this user that no other user can write to."""
    found = folder.lstat()
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o022
