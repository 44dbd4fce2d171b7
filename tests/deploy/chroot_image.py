"""Build a Dockerfile without a container engine, on a clean Debian, and run commands in the result.

::

    debootstrap ──▶ Debian, in the cache ──▶ stage 1 (overlay) ──COPY --from──▶ stage 2 (overlay) ──▶ read-only root
                                              RUN in a chroot                    RUN in a chroot        no network

Each RUN of the Dockerfile is executed as it is, in a chroot with its own mounts and process ids; COPY, ENV, ARG, USER,
WORKDIR, ENTRYPOINT and CMD have their usual meaning. Other instructions do not affect files, and are recorded only. The
base image is Debian with its own Python instead of the official Python image, which is not in a package registry.

A container of the image has a read-only root, its volume and ``/tmp`` in folders of this machine, no capability of root
(it runs as the image's user) and no network except loopback.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from penstock.cache import cache_dir

SUITE = "bookworm"
_PACKAGES = "python3,python3-venv,ca-certificates"
_NETWORK_FILES = ("etc/resolv.conf", "etc/hosts", "etc/ssl/certs/ca-certificates.crt", "etc/pip.conf")
_LOOPBACK_UP = "import fcntl, socket, struct; fcntl.ioctl(socket.socket(), 0x8914, struct.pack('16sh14x', b'lo', 0x1))"
_ENTER = """
set -eu
mount --make-rprivate /
mount -t overlay overlay -o "$OPTIONS" "$ROOT"
mount --rbind /dev "$ROOT/dev"
mount -t proc proc "$ROOT/proc"
"""


def missing_tools() -> str:
    """Return why images cannot be built on this machine; empty if they can."""
    if os.getuid() != 0:
        return "building in a chroot requires root"
    absent = [tool for tool in ("apt-get", "dpkg-deb", "unshare", "chroot") if shutil.which(tool) is None]
    return f"building in a chroot requires {', '.join(absent)}" if absent else ""


def debian() -> Path:
    """Return the root of a clean Debian with Python, from the cache or from Debian's servers."""
    root = cache_dir() / f"debian-{SUITE}"
    if not root.is_dir():
        root.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=root.parent, prefix="debian-") as folder:
            subprocess.run(["apt-get", "download", "-qq", "debootstrap"], cwd=folder, check=True)
            (package,) = Path(folder).glob("debootstrap_*.deb")
            subprocess.run(["dpkg-deb", "-x", package, f"{folder}/tool"], check=True)
            environment = {**os.environ, "DEBOOTSTRAP_DIR": f"{folder}/tool/usr/share/debootstrap"}
            command = [f"{folder}/tool/usr/sbin/debootstrap", "--variant=minbase", f"--include={_PACKAGES}"]
            subprocess.run([*command, SUITE, f"{folder}/root"], env=environment, check=True, stdout=subprocess.DEVNULL)
            Path(folder, "root").replace(root)
    return root


def instructions(dockerfile: str) -> Iterator[tuple[str, str]]:
    """Yield the instructions of a Dockerfile with their arguments; continued lines are joined."""
    lines = (line for line in dockerfile.splitlines() if line.strip() and not line.lstrip().startswith("#"))
    for line in re.sub(r"\\\n\s*", "", "\n".join(lines)).splitlines():
        word, _, rest = line.partition(" ")
        yield word.upper(), rest.strip()


