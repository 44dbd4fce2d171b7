"""``python -m bench NAME [--quick]`` runs a benchmark; without a name, it lists all benchmarks."""

from __future__ import annotations

import argparse
import ast
import importlib
import sys
from pathlib import Path

from penstock.errors import PenstockError, UsageError


def main(arguments: list[str]) -> int:
    """Run one benchmark; the last line is its figure: a ratio, unless the benchmark has another unit."""
    parser = argparse.ArgumentParser("python -m bench", description="Run one benchmark.")
    parser.add_argument("name", nargs="?", help="a benchmark; `python -m bench` lists all")
    parser.add_argument("--quick", action="store_true", help="run for about a minute, with a less precise figure")
    given = parser.parse_args(arguments)
    try:
        return _run(given.name, given.quick)
    except PenstockError as error:
        print(error, file=sys.stderr)
        return error.exit_code


def _run(name: str | None, quick: bool) -> int:
    known = benches()
    if name is None:
        print("\n".join(f"{known_name:12} {summary}" for known_name, summary in known.items()))
        return 0
    if name not in known:
        raise UsageError(f"unknown benchmark {name!r}", f"Use one of: {', '.join(known)}.")
    bench = importlib.import_module(f"bench.{name.replace('-', '_')}")
    print(f"{getattr(bench, 'UNIT', 'ratio')} {name} {bench.run(quick):.2f}")
    return 0


def benches() -> dict[str, str]:
    """Return the benchmarks (the modules with a function `run`) and their summaries."""
    found = {}
    for path in sorted(Path(__file__).parent.glob("*.py")):
        tree = ast.parse(path.read_text())
        if any(isinstance(node, ast.FunctionDef) and node.name == "run" for node in tree.body):
            found[path.stem.replace("_", "-")] = (ast.get_docstring(tree) or "").partition("\n")[0]
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
