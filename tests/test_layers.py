"""The walls between the layers: every import in ``src/`` is checked against the tables below.

Three rules: a layer imports only the layers that `MAY_IMPORT` allows; no module outside ``sources/<kind>/`` imports
from that folder; and no modules import each other in a cycle, also inside a package, inside functions and for type
checking alone.

Move a wall when there is a reason, and change the table here and in the design page then. A package that is not in
the table fails too: a new layer first says what it may import.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

SRC = Path(__file__).parent.parent / "src"
FAMILY = SRC / "penstock" / "sources"

BASE = {
    "errors",
    "positions",
    "model",
    "options",
    "layout",
    "name_suggestions",
    "units",
    "secret",
    "fields",
    "kafka_offsets",
    "unexpected_errors",
    "event_log",
    "private_file",
    "cache",
    "kernel_cache",
}
LOWER = BASE | {"changelog", "formats", "envelopes"}
DATA = LOWER | {"sources", "spark"}
FACES = {"cli", "server"}
MAY_IMPORT: dict[str, set[str]] = {
    **dict.fromkeys(BASE, BASE),
    "changelog": BASE,
    "formats": BASE,
    "envelopes": BASE,
    "embedded": BASE,
    "sql/syntax": BASE,
    "kafka_client": BASE | {"formats", "sql/syntax"},
    "tables/arrow": BASE | {"changelog"},
    "sources": LOWER | {"kafka_client", "sql/syntax"},
    "spark": LOWER | {"sources", "catalog", "tables/arrow"},
    "tables": DATA | {"tables/arrow"},
    "sinks": DATA | {"kafka_client", "sql/syntax", "tables/arrow"},
    "sources/apply": DATA | {"tables"},
    "catalog": BASE | {"changelog", "sources"},
    "engine": DATA | {"kafka_client", "tables", "tables/arrow", "sinks", "catalog"},
    "sql": BASE | {"sql/syntax", "sources", "sinks", "catalog", "engine"},
    "home": DATA | {"kafka_client", "tables", "sinks", "catalog", "engine", "sql", "sql/syntax"},
    "demo": BASE | {"embedded", "home"},
    "server": BASE | {"home", "engine", "sql"},
    "cli": BASE | {"home", "engine", "sql", "demo", "server"},
}
API = {
    *("home", "home_operations", "live", "live_names", "views", "spark_clients", "executor"),
    *("query_sessions", "result_messages"),
}
"""The Python API: modules right in `penstock` that are one layer, `home`."""
ANYTHING = (
    DATA
    | {
        "embedded",
        "kafka_client",
        "tables/arrow",
        "tables",
        "sinks",
        "catalog",
        "engine",
        "sql",
        "home",
        "demo",
        "testing",
    }
    | FACES
)
MAY_IMPORT["testing"] = ANYTHING
MAY_IMPORT["__init__"] = BASE | {"changelog", "home", "spark"}  # penstock itself: the public names
MAY_IMPORT["pyspark_penstock"] = {"spark"}  # where Spark looks for the data source

MODULES = sorted(SRC.rglob("*.py"))


IN_SPARK = {"apply"}
"""Folders of a kind that need Spark and base tables. Only the log of the kind names them, as an entry point."""
LOWER_FOLDERS = {("sql", "syntax"), ("tables", "arrow")}
"""Folders that are a layer of their own, below the package that they are in: others use them without that package."""


def layer_of(path: Path) -> str:
    """Name the layer of a file."""
    parts = path.relative_to(SRC).with_suffix("").parts
    return named_layer(parts[1:] or parts)


def named_layer(parts: tuple[str, ...]) -> str:
    """Name the layer of a module, by its path below ``penstock``: the folder, or the module right in it."""
    if parts[0] == "sources" and len(parts) > 2 and parts[2] in IN_SPARK:
        return f"sources/{parts[2]}"
    if parts[:2] in LOWER_FOLDERS:
        return "/".join(parts[:2])
    return "home" if parts[0] in API else parts[0]


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
    """Return the imports of `path` that its layer does not allow."""
    layer = layer_of(path)
    allowed = MAY_IMPORT[layer] | {layer}
    found = [
        f"{layer} may not import penstock.{'.'.join(name)}"
        for name in our_imports(tree)
        if named_layer(name) not in allowed
    ]
    return found + foreign_kinds(path, tree)


def kinds() -> set[str]:
    """Return the folders below ``sources``: one for each kind of source."""
    return {folder.name for folder in FAMILY.iterdir() if (folder / "__init__.py").is_file()}


def kinds_named(path: Path, tree: ast.AST) -> set[str]:
    """Return the kinds from whose folders `path` imports, apart from its own."""
    own = {path.relative_to(FAMILY).parts[0]} if FAMILY in path.parents else set()
    return {name[1] for name in our_imports(tree) if name[0] == "sources" and len(name) > 1} & kinds() - own


def foreign_kinds(path: Path, tree: ast.AST) -> list[str]:
    """Report where a module imports from the folder of a kind that is not its own."""
    return [f"{module_of(path)} names the kind {kind}" for kind in sorted(kinds_named(path, tree))]


def module_of(path: Path) -> str:
    """Return the dotted name of a file below ``src``."""
    parts = path.relative_to(SRC).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def import_graph(trees: Mapping[str, ast.AST]) -> dict[str, set[str]]:
    """Return, for each module by its dotted name, the modules among `trees` that it imports, wherever it does."""

    def imported(name: str) -> Iterator[str]:
        for found in imported_modules(trees[name]):
            while found and found not in trees:
                found = found.rpartition(".")[0]
            if found and found != name:
                yield found

    return {name: set(imported(name)) for name in trees}


def cycles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """Return the groups of modules that import each other, directly or by way of others."""
    order = TopologicalSorter(graph)
    try:
        order.prepare()
    except CycleError as error:
        return [error.args[1]]
    return []


def test_imports_respect_the_layers() -> None:
    found = {module_of(path): violations(path, ast.parse(path.read_text(encoding="utf-8"))) for path in MODULES}
    assert len(found) > 300, "all modules are checked"
    assert {module: wrong for module, wrong in found.items() if wrong} == {}


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("penstock/errors.py", "from penstock.engine import runner"),
        ("penstock/changelog/sqlite.py", "import penstock.sources.postgres"),
        ("penstock/spark/session.py", "def f():\n    from penstock import tables"),
        ("penstock/sources/kafka/topics.py", "from penstock.sources.postgres.replication.slot import Slot"),
        ("penstock/cli/main.py", "from penstock.spark.session import session"),
        ("penstock/engine/status.py", "from penstock.sources.postgres.replication.slot import SlotState"),
        ("penstock/live.py", "def f():\n    from penstock.sources import postgres"),
        ("penstock/sources/polling.py", "from penstock.sources.files import folder"),
        ("penstock/sources/kafka/topic_log.py", "from penstock.sources.kafka.apply.tail import live_topic"),
        ("penstock/sources/kafka/apply/tail.py", "from penstock.engine.table import RunningTable"),
    ],
)
def test_violation_is_detected(path: str, source: str) -> None:
    assert violations(SRC / path, ast.parse(source)) != []


def test_no_modules_import_each_other() -> None:
    trees = {module_of(path): ast.parse(path.read_text(encoding="utf-8")) for path in MODULES}
    assert cycles(import_graph(trees)) == []


@pytest.mark.parametrize(
    "closing",
    ["import penstock.a", "def f():\n    from penstock.a import g", "if TYPE_CHECKING:\n    from penstock import a"],
)
def test_cycle_is_detected(closing: str) -> None:
    texts = {"penstock": "", "penstock.a": "import penstock.b.c", "penstock.b": "", "penstock.b.c": closing}
    found = cycles(import_graph({name: ast.parse(text) for name, text in texts.items()}))
    assert [set(cycle) for cycle in found] == [{"penstock.a", "penstock.b.c"}]


def test_the_table_has_no_cycle() -> None:
    layers = {layer: MAY_IMPORT[layer] - BASE - {layer} for layer in MAY_IMPORT if layer not in BASE}
    while layers:
        free = [layer for layer, needs in layers.items() if not needs & layers.keys()]
        assert free, f"a cycle among {sorted(layers)}"
        for layer in free:
            del layers[layer]
