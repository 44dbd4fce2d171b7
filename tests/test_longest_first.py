"""Long files come first, the rest stays in its order, and the list names files that exist."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.longest_first import LONGEST, longest_first

ROOT = Path(__file__).parent.parent


def test_every_file_of_the_list_exists_and_is_there_once() -> None:
    assert [file for file in LONGEST if not (ROOT / file).is_file()] == []
    assert len(set(LONGEST)) == len(LONGEST)


def test_the_order() -> None:
    ids = ["tests/a.py::one", f"{LONGEST[1]}::two", "tests/a.py::three", f"{LONGEST[0]}::four[x::y]"]
    items: list[Any] = [SimpleNamespace(nodeid=name) for name in ids]
    longest_first(items)
    assert [item.nodeid for item in items] == [ids[3], ids[1], ids[0], ids[2]]
