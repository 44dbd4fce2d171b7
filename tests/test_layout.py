"""The folders of tables in the lake."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.layout import base_path, folder_name, lake_path, quarantine_path

ODD = [
    "_delta_log", "_SUCCESS", "_temporary", ".hidden", ".", "..", "...", "a/b", "../../etc", "/", "50%", "a%2Fb",
    "year=2024", "order items", "é", "a\nb", "a:b", "a+b", "~", "orders~", "", "_", "x" * 300, ".quarantine",
    ".repairs",
]  # fmt: skip


@pytest.mark.parametrize("name", ["orders", "Orders", "a_b", "a-b", "0", "x" * 100])
def test_plain_name_is_its_folder(name: str) -> None:
    assert folder_name(name) == name


def test_other_names_become_plain_folders() -> None:
    folders = {folder_name(name) for name in ODD}
    assert len(folders) == len(ODD)
    for folder in folders:
        assert len(folder) < 100
        assert not folder.startswith(("_", "."))
        assert all(character.isascii() and (character.isalnum() or character in "_-~") for character in folder)
        assert "~" in folder, "no plain name has this folder"


@pytest.mark.parametrize("name", ODD)
def test_folder_is_in_the_lake_of_its_source(name: str) -> None:
    assert base_path(Path("home"), "shop", name).parent == lake_path(Path("home"), "shop")
    assert quarantine_path(Path("home"), "shop", name).parent.name == ".quarantine"
