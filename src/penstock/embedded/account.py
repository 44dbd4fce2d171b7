"""Whom the embedded server runs as. Postgres refuses to run as root.

Not root: we run it as ourselves. Root: as the system account ``penstock``, made with ``useradd`` when it is missing;
where that does not work (no ``useradd``, a read-only system), as ``nobody``.
"""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Self, TypedDict

from penstock.errors import DefiniteError

__all__ = ["Account", "Identity", "server_account"]

_OWN = "penstock"
_FALLBACK = "nobody"


class Identity(TypedDict, total=False):
    """The arguments of `subprocess.Popen` that make a child run as an account."""

    user: int
    group: int
    extra_groups: list[int]


@dataclass(frozen=True)
class Account:
    """An operating system account; `switch` says whether a child must change to it."""

    name: str
    uid: int
    gid: int
    switch: bool

    @classmethod
    def named(cls, name: str) -> Self | None:
        """Look it up; None when there is no such account."""
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            return None
        return cls(name, entry.pw_uid, entry.pw_gid, switch=True)

    @property
    def identity(self) -> Identity:
        """What to pass to `subprocess.Popen` so that the child runs as this account."""
        return {"user": self.uid, "group": self.gid, "extra_groups": []} if self.switch else {}

    def own(self, path: Path) -> None:
        """Hand a file or directory over to this account."""
        if self.switch:
            os.chown(path, self.uid, self.gid)

    def can(self, shell_test: str, *arguments: Path) -> bool:
        """Try a shell command as this account; in it, the arguments are ``$1``, ``$2`` and so on."""
        command = ["/bin/sh", "-c", shell_test, "sh", *map(str, arguments)]
        done = subprocess.run(
            command, cwd="/", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False, **self.identity
        )
        return done.returncode == 0


def server_account() -> Account:
    """Return the account that the server is to run as."""
    if os.geteuid() != 0:
        return Account("", os.geteuid(), os.getegid(), switch=False)
    account = Account.named(_OWN) or _created() or Account.named(_FALLBACK)
    if account is None:
        message = f"Postgres does not run as root, and there is neither an account {_OWN} nor {_FALLBACK}"
        raise DefiniteError(message, f"Make one (useradd --system {_OWN}), or run this command as another user.")
    return account


def _created() -> Account | None:
    """Make our own account; None when that is not possible here."""
    useradd = shutil.which("useradd", path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")
    if useradd is None:
        return None
    command = [useradd, "--system", "--no-create-home", "--home-dir", "/nonexistent", "--shell", "/bin/false", _OWN]
    subprocess.run(command, check=False, capture_output=True)
    return Account.named(_OWN)
