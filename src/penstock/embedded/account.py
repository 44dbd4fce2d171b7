"""The operating system account of the embedded server. Postgres refuses to run as root.

If this process runs as root, the server runs as ``nobody``, so that no account has to be created; otherwise it runs as
the same user.
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
    """An operating system account; `switch` is whether a child process must change to it."""

    name: str
    uid: int
    gid: int
    switch: bool

    @classmethod
    def named(cls, name: str) -> Self | None:
        """Return the account of this name, or None if it does not exist."""
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            return None
        return cls(name, entry.pw_uid, entry.pw_gid, switch=True)

    @property
    def identity(self) -> Identity:
        """The arguments of `subprocess.Popen` with which a child runs as this account."""
        return {"user": self.uid, "group": self.gid, "extra_groups": []} if self.switch else {}

    def own(self, path: Path) -> None:
        """Make this account the owner of a file or directory."""
        if self.switch:
            os.chown(path, self.uid, self.gid)

    def can(self, shell_test: str, *arguments: Path) -> bool:
        """Return whether a shell command succeeds as this account; its arguments are ``$1``, ``$2`` and so on."""
        command = ["/bin/sh", "-c", shell_test, "sh", *map(str, arguments)]
        done = subprocess.run(
            command, cwd="/", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False, **self.identity
        )
        return done.returncode == 0


def server_account() -> Account:
    """Return the account for the server."""
    if os.geteuid() != 0:
        return Account("", os.geteuid(), os.getegid(), switch=False)
    account = Account.named(_UNPRIVILEGED)
    if account is None:
        message = f'Postgres cannot run as root, and account "{_UNPRIVILEGED}" does not exist'
        raise DefiniteError(message, "Run this command as an unprivileged user.")
    return account
