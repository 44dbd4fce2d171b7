"""The walls between the layers: every import in ``src/`` is held to the table below.

Move a wall when there is a reason, and change the table here and in the design page then. A package that is not in
the table fails too: a new layer first says what it may import.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SRC = Path(__file__).parent.parent / "src"

BASE = {
    "errors",
    "positions",
    "model",
    "options",
    "layout",
    "nearest",
    "units",
    "secret",
    "fields",
    "kafka_offsets",
    "unexpected",
}
LOWER = BASE | {"changelog", "formats", "envelopes"}
DATA = LOWER | {"sources", "spark"}
FACES = {"cli", "web"}
MAY_IMPORT: dict[str, set[str]] = {
    **dict.fromkeys(BASE, BASE),
    "changelog": BASE,
    "formats": BASE,
    "envelopes": BASE,
    "embedded": BASE,
    "sources": BASE | {"changelog", "formats", "envelopes"},
    "spark": LOWER | {"sources", "catalog"},
    "tables": DATA,
    "sinks": DATA,
    "catalog": BASE | {"changelog", "sources"},
    "engine": DATA | {"tables", "sinks", "catalog"},
    "sql": BASE | {"sources", "sinks", "catalog", "engine"},
    "home": DATA | {"tables", "sinks", "catalog", "engine", "sql"},
    "demo": BASE | {"embedded", "home"},
    "cli": BASE | {"home", "engine", "sql", "demo"},
    "web": BASE | {"home", "engine"},
}
API = {"home", "live", "views", "executor"}
"""The Python API: modules right in `penstock` that are one layer, `home`."""
ANYTHING = DATA | {"embedded", "tables", "sinks", "catalog", "engine", "sql", "home", "demo", "testing"} | FACES
MAY_IMPORT["testing"] = ANYTHING
MAY_IMPORT["__init__"] = BASE | {"changelog", "home", "spark"}  # penstock itself: the public names
MAY_IMPORT["pyspark_penstock"] = {"spark"}  # where Spark looks for the data source

MODULES = sorted(SRC.rglob("*.py"))


def layer_of(path: Path) -> str:
    """Name the layer of a file: the folder below ``penstock``, or the module right in it."""
    parts = path.relative_to(SRC).with_suffix("").parts
    return named_layer(parts[1] if len(parts) > 1 else parts[0])


def named_layer(name: str) -> str:
    """Name the layer of a module or folder below ``penstock``."""
    return "home" if name in API else name


def imported_modules(tree: ast.AST) -> Iterator[str]:
    """Yield the dotted names of what is imported, at the top and inside functions, also for type checking alone."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            assert node.module is not None
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def our_imports(tree: ast.AST) -> Iterator[tuple[str, ...]]:
    """Yield what is imported of ours, as the parts after ``penstock``."""
    for name in imported_modules(tree):
        parts = tuple(name.split("."))
        if parts[0] == "penstock":
            yield parts[1:]


def violations(path: Path, tree: ast.AST) -> list[str]:
    """Say which imports of `path` go through a wall."""
    layer = layer_of(path)
    allowed = MAY_IMPORT[layer] | {layer}
    found = [
        f"{layer} may not import penstock.{'.'.join(name)}"
        for name in our_imports(tree)
        if named_layer(name[0]) not in allowed
    ]
    return found + foreign_kinds(path, tree)


def foreign_kinds(path: Path, tree: ast.AST) -> list[str]:
    """Say where one kind of source, a folder below ``sources``, imports another."""
    family = SRC / "penstock" / "sources"
    if family not in path.parents or path.parent == family:
        return []
    own = path.relative_to(family).parts[0]
    others = {name[1] for name in our_imports(tree) if name[0] == "sources" and len(name) > 1} - {own}
    kinds = {folder.name for folder in family.iterdir() if folder.is_dir()}
    return [f"the source {own} may not import the source {other}" for other in sorted(others & kinds)]


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SRC)))
def test_imports_stay_within_their_walls(path: Path) -> None:
    assert violations(path, ast.parse(path.read_text(encoding="utf-8"))) == []


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("penstock/errors.py", "from penstock.engine import runner"),
        ("penstock/changelog/sqlite.py", "import penstock.sources.postgres"),
        ("penstock/spark/session.py", "def f():\n    from penstock import tables"),
        ("penstock/sources/kafka/topics.py", "from penstock.sources.postgres.slot import Slot"),
        ("penstock/cli/main.py", "from penstock.spark.session import session"),
    ],
)
def test_a_breach_is_seen(path: str, source: str) -> None:
    assert violations(SRC / path, ast.parse(source)) != []


def test_the_table_has_no_cycle() -> None:
    layers = {layer: MAY_IMPORT[layer] - BASE - {layer} for layer in MAY_IMPORT if layer not in BASE}
    while layers:
        free = [layer for layer, needs in layers.items() if not needs & layers.keys()]
        assert free, f"a cycle among {sorted(layers)}"
        for layer in free:
            del layers[layer]
