"""Global options, before and after the command; errors as JSON; confirmation of drops."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.cli.commands import penstock

from penstock.cli.global_options import with_global_options
from penstock.errors import UsageError
from penstock.home import open_home


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("status --home h", "status --home h"),
        ("--home h status --json", "status --home h --json"),
        ("--home=h --debug status", "status --home=h --debug"),
        ("--log-level debug status", "status"),
        ("status --log-level=debug --log-format json --watch", "status --watch"),
        ("--log-level debug --home h run url", "run --log-level debug --home h url"),
        ("run url --log-format json", "run url --log-format json"),
        ("--version", "--version"),
        ("sql -- --log-level", "sql -- --log-level"),
    ],
)
def test_options_are_moved_after_the_command(given: str, expected: str) -> None:
    assert with_global_options(given.split()) == expected.split()


def test_invalid_level_is_an_error_of_any_command() -> None:
    with pytest.raises(UsageError, match='invalid value "loud" of --log-level'):
        with_global_options(["status", "--log-level", "loud"])


def test_home_before_the_command(tmp_path: Path) -> None:
    open_home(tmp_path / "home")
    answer = penstock("--home", str(tmp_path / "home"), "--log-level", "debug", "status", "--json")
    assert answer.code == 0, answer.err
    assert json.loads(answer.out)["home"] == str(tmp_path / "home")


@pytest.mark.parametrize("arguments", [("-h",), ("status", "-h"), ("logs", "-h")])
def test_short_help(arguments: tuple[str, ...]) -> None:
    answer = penstock(*arguments)
    assert (answer.code, "Usage" in answer.out) == (0, True)


@pytest.mark.parametrize(
    ("arguments", "code"), [(("status", "--json"), 2), (("status", "--json", "--unknown"), 2), (("tail", "--json"), 2)]
)
def test_errors_are_json_with_json(tmp_path: Path, arguments: tuple[str, ...], code: int) -> None:
    answer = penstock(*arguments, "--home", str(tmp_path / "none"))
    assert (answer.code, answer.out) == (code, "")
    error = json.loads(answer.err)["error"]
    assert error["message"]
    assert (error["code"], bool(error["hint"])) == (code, True)
