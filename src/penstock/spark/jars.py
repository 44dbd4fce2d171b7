"""The jars that Penstock adds to Spark: listed in ``jars.lock``, downloaded once, verified by hash.

::

    jars.lock ──▶ in the cache? ──yes──▶ its path
                     │ no
                     ▼
                 Ivy (shipped with pyspark; resolves Maven artifacts) ──▶ temporary folder
                                                                                │ sha256
                     cache/jars/<artifact>-<revision>-<sha256>.jar ◀── rename ──┘

A file is renamed into the cache only after its sha256 was verified, and its name contains the hash: the name records
the verification. Later checks compare only the size, which is cheap. Two processes that download at the same time use
separate folders, and the second rename replaces a file with an identical one.
"""

from __future__ import annotations

import hashlib
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Self
from xml.sax.saxutils import quoteattr

from penstock.cache import cache_dir
from penstock.errors import DefiniteError, TransientError
from penstock.spark.java import find_java, trust_options

__all__ = ["Jar", "ensure_jars", "fetch_jars", "locked_jars", "read_lock"]

_Progress = Callable[[str], None]

_FETCH_SECONDS = 600
_RETRY_SECONDS = (2.0, 10.0)
_SETTINGS = """\
<ivysettings>
  <settings defaultResolver="central"/>
  <resolvers><ibiblio name="central" m2compatible="true" usepoms="false"/></resolvers>
</ivysettings>
"""


@dataclass(frozen=True)
class Jar:
    """One line of ``jars.lock``: an artifact by its Maven coordinates, size and hash."""

    organisation: str
    artifact: str
    revision: str
    size: int
    sha256: str
    classifier: str = ""
    extension: str = "jar"

    @classmethod
    def parse(cls, line: str) -> Self:
        """Parse ``organisation:artifact:revision[:classifier@extension] size sha256``; raise `ValueError` otherwise."""
        coordinates, size, sha256 = line.split()
        organisation, artifact, revision, *variant = coordinates.split(":")
        classifier, extension = variant[0].split("@") if variant else ("", "jar")
        if len(sha256) != 64 or len(variant) > 1:
            message = f"invalid line {line!r}: expected coordinates, size and a sha256 of 64 hexadecimal digits"
            raise ValueError(message)
        return cls(organisation, artifact, revision, int(size), sha256, classifier, extension)

    @property
    def coordinates(self) -> str:
        """The coordinates in the format of ``--packages``."""
        variant = f":{self.classifier}@{self.extension}" if self.classifier else ""
        return f"{self.organisation}:{self.artifact}:{self.revision}{variant}"

    @property
    def fetched_name(self) -> str:
        """The file name that Ivy gives to the artifact."""
        return f"{self.artifact}-{self.revision}{self.classifier and f'-{self.classifier}'}.{self.extension}"

    def path(self, folder: Path) -> Path:
        """Return the path of the verified jar in `folder`."""
        return folder / f"{self.artifact}-{self.revision}-{self.sha256[:16]}.{self.extension}"

    def present(self, folder: Path) -> bool:
        """Return whether the verified jar exists, judging by its size."""
        path = self.path(folder)
        return path.is_file() and path.stat().st_size == self.size


def locked_jars() -> list[Jar]:
    """Return the jars for Spark: those in ``jars.lock``."""
    return read_lock("penstock.spark", "jars.lock")


def read_lock(package: str, name: str) -> list[Jar]:
    """Read a lock file of `package`."""
    text = resources.files(package).joinpath(name).read_text(encoding="utf-8")
    return [Jar.parse(line) for line in text.splitlines() if line and not line.startswith("#")]


def ensure_jars(progress: _Progress | None = None) -> list[Path]:
    """Return the paths of the jars for Spark; see `fetch_jars`."""
    return fetch_jars(locked_jars(), progress)


def fetch_jars(jars: Sequence[Jar], progress: _Progress | None = None) -> list[Path]:
    """Return the paths of `jars`, after downloading those that are not in the cache.

    `progress` is called with a message before a download. Raise a `TransientError` if a jar cannot be downloaded, and a
    `DefiniteError` if its content is wrong.
    """
    folder = cache_dir() / "jars"
    missing = [jar for jar in jars if not jar.present(folder)]
    if missing:
        _fetch(missing, _created(folder), progress or _silent)
    return [jar.path(folder) for jar in jars]


def _silent(_: str) -> None:
    """Ignore a progress message."""


def _created(folder: Path) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        message = f"could not create cache folder {folder}: {error.strerror}"
        raise DefiniteError(message, "Set PENSTOCK_CACHE to a writable folder.") from error
    return folder


