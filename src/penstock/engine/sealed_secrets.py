"""Storage of secrets that were given as plaintext: each in a file that only its owner can read, with a reference."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from pydantic import SecretStr

from penstock.catalog.store import Catalog
from penstock.layout import secrets_path
from penstock.private_file import create_folder

__all__ = ["forget_unused", "references", "seal", "sink_secrets"]


def sink_secrets(sink: str) -> str:
    """Return the name under which secrets of a sink are stored: no source has such a name."""
    return f"sink-{sink}"


def references(home: Path, source: str, options: Iterable[str]) -> dict[str, str]:
    """Return the references to the stored secrets of a source or sink, by option; see `seal`."""
    folder = secrets_path(home, source).absolute()
    return {option: f"file:{folder / option}" for option in options}


def seal(home: Path, source: str, secrets: Mapping[str, SecretStr]) -> None:
    """Store the secrets of a source or sink, by option. The caller holds the lifecycle lock; see `forget_unused`."""
    folder = secrets_path(home, source)
    for option, secret in secrets.items():
        create_folder(folder)
        handle = os.open(folder / option, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(handle, "w") as file:
            file.write(secret.get_secret_value())
            file.flush()
            os.fsync(handle)


def forget_unused(home: Path, catalog: Catalog) -> None:
    """Delete the secrets of sources and sinks that no longer exist, unless one of their debts needs them."""
    used = {record.known_as for record in catalog.sources()}
    used |= {sink_secrets(record.name) for record in catalog.sinks.all()}
    owed = [debt.instance for debt in catalog.debts()]
    for folder in secrets_path(home, "any").parent.glob("*"):
        if folder.name not in used and not any(f"secrets/{folder.name}/" in instance for instance in owed):
            _unseal(folder)


def _unseal(folder: Path) -> None:
    for file in folder.iterdir():
        file.unlink()
    folder.rmdir()