@dataclass
class Stage:
    """One stage of a build: its files above those of the base, and its settings."""

    files: Path
    arguments: dict[str, str] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=lambda: {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"})
    user: str = "0:0"
    folder: str = "/"
    entrypoint: list[str] = field(default_factory=list)
    command: list[str] = field(default_factory=list)
    volumes: list[str] = field(default_factory=list)

    def expanded(self, text: str) -> str:
        """Replace the variables of a text."""
        known = {**self.arguments, **self.environment}
        return re.sub(r"\$\{(\w+)\}", lambda found: known[found[1]], text)

    def inside(self, path: str) -> Path:
        """Return a path of this stage, as a path of this machine."""
        return self.files / str(Path(self.folder, path)).lstrip("/")


class ChrootImage:
    """Builds a Dockerfile in `folder`; the result is the last stage."""

    def __init__(self, folder: Path, context: Path, dockerfile: Path) -> None:
        self._folder, self._context, self._base = folder, context, debian()
        self._stages: dict[str, Stage] = {}
        self._arguments: dict[str, str] = {}
        self.image = Stage(folder)
        for word, rest in instructions(dockerfile.read_text(encoding="utf-8")):
            self._execute(word, rest)

    def _execute(self, word: str, rest: str) -> None:
        stage = self.image
        if word == "FROM":
            name = rest.partition(" AS ")[2] or str(len(self._stages))
            self.image = self._stages[name] = Stage(self._created(f"stage-{name}"))
        elif word == "ARG":
            name, _, default = rest.partition("=")
            stage.arguments[name] = default
        elif word == "ENV":
            stage.environment |= dict(each.split("=", 1) for each in shlex.split(stage.expanded(rest)))
        elif word == "WORKDIR":
            stage.folder = rest
            stage.inside(rest).mkdir(parents=True, exist_ok=True)
        elif word == "USER":
            stage.user = rest
        elif word == "COPY":
            self._copy(stage, shlex.split(rest))
        elif word == "RUN":
            self._run(stage, rest)
        elif word in ("ENTRYPOINT", "CMD"):
            setattr(stage, "entrypoint" if word == "ENTRYPOINT" else "command", json.loads(rest))
        elif word == "VOLUME":
            stage.volumes.append(rest)
        else:
            assert word in ("LABEL", "EXPOSE", "HEALTHCHECK"), f"unknown instruction {word}"

    def _copy(self, stage: Stage, words: list[str]) -> None:
        origin = self._context
        if words[0].startswith("--from="):
            origin = self._stages[words.pop(0).partition("=")[2]].files
        *sources, target = words
        for source in (origin / name.lstrip("/") for name in sources):
            place = stage.inside(target) / source.name if target.endswith("/") else stage.inside(target)
            place.parent.mkdir(parents=True, exist_ok=True)
            subprocess.run(["cp", "--archive", "--no-target-directory", source, place], check=True)

    def _run(self, stage: Stage, command: str) -> None:
        """Run a command as root of the stage, with the network settings and proxies of this machine."""
        for name in _NETWORK_FILES:
            if Path("/", name).is_file():
                (self._base / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(Path("/", name), self._base / name)
        proxies = {name: value for name, value in os.environ.items() if name.lower().endswith("_proxy")}
        layers = f"lowerdir={self._base},upperdir={stage.files},workdir={self._created('work')}"
        words = ["chroot", "$ROOT", "/usr/bin/env", "-i", *_assigned(proxies | stage.environment | {"HOME": "/root"})]
        script = " ".join([*map(_quoted, words), "/bin/sh", "-c", shlex.quote(f"cd {stage.folder} && {command}")])
        done = self._enter(layers, [], f"exec {script}")
        assert done.returncode == 0, f"RUN {command}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"

    def start(self, *arguments: str, home: Path, scratch: Path) -> subprocess.CompletedProcess[str]:
        """Run the image to the end with `arguments` instead of its own; `home` is its volume, `scratch` is ``/tmp``."""
        stage = self.image
        (volume,) = stage.volumes
        mounts = {home: volume, scratch: "/tmp"}
        for folder in mounts:
            folder.mkdir()
            os.chown(folder, *map(int, stage.user.split(":")))
        before = [
            *(f'mount --bind {shlex.quote(str(folder))} "$ROOT{place}"' for folder, place in mounts.items()),
            f"{shlex.quote(sys.executable)} -c {shlex.quote(_LOOPBACK_UP)}",
        ]
        words = ["chroot", f"--userspec={stage.user}", "$ROOT", "/usr/bin/env", "-i", *_assigned(stage.environment)]
        words += ["/bin/sh", "-c", f'cd {stage.folder} && exec "$@"', "sh", *stage.entrypoint, *arguments]
        layers = f"lowerdir={stage.files}:{self._base}"
        return self._enter(layers, ["--net", "--ipc"], "\n".join([*before, f"exec {' '.join(map(_quoted, words))}"]))

    def _enter(self, layers: str, namespaces: list[str], script: str) -> subprocess.CompletedProcess[str]:
        root = self._created("root")
        command = ["unshare", "--mount", "--pid", "--fork", "--kill-child", *namespaces, "/bin/sh", "-c"]
        environment = {**os.environ, "OPTIONS": layers, "ROOT": str(root)}
        return subprocess.run([*command, _ENTER + script], env=environment, capture_output=True, text=True, check=False)

    def _created(self, name: str) -> Path:
        folder = self._folder / name
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o755)
        return folder


def _assigned(variables: dict[str, str]) -> Sequence[str]:
    return [f"{name}={value}" for name, value in variables.items()]


def _quoted(word: str) -> str:
    return '"$ROOT"' if word == "$ROOT" else shlex.quote(word)
