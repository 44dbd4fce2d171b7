"""Compiled kernels are those of the sources, wherever these are installed, and whoever runs them."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock import kernel_cache
from penstock.kernel_cache import fingerprint, kernel_sources

SRC = Path(kernel_cache.__file__).parent
CALLER = """
from penstock.inner_part import twice
from penstock.kernel_cache import cached_njit
@cached_njit("int64(int64)")
def kernel(number):
    return twice(number)
print(kernel(21), sum(kernel.stats.cache_hits.values()))
"""
INNER = """
import numba
@numba.njit
def twice(number):
    return {factor} * number
"""
INNER_WITH_CONSTANT = """
import numba
from penstock.passing import FACTOR
@numba.njit
def twice(number):
    return FACTOR * number
"""


def run(package: Path, cache: Path, **variables: str) -> list[str]:
    """Run the kernel of a small package in a process of its own; return its result, and how often the cache had it."""
    environment = {**os.environ, "PYTHONPATH": str(package.parent), "PENSTOCK_CACHE": str(cache), **variables}
    environment.pop("NUMBA_CACHE_DIR", None)
    done = subprocess.run(
        [sys.executable, "-m", "penstock.caller"], env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout.split()


def package(folder: Path) -> Path:
    """Write a package with the real cache module, and a kernel that calls a function of another file."""
    made = folder / "penstock"
    made.mkdir(parents=True)
    for name in ("kernel_cache.py", "cache.py"):
        (made / name).write_text((SRC / name).read_text())
    (made / "__init__.py").touch()
    (made / "caller.py").write_text(CALLER)
    (made / "inner_part.py").write_text(INNER.format(factor=2))
    return made


def test_a_changed_inner_function_is_compiled_again(tmp_path: Path) -> None:
    made, cache = package(tmp_path / "installed"), tmp_path / "cache"
    assert run(made, cache) == ["42", "0"]
    assert run(made, cache) == ["42", "1"], "the second process loads what the first compiled"
    (made / "inner_part.py").write_text(INNER.format(factor=3))
    assert run(made, cache) == ["63", "0"]


def test_a_changed_constant_that_another_module_passes_on_is_compiled_again(tmp_path: Path) -> None:
    made, cache = package(tmp_path / "installed"), tmp_path / "cache"
    (made / "inner_part.py").write_text(INNER_WITH_CONSTANT)
    (made / "passing.py").write_text("from penstock.origin import FACTOR\n")
    (made / "origin.py").write_text("FACTOR = 2\n")
    assert run(made, cache) == ["42", "0"]
    assert run(made, cache) == ["42", "1"]
    (made / "origin.py").write_text("FACTOR = 3\n")
    assert run(made, cache) == ["63", "0"]


@pytest.mark.parametrize(
    "statement",
    [
        "from penstock.part.origin import FACTOR",
        "from penstock.part.origin import (\n    FACTOR as F,\n    OTHER,\n)",
        "from penstock.part import other, origin",
        "from penstock.part import (\n    other,\n    origin as constants,\n)",
        "import penstock.part.origin",
        "import penstock.part.origin as constants",
    ],
)
def test_any_form_of_an_import_is_followed(tmp_path: Path, statement: str) -> None:
    made = package(tmp_path)
    (made / "part").mkdir()
    (made / "part" / "__init__.py").touch()
    (made / "part" / "origin.py").write_text("from penstock import passing\n")
    (made / "passing.py").write_text(f"{statement}\n")
    (made / "unrelated.py").write_text("from penstock.caller import kernel\n")
    (made / "inner_part.py").write_text(INNER_WITH_CONSTANT)
    names = {str(path.relative_to(made)) for path in kernel_sources(made)}
    assert {"inner_part.py", "passing.py", "part/origin.py"} <= names
    assert "unrelated.py" not in names


def forbid_writes(package: Path) -> None:
    """Make the cache unusable for writes, as in a read-only file system; the permissions of files do not bind root."""
    text = (package / "kernel_cache.py").read_text()
    begin = text.index("        folder.mkdir(parents=True, exist_ok=True)\n        tempfile.TemporaryFile(")
    (package / "kernel_cache.py").write_text(f"{text[:begin]}        raise OSError\n{text[begin:]}")


def test_kernels_of_a_read_only_cache_are_loaded_by_all_processes(tmp_path: Path) -> None:
    made, cache, temporary = package(tmp_path / "installed"), tmp_path / "cache", tmp_path / "temporary"
    temporary.mkdir()
    forbid_writes(made)
    name = fingerprint(kernel_sources(made), made)
    assert run(made, cache, TMPDIR=str(temporary)) == ["42", "0"], "compiled into a temporary folder"
    (shared,) = temporary.iterdir()
    assert shared.stat().st_mode & 0o777 == 0o700
    (cache / "kernels").mkdir(parents=True)
    (shared / name).rename(cache / "kernels" / name)
    assert run(made, cache, TMPDIR=str(temporary)) == ["42", "1"], "copied from the cache"
    (cache / "kernels" / name).rename(tmp_path / "elsewhere")
    assert run(made, cache, TMPDIR=str(temporary)) == ["42", "1"], "the second process uses the same copy"
    assert [path.name for path in shared.iterdir()] == [name]


def test_a_temporary_folder_of_others_is_not_trusted(tmp_path: Path) -> None:
    made, temporary = package(tmp_path / "installed"), tmp_path / "temporary"
    forbid_writes(made)
    shared = temporary / f"penstock-kernels-{os.getuid()}"
    shared.mkdir(parents=True)
    shared.chmod(0o777)
    assert run(made, tmp_path / "cache", TMPDIR=str(temporary)) == ["42", "0"]
    assert not list(shared.iterdir())


def test_a_read_only_installation_and_an_unusable_cache(tmp_path: Path) -> None:
    made, cache = package(tmp_path / "installed"), tmp_path / "cache"
    assert run(made, cache) == ["42", "0"]
    assert not list(made.rglob("*.nb[ic]")), "nothing is written beside the sources"
    cache_file = tmp_path / "a-file"
    cache_file.touch()
    assert run(made, cache_file) == ["42", "0"], "compiled into a temporary folder"


def test_every_kernel_and_what_it_imports_is_in_the_fingerprint() -> None:
    names = {str(path.relative_to(SRC)) for path in kernel_sources()}
    decorators = ("@inner", "@compiled", "@inlined", "@unrolled", "@kernel", "njit(")
    defining = {path for path in SRC.rglob("*.py") if any(mark in path.read_text() for mark in decorators)}
    assert {str(path.relative_to(SRC)) for path in defining} <= names
    assert "sources/postgres/types/codec.py" in names, "kernels use its constants"
    assert "engine/runner.py" not in names


def imports(file: Path) -> Iterator[str]:
    """Yield the modules that a module imports at its top level, and the names in them, as the parser sees them."""
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_no_import_of_a_source_in_the_fingerprint_is_missed() -> None:
    sources = set(kernel_sources())
    for file in sources:
        for name in imports(file):
            path = SRC.parent.joinpath(*name.split("."))
            existing = {found for found in (path.with_suffix(".py"), path / "__init__.py") if found.exists()}
            assert {found for found in existing if found.is_relative_to(SRC)} <= sources, f"{file} imports {name}"


def test_the_fingerprint_is_of_names_and_contents(tmp_path: Path) -> None:
    one, two = tmp_path / "one.py", tmp_path / "two.py"
    one.write_text("a")
    two.write_text("b")
    found = fingerprint([one, two], tmp_path)
    two.write_text("c")
    assert fingerprint([one, two], tmp_path) != found
    two.write_text("b")
    assert fingerprint([one, two], tmp_path) == found
    assert fingerprint([one], tmp_path) != found
