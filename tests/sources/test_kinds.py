"""Source kinds: built-in, from packages, and from broken packages."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.errors import DefiniteError, UsageError
from penstock.sources import kinds as module
from penstock.sources.kinds import kind, kinds
from penstock.sources.load_generator.source import LoadSource


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder in which Python looks for packages."""
    monkeypatch.syspath_prepend(str(tmp_path))
    _forget()
    yield tmp_path
    _forget()


def _forget() -> None:
    module.kinds.cache_clear()
    module._load.cache_clear()


def install(packages: Path, name: str, text: str) -> None:
    """Install a package with an entry point for a source kind."""
    (packages / f"{name}.py").write_text(text)
    metadata = packages / f"{name}-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(f"[penstock.sources]\n{name} = {name}:KIND\n")


def test_built_in_kinds_exist() -> None:
    assert {"POSTGRES", "FILE", "LOAD GENERATOR"} <= set(kinds())
    assert all(each.name == name for name, each in kinds().items())


def test_similar_kind_name_is_suggested() -> None:
    with pytest.raises(UsageError, match='unrecognized source kind "FILES"') as caught:
        kind("FILES")
    assert "FILE" in caught.value.hint


def test_a_kind_of_a_package(packages: Path) -> None:
    install(
        packages,
        "penstock_twice",
        "from dataclasses import replace\nfrom penstock.sources.load_generator.source import KIND as ours\n"
        "KIND = replace(ours, source=type('Twice', (ours.source,), {'NAME': 'TWICE'}))\n",
    )
    assert kind("TWICE").config is kind("LOAD GENERATOR").config


@pytest.mark.parametrize(
    ("text", "why"),
    [("1 / 0", "ZeroDivisionError"), ("KIND = 1", "not a penstock.sources.interface.Kind"), ("", "KIND")],
)
def test_broken_package_affects_only_its_own_kind(packages: Path, text: str, why: str) -> None:
    name = f"penstock_broken_{len(text)}"
    install(packages, name, text)
    assert "FILE" in kinds()
    with pytest.raises(DefiniteError, match='unrecognized source kind "ANVIL"') as caught:
        kind("ANVIL")
    assert name in caught.value.hint
    assert why in caught.value.hint


def test_package_cannot_replace_a_built_in_kind(packages: Path) -> None:
    install(
        packages,
        "penstock_taker",
        "from dataclasses import replace\nfrom penstock.sources.load_generator.source import KIND as ours\n"
        "KIND = replace(ours, source=type('Taker', (ours.source,), {}))\n",
    )
    assert kind("LOAD GENERATOR").source is LoadSource
