"""Whom the embedded server runs as. Postgres refuses to run as root.

Not root: we run it as ourselves. Root: as ``nobody``, so that no account has to be made and nothing is left behind.
"""

from __future__ import annotations

import os
import pwd
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Self, TypedDict

from penstock.errors import DefiniteError

__all__ = ["Account", "Identity", "server_account"]

_UNPRIVILEGED = "nobody"


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
    account = Account.named(_UNPRIVILEGED)
    if account is None:
        message = f"Postgres does not run as root, and there is no account {_UNPRIVILEGED}"
        raise DefiniteError(message, "Run this command as another user.")
    return account
