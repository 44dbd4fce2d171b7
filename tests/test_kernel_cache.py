"""Compiled kernels are those of the sources, wherever these are installed, and whoever runs them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

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


def run(package: Path, cache: Path) -> list[str]:
    """Run the kernel of a small package in a process of its own; return its result, and how often the cache had it."""
    environment = {**os.environ, "PYTHONPATH": str(package.parent), "PENSTOCK_CACHE": str(cache)}
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
