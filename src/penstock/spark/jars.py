"""The jars that Penstock adds to Spark: named in ``jars.lock``, fetched once, checked against their hash.

::

    jars.lock ──▶ in the cache? ──yes──▶ its path
                     │ no
                     ▼
                 Ivy (pyspark ships it; it knows where Maven artifacts live) ──▶ temporary folder
                                                                                      │ sha256
                     cache/jars/<artifact>-<revision>-<sha256>.jar ◀── atomic rename ─┘

Only a file whose sha256 was right is ever renamed into the cache, and its name carries that hash: the name is the
record that it was verified. Later looks compare the size alone, which costs nothing. Two processes that fetch at once
each work in a folder of their own, and the second rename puts the same bytes in the place of the first.
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

from penstock.errors import DefiniteError, TransientError
from penstock.spark.cache import cache_dir
from penstock.spark.java import find_java, trust_options

__all__ = ["Jar", "ensure_jars", "fetched_jars", "locked_jars", "read_lock"]

_Progress = Callable[[str], None]

_FETCH_SECONDS = 600
_PAUSES = (2.0, 10.0)
_SETTINGS = """\
<ivysettings>
  <settings defaultResolver="central"/>
  <resolvers><ibiblio name="central" m2compatible="true" usepoms="false"/></resolvers>
</ivysettings>
"""


@dataclass(frozen=True)
class Jar:
    """One line of ``jars.lock``: an artifact by its Maven coordinates, and the only content it may have."""

    organisation: str
    artifact: str
    revision: str
    size: int
    sha256: str
    classifier: str = ""
    extension: str = "jar"

    @classmethod
    def parse(cls, line: str) -> Self:
        """Read ``organisation:artifact:revision[:classifier@extension] size sha256``; else raise `ValueError`."""
        coordinates, size, sha256 = line.split()
        organisation, artifact, revision, *variant = coordinates.split(":")
        classifier, extension = variant[0].split("@") if variant else ("", "jar")
        if len(sha256) != 64 or len(variant) > 1:
            message = f"a line names coordinates, size and the 64 hexadecimal digits of a sha256, not {line!r}"
            raise ValueError(message)
        return cls(organisation, artifact, revision, int(size), sha256, classifier, extension)

    @property
    def coordinates(self) -> str:
        """The form that ``--packages`` takes."""
        variant = f":{self.classifier}@{self.extension}" if self.classifier else ""
        return f"{self.organisation}:{self.artifact}:{self.revision}{variant}"

    @property
    def fetched_name(self) -> str:
        """The name under which Ivy puts it down."""
        return f"{self.artifact}-{self.revision}{self.classifier and f'-{self.classifier}'}.{self.extension}"

    def path(self, folder: Path) -> Path:
        """Return where the verified jar lies in `folder`."""
        return folder / f"{self.artifact}-{self.revision}-{self.sha256[:16]}.{self.extension}"

    def present(self, folder: Path) -> bool:
        """Whether the verified jar is there, as far as its size tells."""
        path = self.path(folder)
        return path.is_file() and path.stat().st_size == self.size


def locked_jars() -> list[Jar]:
    """Return the jars that Spark gets: those in ``jars.lock``."""
    return read_lock("penstock.spark", "jars.lock")


def read_lock(package: str, name: str) -> list[Jar]:
    """Read a lock file that lies in `package`."""
    text = resources.files(package).joinpath(name).read_text(encoding="utf-8")
    return [Jar.parse(line) for line in text.splitlines() if line and not line.startswith("#")]


def ensure_jars(progress: _Progress | None = None) -> list[Path]:
    """Return the paths of the jars that Spark gets; see `fetched_jars`."""
    return fetched_jars(locked_jars(), progress)


def fetched_jars(jars: Sequence[Jar], progress: _Progress | None = None) -> list[Path]:
    """Return the paths of `jars`, after fetching those that the cache does not hold yet.

    `progress` is told, in words for people, when something has to be fetched. A jar that cannot be had raises
    `TransientError`, one with the wrong content `DefiniteError`.
    """
    folder = cache_dir() / "jars"
    missing = [jar for jar in jars if not jar.present(folder)]
    if missing:
        _fetch(missing, _made(folder), progress or _silent)
    return [jar.path(folder) for jar in jars]


def _silent(_: str) -> None:
    """Tell nobody."""


def _made(folder: Path) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        message = f"the cache folder {folder} cannot be made: {error.strerror}"
        raise DefiniteError(message, "Set PENSTOCK_CACHE to a folder that can be written to.") from error
    return folder


def _fetch(jars: list[Jar], folder: Path, progress: _Progress) -> None:
    progress(f"fetching {', '.join(jar.coordinates for jar in jars)} (once)")
    with tempfile.TemporaryDirectory(prefix="fetch-", dir=folder) as scratch:
        fetched = _retrieved(jars, Path(scratch), progress)
        for jar, path in zip(jars, fetched, strict=True):
            _verify(jar, path)
            path.replace(jar.path(folder))


def _retrieved(jars: list[Jar], scratch: Path, progress: _Progress) -> list[Path]:
    """Fetch `jars` into `scratch`; again where that breaks off."""
    for pause in _PAUSES:
        try:
            return _retrieve(jars, scratch)
        except TransientError as error:
            progress(f"{error.message}; trying again")
            time.sleep(pause)
    return _retrieve(jars, scratch)


def _retrieve(jars: list[Jar], scratch: Path) -> list[Path]:
    """Let Ivy fetch `jars` into `scratch`; nothing is known about their content yet."""
    fetched = [scratch / jar.fetched_name for jar in jars]
    said = _run(_ivy_command(jars, scratch), jars)
    if not all(path.is_file() for path in fetched):
        raise _unavailable(jars, said)
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
    """Return the Ivy that pyspark ships."""
    folder = Path(str(resources.files("pyspark"))) / "jars"
    for path in folder.glob("ivy-*.jar"):
        return path
    message = f"pyspark has no Ivy among its jars in {folder}"
    raise DefiniteError(
        message, "Install pyspark from its wheel or source package: pip install --force-reinstall pyspark"
    )


def _run(command: list[str], jars: list[Jar]) -> str:
    """Run Ivy to its end and return what it said; whether it worked shows in the files."""
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_FETCH_SECONDS, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise _unavailable(jars, f"no answer within {_FETCH_SECONDS} s") from error
    return done.stdout + done.stderr


def _unavailable(jars: list[Jar], said: str) -> TransientError:
    """Make the error of a failed fetch; the last telling line of Ivy's is its reason."""
    telling = [line.strip() for line in said.splitlines() if "error" in line.lower() and "::" not in line]
    reason = telling[-1] if telling else "Ivy did not find them"
    return TransientError(
        f"could not fetch {', '.join(jar.coordinates for jar in jars)}: {reason}",
        "Check that this machine reaches a Maven repository and try again. Behind a proxy, set JAVA_TOOL_OPTIONS="
        "'-Dhttps.proxyHost=… -Dhttps.proxyPort=…'. Without a network, copy the folder "
        f"{cache_dir() / 'jars'} from a machine that has it.",
    )


def _verify(jar: Jar, path: Path) -> None:
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != jar.sha256 or path.stat().st_size != jar.size:
        message = f"{jar.coordinates} has sha256 {found}, expected {jar.sha256}: it was not put into the cache"
        raise DefiniteError(message, "Find out which repository or proxy serves another file under this name.")
