"""Files and folders of the home: only their owner can read them, whatever the umask."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.home import open_home
from penstock.private_file import create_folder, private, replace_file


@pytest.fixture(autouse=True)
def no_umask() -> Iterator[None]:
    """Create files as open as possible."""
    before = os.umask(0)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_missing_folders_are_private_and_others_keep_their_mode(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir(mode=0o755)
    create_folder(tmp_path / "home" / "state" / "shop")
    create_folder(tmp_path / "home" / "state" / "shop")
    assert mode(tmp_path / "home") == 0o755
    assert mode(tmp_path / "home" / "state") == mode(tmp_path / "home" / "state" / "shop") == 0o700


def test_files_are_private(tmp_path: Path) -> None:
    replace_file(tmp_path / "run" / "process.json", "first")
    replace_file(tmp_path / "run" / "process.json", "second")
    assert (tmp_path / "run" / "process.json").read_text() == "second"
    with open(tmp_path / "run" / "capture.log", "ab", opener=private):
        pass
    assert [mode(path) for path in (tmp_path / "run").iterdir()] == [0o600, 0o600]


def test_a_new_home_is_private_and_so_is_the_catalog_of_an_open_one(tmp_path: Path) -> None:
    open_home(tmp_path / "new")
    assert mode(tmp_path / "new") == 0o700
    (tmp_path / "open").mkdir(mode=0o755)
    open_home(tmp_path / "open")
    assert {mode(path) for path in (tmp_path / "open").iterdir()} == {0o600}
