"""In every module, ``__all__`` lists exactly the public names."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock

SRC = Path(__file__).parent.parent / "src"
MODULES = sorted(SRC.rglob("*.py"))
REEXPORTING = {
    "__init__.py",
    "__main__.py",
    "pyspark_penstock.py",
}  # the latter is imported by Spark to find the data source


def exported(tree: ast.Module) -> list[str] | None:
    """Return the value of ``__all__``, or None if the module has none."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and [ast.unparse(target) for target in node.targets] == ["__all__"]:
            value = ast.literal_eval(node.value)
            assert isinstance(value, list), "__all__ is a list of names"
            return value
    return None


def defined(body: list[ast.stmt]) -> Iterator[str]:
    """Yield the names that the statements of a module define, also under ``if``, ``try`` and ``with``."""
    for node in body:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield node.name
            case ast.Assign():
                yield from (name for target in node.targets for name in bound(target))
            case ast.AnnAssign():
                yield from bound(node.target)
            case ast.If() | ast.Try() | ast.With():
                for part in ("body", "orelse", "finalbody"):
                    yield from defined(getattr(node, part, []))


def bound(target: ast.expr) -> Iterator[str]:
    """Yield the plain names, but no attributes, that the target of an assignment binds."""
    stored = (node for node in ast.walk(target) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store))
    yield from (name.id for name in stored)


def imported(tree: ast.Module) -> set[str]:
    """Return the names that imports bind, including those under TYPE_CHECKING, which are loaded lazily."""
    imports = (node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom))
    return {alias.asname or alias.name.partition(".")[0] for node in imports for alias in node.names}


def public(names: Iterator[str]) -> set[str]:
    """Filter out names that begin with an underscore."""
    return {name for name in names if not name.startswith("_")}


def is_empty(tree: ast.Module) -> bool:
    """Return whether a module has only a docstring and ``__future__`` imports."""
    return all(
        (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
        or (isinstance(node, ast.ImportFrom) and node.module == "__future__")
        for node in tree.body
    )


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SRC)))
def test_all_lists_the_public_names(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    names = exported(tree)
    if names is None:
        assert path.name == "__init__.py", "__all__ is missing"
        assert is_empty(tree), "__all__ is missing"
        return
    assert len(names) == len(set(names)), "__all__ has duplicate names"
    own = public(defined(tree.body))
    reexported = imported(tree) if path.name in REEXPORTING else set()
    assert own <= set(names), f"public, but not in __all__: {sorted(own - set(names))}"
    assert set(names) <= own | reexported, f"in __all__, but not defined here: {sorted(set(names) - own - reexported)}"


def test_every_exported_name_can_be_imported() -> None:
    """Penstock imports names that need Spark lazily; every one of them must resolve."""
    missing = [name for name in penstock.__all__ if not hasattr(penstock, name)]
    assert missing == []
