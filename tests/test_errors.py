"""Every error survives pickling with all its attributes, so it can cross process boundaries."""

from __future__ import annotations

import importlib
import pickle
import pkgutil
from collections.abc import Iterator

import pytest

import penstock
from penstock import errors
from penstock.errors import DefiniteError, PenstockError, TableError, TransientError, UsageError


def descendants(root: type[PenstockError]) -> Iterator[type[PenstockError]]:
    for child in root.__subclasses__():
        yield child
        yield from descendants(child)


def everywhere() -> list[type[PenstockError]]:
    """Return all errors, including those defined in other modules."""
    for package in ("sources", "changelog", "catalog", "engine", "sql"):
        for module in pkgutil.walk_packages([*penstock.__path__], "penstock."):
            if module.name.startswith(f"penstock.{package}"):
                importlib.import_module(module.name)
    return [PenstockError, *sorted(set(descendants(PenstockError)), key=lambda kind: kind.__name__)]


def test_every_error_pickles() -> None:
    for kind in everywhere():
        made = kind("public.t", 7, "it broke", "fix it") if issubclass(kind, TableError) else kind("it broke", "fix it")
        back = pickle.loads(pickle.dumps(made))
        assert type(back) is kind
        assert (back.message, back.hint, back.exit_code) == ("it broke", "fix it", kind.exit_code)
        assert str(back) == "it broke\nhint: fix it"
        assert vars(back) == vars(made)


def test_a_table_error_keeps_its_table_and_position() -> None:
    back = pickle.loads(pickle.dumps(TableError("public.t", 7, "it broke")))
    assert (back.table, back.lsn, back.message, back.hint) == ("public.t", 7, "it broke", "")
    assert str(back) == "it broke"


@pytest.mark.parametrize(("kind", "code"), [(UsageError, 2), (DefiniteError, 3), (TransientError, 4)])
def test_exit_codes(kind: type[PenstockError], code: int) -> None:
    assert kind("x").exit_code == code


def test_the_tree_in_the_docstring_is_the_tree() -> None:
    assert errors.__doc__ is not None
    for name in (each for each in errors.__all__ if each.endswith("Error")):
        assert name in errors.__doc__
