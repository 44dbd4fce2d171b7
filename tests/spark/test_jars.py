"""Jars are fetched once, enter the cache only if their checksum matches, and can be fetched by concurrent processes."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.errors import DefiniteError, TransientError
from penstock.spark import jars
from penstock.spark.jars import Jar, ensure_jars, locked_jars
from penstock.testing.waiting import PATIENCE

CONTENT = b"a jar, as far as this test goes"
LOCKED = Jar("org.example", "thing_2.13", "1.0", len(CONTENT), hashlib.sha256(CONTENT).hexdigest())


class Repository:
    """Replaces Ivy: serves `content` under every name, and counts requests."""

    def __init__(self, content: bytes | None) -> None:
        self.content = content
        self.requests = 0
        self.failures = 0

    def retrieve(self, wanted: list[Jar], scratch: Path) -> list[Path]:
        self.requests += 1
        if self.content is None or self.requests <= self.failures:
            raise TransientError("could not fetch", "Try again.")
        for jar in wanted:
            (scratch / jar.artifact).write_bytes(self.content)
        return [scratch / jar.artifact for jar in wanted]


def serve(content: bytes | None, monkeypatch: pytest.MonkeyPatch, cache: Path) -> Repository:
    repository = Repository(content)
    monkeypatch.setenv("PENSTOCK_CACHE", str(cache))
    monkeypatch.setattr(jars, "locked_jars", lambda: [LOCKED])
    monkeypatch.setattr(jars, "_retrieve", repository.retrieve)
    monkeypatch.setattr(jars, "_RETRY_SECONDS", (0.0, 0.0))
    return repository


def cached_files(cache: Path) -> list[Path]:
    return [path for path in cache.rglob("*") if path.is_file()]


def test_a_jar_is_fetched_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    repository = serve(CONTENT, monkeypatch, tmp_path)
    messages: list[str] = []
    first, second = ensure_jars(messages.append), ensure_jars(messages.append)
    assert first == second == [LOCKED.path(tmp_path / "jars")]
    assert first[0].read_bytes() == CONTENT
    assert repository.requests == 1
    assert messages == ["downloading org.example:thing_2.13:1.0 (once)"]


def test_jar_with_a_wrong_checksum_is_not_cached(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    serve(CONTENT[::-1], monkeypatch, tmp_path)
    with pytest.raises(DefiniteError, match=r"org\.example:thing_2\.13:1\.0 has sha256") as caught:
        ensure_jars()
    assert caught.value.hint
    assert cached_files(tmp_path) == []


def test_a_truncated_jar_is_fetched_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    repository = serve(CONTENT, monkeypatch, tmp_path)
    [path] = ensure_jars()
    path.write_bytes(CONTENT[:-1])
    assert ensure_jars()[0].read_bytes() == CONTENT
    assert repository.requests == 2


def test_failed_fetch_is_retried(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    repository = serve(CONTENT, monkeypatch, tmp_path)
    repository.failures = 2
    messages: list[str] = []
    assert ensure_jars(messages.append)[0].read_bytes() == CONTENT
    assert messages[1:] == ["could not fetch; retrying"] * 2


def test_failed_fetch_leaves_no_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    serve(None, monkeypatch, tmp_path)
    with pytest.raises(TransientError):
        ensure_jars()
    assert cached_files(tmp_path) == []


def test_ivy_error_is_transient_and_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path))
    monkeypatch.setattr(jars, "locked_jars", lambda: [LOCKED])
    monkeypatch.setattr(jars, "_RETRY_SECONDS", ())
    monkeypatch.setattr(jars, "_run", lambda command, wanted: "Server access error at url x (no route)")
    with pytest.raises(TransientError, match="no route") as caught:
        ensure_jars()
    assert "JAVA_TOOL_OPTIONS" in caught.value.hint


def test_cache_folder_that_cannot_be_created_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    serve(CONTENT, monkeypatch, tmp_path / "file")
    with pytest.raises(DefiniteError, match="could not create cache folder") as caught:
        ensure_jars()
    assert "PENSTOCK_CACHE" in caught.value.hint


def test_lock_contains_delta() -> None:
    assert {jar.artifact for jar in locked_jars()} >= {"delta-spark_4.2_2.13", "delta-storage"}


@pytest.mark.parametrize("line", ["", "a:b:1 5", "a:b 5 " + "0" * 64, "a:b:1 five " + "0" * 64, "a:b:1 5 abc"])
def test_malformed_line_is_rejected(line: str) -> None:
    with pytest.raises(ValueError):
        Jar.parse(line)


def test_two_processes_fetch_concurrently(tmp_path: Path) -> None:
    """With the real Ivy and an empty cache: both get complete, verified jars."""
    program = "from penstock.spark.jars import ensure_jars; print(*ensure_jars(), sep='\\n')"
    environment = os.environ | {"PENSTOCK_CACHE": str(tmp_path)}
    processes = [
        subprocess.Popen([sys.executable, "-c", program], env=environment, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    outputs = [process.communicate(timeout=PATIENCE)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    assert outputs[0] == outputs[1]
    for jar, path in zip(locked_jars(), outputs[0].split(), strict=True):
        assert hashlib.sha256(Path(path).read_bytes()).hexdigest() == jar.sha256
    assert len(cached_files(tmp_path / "jars")) == len(locked_jars())


def test_lock_may_contain_an_archive_with_a_classifier() -> None:
    line = f"org.example:thing:1.0:all@zip 5 {'0' * 64}"
    jar = Jar.parse(line)
    assert jar.coordinates == "org.example:thing:1.0:all@zip"
    assert jar.fetched_name == "thing-1.0-all.zip"
    assert jar.path(Path("d")).name == f"thing-1.0-{'0' * 16}.zip"
    assert 'm:classifier="all"' in jars._ivy_module([jar])
    for wrong in (f"org.example:thing:1.0:all 5 {'0' * 64}", f"a:b:c:d@e:f 5 {'0' * 64}", "a:b:c 5 0"):
        with pytest.raises(ValueError):
            Jar.parse(wrong)
