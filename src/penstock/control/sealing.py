"""Secrets that somebody wrote in clear: each goes into a file that only its owner reads, and a reference names it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from pydantic import SecretStr

from penstock.layout import secrets_path

__all__ = ["sealed", "unseal"]


def sealed(home: Path, source: str, secrets: Mapping[str, SecretStr]) -> dict[str, str]:
    """Keep the secrets of a source, by option; return the references to them."""
    folder = secrets_path(home, source)
    for option, secret in secrets.items():
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle = os.open(folder / option, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(handle, "w") as file:
            file.write(secret.get_secret_value())
            file.flush()
            os.fsync(handle)
    return {option: f"file:{(folder / option).absolute()}" for option in secrets}


def unseal(home: Path, source: str) -> None:
    """Forget what was kept for a source."""
    folder = secrets_path(home, source)
    if folder.exists():
        for file in folder.iterdir():
            file.unlink()
        folder.rmdir()
