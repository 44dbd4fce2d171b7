"""A Postgres server of any supported version, for tests.

::

    postgres.lock ─▶ jar in the cache (downloaded once and verified, like Spark's jars)
                       └─▶ cache/postgres/<revision>-<sha256>/{bin,lib,share}   unpacked once
                              └─▶ `penstock.embedded.postgres.start_postgres(programs=bin)`

The default version is that of the environment variable ``PENSTOCK_TEST_POSTGRES``, or else that of the wheel. So one
variable runs all tests on another version. Client programs are always the wheel's: the jars contain only the server.
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

from penstock.cache import cache_dir
from penstock.embedded.postgres import EmbeddedPostgres
from penstock.embedded.postgres import start_postgres as start_with
from penstock.errors import DefiniteError, UsageError
from penstock.spark.jars import Jar, fetch_jars, read_lock

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
    """Return the major version that the environment selects; None for the wheel's."""
    wanted = os.environ.get(VERSION_VARIABLE, "")
    if not wanted:
        return None
    if not wanted.isdigit() or int(wanted) not in versions():
        message = f"invalid value of {VERSION_VARIABLE}: {wanted!r}"
        raise UsageError(message, f"Set it to one of: {', '.join(map(str, versions()))}.")
    return int(wanted)


def versions() -> dict[int, Jar]:
    """Return the available major versions, oldest first."""
    jars = read_lock("penstock.testing", "postgres.lock")
    return {int(jar.revision.partition(".")[0]): jar for jar in jars}


def programs(version: int) -> Path:
    """Return the directory of the server programs of a major version; download and unpack it on first use."""
    if (platform.system(), platform.machine()) != _PLATFORM:
        message = f"Postgres {version} is not available for {platform.system()} on {platform.machine()}"
        raise DefiniteError(message, f"Unset {VERSION_VARIABLE} to use the wheel's Postgres.")
    jar = versions()[version]
    home = cache_dir() / "postgres" / f"{jar.revision}-{jar.sha256[:16]}"
    if not home.is_dir():
        [path] = fetch_jars([jar])
        _unpack(path, home)
    return home / "bin"


def _unpack(jar: Path, home: Path) -> None:
    """Unpack into a temporary folder and rename it to `home`, atomically; another process may be first."""
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
        message = f"could not unpack {jar.name} into {home}"
        raise DefiniteError(message, f"Check the free disk space, remove {home} and try again.")
