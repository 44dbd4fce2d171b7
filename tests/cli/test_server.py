"""``penstock run --listen``, a second ``penstock run``, and ``penstock ui``; without Spark."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.cli.commands import penstock

from penstock.errors import TransientError
from penstock.home import Home
from penstock.server.serving import serve

DEFINITE, USAGE = 3, 2
BANK = "CREATE SOURCE bank FROM LOAD GENERATOR BANK;"


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


def no_spark() -> None:
    raise TransientError("Spark is starting", "Try again.")


def test_listening_for_other_machines_needs_a_token(home: Home) -> None:
    answer = penstock("run", "--home", home.path, "--listen", "0.0.0.0:7878").assert_error(USAGE)
    assert "requires a token" in answer.error
    assert "--token-file" in answer.hint
    assert home.sources() == []


@pytest.mark.parametrize(("option", "value"), [("--listen", "7878"), ("--token-file", "no such file")])
def test_invalid_options_create_nothing(home: Home, tmp_path: Path, option: str, value: str) -> None:
    (tmp_path / "bank.sql").write_text(BANK)
    answer = penstock("run", tmp_path / "bank.sql", "--home", home.path, option, value).assert_error(USAGE)
    assert value in answer.error
    assert home.sources() == []


def test_second_run_names_the_page_of_the_first(home: Home) -> None:
    home.sql(BANK)
    with serve(home, no_spark, "127.0.0.1:0") as serving:  # type: ignore[arg-type]
        answer = penstock("run", "--home", home.path).assert_error(DEFINITE)
        assert f"pid {os.getpid()}" in answer.error
        assert serving.address.url in answer.hint
        assert penstock("status", "--home", home.path).code == 0


def test_ui_prints_the_url(home: Home) -> None:
    with serve(home, no_spark, "127.0.0.1:0") as serving:  # type: ignore[arg-type]
        env = {"BROWSER": "", "DISPLAY": "", "WAYLAND_DISPLAY": ""}
        answer = penstock("ui", "--home", home.path, env=env)
        assert (answer.code, answer.out) == (0, f"{serving.address.url}\n")


def test_ui_opens_a_browser(home: Home, tmp_path: Path) -> None:
    browser, opened = tmp_path / "browser", tmp_path / "opened"
    browser.write_text(f'#!/bin/sh\necho "$1" > {opened}\n')
    browser.chmod(0o755)
    with serve(home, no_spark, "127.0.0.1:0") as serving:  # type: ignore[arg-type]
        assert penstock("ui", "--home", home.path, env={"BROWSER": f"{browser} %s"}).code == 0
        assert opened.read_text() == f"{serving.address.url}\n"


def test_ui_without_a_running_home(home: Home, tmp_path: Path) -> None:
    answer = penstock("ui", "--home", home.path).assert_error(USAGE)
    assert f"penstock run --home {home.path}" in answer.hint
    assert "there is no home" in penstock("ui", "--home", tmp_path / "other").assert_error(USAGE).error
