"""Files and folders of the home, which only its owner can read."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["create_folder", "private", "replace_file"]


def create_folder(path: Path) -> None:
    """Create a folder with mode 0700, and its missing parents likewise; one that exists keeps its mode."""
    for folder in (*reversed(path.parents), path):
        folder.mkdir(mode=0o700, exist_ok=True)


def private(path: str, flags: int) -> int:
    """Open a file, with mode 0600 if that creates it: the `opener` of `open`."""
    return os.open(path, flags, 0o600)


def replace_file(path: Path, text: str) -> None:
    """Write a file in one step, with mode 0600, so that no process reads a part of it; create its folder if needed."""
    create_folder(path.parent)
    new = path.with_suffix(".new")
    new.unlink(missing_ok=True)
    with open(new, "x", encoding="utf-8", opener=private) as file:
        file.write(text)
    new.replace(path)