def _fetch(jars: list[Jar], folder: Path, progress: _Progress) -> None:
    progress(f"downloading {', '.join(jar.coordinates for jar in jars)} (once)")
    with tempfile.TemporaryDirectory(prefix="fetch-", dir=folder) as scratch:
        fetched = _retrieved(jars, Path(scratch), progress)
        for jar, path in zip(jars, fetched, strict=True):
            _verify(jar, path)
            path.replace(jar.path(folder))


def _retrieved(jars: list[Jar], scratch: Path, progress: _Progress) -> list[Path]:
    """Download `jars` into `scratch`; retry after failures."""
    for pause in _RETRY_SECONDS:
        try:
            return _retrieve(jars, scratch)
        except TransientError as error:
            progress(f"{error.message}; retrying")
            time.sleep(pause)
    return _retrieve(jars, scratch)


def _retrieve(jars: list[Jar], scratch: Path) -> list[Path]:
    """Download `jars` into `scratch` with Ivy; their content is not verified yet."""
    fetched = [scratch / jar.fetched_name for jar in jars]
    output = _run(_ivy_command(jars, scratch), jars)
    if not all(path.is_file() for path in fetched):
        raise _unavailable(jars, output)
    return fetched


def _ivy_command(jars: list[Jar], scratch: Path) -> list[str]:
    settings, module = scratch / "ivysettings.xml", scratch / "ivy.xml"
    settings.write_text(_SETTINGS, encoding="utf-8")
    module.write_text(_ivy_module(jars), encoding="utf-8")
    java = find_java()
    command = [str(java.executable), *trust_options(java, scratch), "-jar", str(_ivy_jar())]
    command += ["-settings", str(settings), "-cache", str(scratch / "ivy"), "-ivy", str(module)]
    return [*command, "-retrieve", f"{scratch}/[artifact]-[revision](-[classifier]).[ext]"]


def _ivy_module(jars: Iterable[Jar]) -> str:
    dependencies = "\n".join(map(_ivy_dependency, jars))
    maven = 'xmlns:m="http://ant.apache.org/ivy/maven"'
    head = f'<ivy-module version="2.0" {maven}>\n  <info organisation="penstock" module="jars"/>\n  <dependencies>\n'
    return f"{head}{dependencies}\n  </dependencies>\n</ivy-module>\n"


def _ivy_dependency(jar: Jar) -> str:
    organisation, name, revision = quoteattr(jar.organisation), quoteattr(jar.artifact), quoteattr(jar.revision)
    what = f'<dependency org={organisation} name={name} rev={revision} transitive="false"'
    if not jar.classifier:
        return f"    {what}/>"
    extension = quoteattr(jar.extension)
    variant = f"type={extension} ext={extension} m:classifier={quoteattr(jar.classifier)}"
    return f"    {what}><artifact name={name} {variant}/></dependency>"


def _ivy_jar() -> Path:
    """Return the Ivy jar that pyspark ships."""
    folder = Path(str(resources.files("pyspark"))) / "jars"
    for path in folder.glob("ivy-*.jar"):
        return path
    message = f"no Ivy jar in pyspark's folder {folder}"
    raise DefiniteError(
        message, "Reinstall pyspark from its wheel or source package: pip install --force-reinstall pyspark"
    )


def _run(command: list[str], jars: list[Jar]) -> str:
    """Run Ivy to completion and return its output; the files show whether it succeeded."""
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_FETCH_SECONDS, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise _unavailable(jars, f"no response within {_FETCH_SECONDS} s") from error
    return done.stdout + done.stderr


def _unavailable(jars: list[Jar], output: str) -> TransientError:
    """Return the error of a failed download, with the last error line of Ivy as its reason."""
    errors = [line.strip() for line in output.splitlines() if "error" in line.lower() and "::" not in line]
    reason = errors[-1] if errors else "Ivy did not find them"
    return TransientError(
        f"could not download {', '.join(jar.coordinates for jar in jars)}: {reason}",
        "Check that this machine can connect to a Maven repository, and try again. With a proxy, set JAVA_TOOL_OPTIONS="
        "'-Dhttps.proxyHost=… -Dhttps.proxyPort=…'. Without network access, copy the folder "
        f"{cache_dir() / 'jars'} from another machine.",
    )


def _verify(jar: Jar, path: Path) -> None:
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != jar.sha256 or path.stat().st_size != jar.size:
        message = f"{jar.coordinates} has sha256 {found}, expected {jar.sha256}; the file was not added to the cache"
        raise DefiniteError(message, "Check which repository or proxy serves a different file under this name.")
