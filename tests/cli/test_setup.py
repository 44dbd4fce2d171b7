"""`penstock setup`: jars and kernels are in the cache afterwards, and nothing is fetched or compiled again."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli.commands import in_a_shell, penstock

from penstock.cache import cache_dir
from penstock.spark.jars import locked_jars

RESOLVE_NOTHING = """
import socket
def refuse(*arguments, **options):
    raise OSError("no network")
socket.getaddrinfo = socket.socket.connect = refuse
"""
START = (
    RESOLVE_NOTHING
    + """
from penstock.formats.warm import warm as warm_formats
from penstock.sources.postgres.warm import warm as warm_postgres
from penstock.spark.jars import ensure_jars
from penstock.spark.java import java_home
def progress(text):
    raise AssertionError(text)
ensure_jars(progress), java_home(), warm_formats(), warm_postgres()
"""
)


def files(folder: Path) -> dict[str, int]:
    return {str(path.relative_to(folder)): path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def cache_with_jars(tmp_path: Path) -> Path:
    """A cache with the jars of the user's cache, and nothing else."""
    (tmp_path / "jars").mkdir()
    for jar in locked_jars():
        os.link(jar.path(cache_dir() / "jars"), jar.path(tmp_path / "jars"))
    return tmp_path


def test_last_line_says_where_and_how_much(cache_with_jars: Path) -> None:
    done = in_a_shell("setup", "--no-kernels", env={"PENSTOCK_CACHE": str(cache_with_jars)})
    assert done.code == 0, done.err
    size = sum(jar.size for jar in locked_jars()) / 1_000_000
    assert done.out.splitlines()[-1] == f"setup complete: {size:,.0f} MB in {cache_with_jars}"
    assert re.search(r"^Java \d+: /", done.out, re.MULTILINE)
    assert f"{len(locked_jars())} jars: {cache_with_jars / 'jars'}\n" in done.out
    assert {path.name for path in cache_with_jars.iterdir()} == {"jars", "java"}


def test_both_parts_can_be_omitted(tmp_path: Path) -> None:
    done = in_a_shell("setup", "--no-jars", "--no-kernels", env={"PENSTOCK_CACHE": str(tmp_path)})
    assert (done.code, done.out) == (0, f"setup complete: 0 MB in {tmp_path}\n")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("option", ["--no-jars", "--no-kernels"])
def test_a_cache_that_cannot_be_written_is_an_error(tmp_path: Path, option: str) -> None:
    unusable = tmp_path / "file"
    unusable.touch()
    done = penstock("setup", option, env={"PENSTOCK_CACHE": str(unusable)}).assert_error(3)
    assert str(unusable) in done.error
    assert "PENSTOCK_CACHE" in done.hint


@pytest.mark.deep
def test_a_start_after_setup_fetches_and_compiles_nothing(cache_with_jars: Path) -> None:
    environment = {**os.environ, "PENSTOCK_CACHE": str(cache_with_jars)}
    setup = [sys.executable, "-m", "penstock.cli", "setup"]
    first = subprocess.run(setup, env=environment, capture_output=True, text=True, check=False)
    assert first.returncode == 0, first.stderr
    before = files(cache_with_jars)
    assert sum(name.endswith(".nbc") for name in before) > 50
    started = subprocess.run(
        [sys.executable, "-c", START], env=environment, capture_output=True, text=True, check=False
    )
    assert started.returncode == 0, started.stderr
    assert files(cache_with_jars) == before
    again = subprocess.run(setup, env=environment, capture_output=True, text=True, check=True)
    assert again.stdout.splitlines()[-1] == first.stdout.splitlines()[-1]
    assert files(cache_with_jars) == before
