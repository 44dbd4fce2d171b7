"""Postgres servers of any version for tests: fetched and unpacked once, selected by one variable."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from penstock.errors import DefiniteError, UsageError
from penstock.testing import postgres
from penstock.testing.postgres import VERSION_VARIABLE, chosen_version, programs, start_postgres, versions

TESTS = Path(__file__).parent.parent


def test_every_supported_version_is_available() -> None:
    assert list(versions()) == [14, 15, 16, 17, 18]


def test_oldest_version_starts_with_its_extensions() -> None:
    with start_postgres(14, fsync=False) as server:
        assert server.execute("SHOW server_version_num")[0][0].startswith("14")
        server.execute("CREATE EXTENSION hstore; CREATE EXTENSION citext")
        assert server.execute("SELECT 'A'::citext = 'a'") == [(True,)]


def test_server_is_unpacked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    first = programs(14)
    monkeypatch.setattr(postgres, "fetch_jars", lambda jars: pytest.fail("fetched again"))
    assert programs(14) == first
    assert (first / "postgres").is_file()


def test_variable_selects_the_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VERSION_VARIABLE, "15")
    with start_postgres(fsync=False) as server:
        assert server.execute("SHOW server_version_num")[0][0].startswith("15")
    monkeypatch.delenv(VERSION_VARIABLE)
    assert chosen_version() is None


@pytest.mark.parametrize("version", ["13", "fifteen", "-14"])
def test_unknown_version_is_rejected(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    monkeypatch.setenv(VERSION_VARIABLE, version)
    with pytest.raises(UsageError, match=VERSION_VARIABLE) as caught:
        start_postgres()
    assert "14, 15" in caught.value.hint


def test_unsupported_platform_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    with pytest.raises(DefiniteError, match="riscv64") as caught:
        programs(14)
    assert VERSION_VARIABLE in caught.value.hint


def test_all_tests_start_the_selected_server() -> None:
    """Only the tests of the embedded server start the server of the wheel."""
    direct = re.compile(r"^from penstock\.embedded\.postgres import .*\bstart_postgres\b", re.MULTILINE)
    found = [path for path in TESTS.rglob("test_*.py") if direct.search(path.read_text(encoding="utf-8"))]
    assert [str(path.relative_to(TESTS)) for path in found] == ["embedded/test_postgres.py"]
