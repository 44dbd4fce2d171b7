"""Run tests on a copy of the tree, with or without a mutation."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tests.mutations.mutation import Mutation, MutationError

__all__ = ["FAST_TIER", "Outcome", "copied", "run_tests", "snapshot"]

ROOT = Path(__file__).parent.parent.parent
FAST_TIER = ("tests", "-n", "3", "--dist", "loadfile", "--no-loadscope-reorder", "--ignore=tests/test_mutations.py")
"""The whole fast tier, as `make test` runs it; without the test that checks the text of mutations."""
_SECONDS = 3600.0
_FAILED = re.compile(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", re.MULTILINE)
_REASON = re.compile(r"^E +(.+)$", re.MULTILINE)
_PASSED, _TESTS_FAILED = 0, 1


@dataclass(frozen=True)
class Outcome:
    """The result of a test run."""

    passed: bool
    first_failure: str
    """The id of the first test that failed; empty if all passed."""
    reason: str
    """The first line of its error: a mere timeout on a busy machine does not count as caught."""
    seconds: float
    output: str


@contextmanager
def snapshot() -> Iterator[Path]:
    """Yield a copy of the current working tree, so that later changes do not affect the check."""
    with tempfile.TemporaryDirectory(prefix="penstock-mutations-") as folder:
        taken = Path(folder).resolve() / "tree"
        for path in _files():
            (taken / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / path, taken / path)
        yield taken


def _files() -> Iterator[Path]:
    """Yield the files of the tree, tracked or not, and the compiled files of the sources."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    yield from (Path(name) for name in listed.split("\0") if name and (ROOT / name).is_file())
    yield from (path.relative_to(ROOT) for path in (ROOT / "src").glob("**/__pycache__/*"))


@contextmanager
def copied(taken: Path, mutation: Mutation | None = None) -> Iterator[Path]:
    """Yield a copy of a snapshot with a mutation applied; remove it afterwards."""
    with tempfile.TemporaryDirectory(prefix="penstock-mutation-", ignore_cleanup_errors=True) as folder:
        root = Path(folder).resolve() / "tree"
        shutil.copytree(taken, root)
        if mutation is not None:
            mutation.apply(root)
            for compiled in _compiled(root / mutation.file):
                compiled.unlink()
        _check_import(root)
        yield root


def _compiled(file: Path) -> Iterator[Path]:
    """Yield the bytecode and the kernels of a source file."""
    return (file.parent / "__pycache__").glob(f"{file.stem}.*")


def _check_import(root: Path) -> None:
    """Raise unless tests import the copy instead of an installed package."""
    command = [sys.executable, "-c", "import penstock; print(penstock.__file__)"]
    done = subprocess.run(command, cwd=root, env=_environment(root), capture_output=True, text=True, check=False)
    if not done.stdout.startswith(str(root)):
        message = f"penstock is not imported from the copy: {done.stdout.strip() or done.stderr.strip()}"
        raise MutationError(message)


def _environment(root: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(root / "src")}


def run_tests(root: Path, tests: Sequence[str], *, stop_at_first: bool = True) -> Outcome:
    """Run tests of the fast tier in a copy."""
    options = ["-m", "not deep", "-q", "-rfE", "--tb=short", "--no-header", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", *tests, *options, *(["-x"] if stop_at_first else [])]
    began = time.monotonic()
    with subprocess.Popen(
        command,
        cwd=root,
        env=_environment(root),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            output, _ = process.communicate(timeout=_SECONDS)
        except subprocess.TimeoutExpired:
            _kill(process)
            return Outcome(False, f"(no answer within {_SECONDS:.0f} s)", "timeout", time.monotonic() - began, "")
        except BaseException:
            _kill(process)
            raise
    if process.returncode not in (_PASSED, _TESTS_FAILED):
        message = f"pytest ended with exit code {process.returncode} in {' '.join(tests)}:\n{output[-4000:]}"
        raise MutationError(message)
    passed, seconds = process.returncode == _PASSED, time.monotonic() - began
    first, reason = ("", "") if passed else (_first(_FAILED, output), _first(_REASON, output))
    return Outcome(passed, first, reason, seconds, output)


def _first(pattern: re.Pattern[str], output: str) -> str:
    found = pattern.search(output)
    return "" if found is None else found[1]


def _kill(process: subprocess.Popen[str]) -> None:
    """Kill pytest and the servers that it started."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
