"""``penstock logs``."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli.commands import penstock

from penstock import event_log
from penstock.event_log import Event, log_event, open_event_log
from penstock.layout import event_log_path
from penstock.testing.waiting import PATIENCE


@pytest.fixture
def home(tmp_path: Path) -> Path:
    with open_event_log(tmp_path):
        log_event(Event("one", "test", source="shop"))
        log_event(Event("two", "test", "warning"))
    return tmp_path


def test_prints_text(home: Path) -> None:
    answer = penstock("logs", "--home", str(home))
    assert [line.split(" ", 1)[1] for line in answer.out.splitlines()] == ["INFO    run: one", "WARNING run: two"]


def test_prints_json_from_a_level_on(home: Path) -> None:
    answer = penstock("logs", "--home", str(home), "--json", "--level", "warning")
    assert [json.loads(line)["message"] for line in answer.out.splitlines()] == ["two"]


def test_last_lines_across_rotated_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_log, "MOST_BYTES", 1_000)
    with open_event_log(tmp_path):
        for number in range(30):
            log_event(f"event {number}")
    assert event_log_path(tmp_path).with_name("penstock.log.1").exists()
    answer = penstock("logs", "--home", str(tmp_path), "--lines", "20")
    assert [line.rsplit(" ", 1)[1] for line in answer.out.splitlines()] == [str(n) for n in range(10, 30)]


def test_unfinished_line_is_skipped(home: Path) -> None:
    with event_log_path(home).open("a") as file:
        file.write('{"at": "2026')
    assert len(penstock("logs", "--home", str(home)).out.splitlines()) == 2


def test_home_without_a_log(tmp_path: Path) -> None:
    penstock("logs", "--home", str(tmp_path)).assert_error(2)


def test_follows_across_a_rotation(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_log, "MOST_BYTES", 500)
    command = [sys.executable, "-m", "penstock.cli", "logs", "--follow", "--home", str(home)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert [process.stdout.readline().split()[-1] for _ in range(2)] == ["one", "two"]
        for number in range(4):
            with open_event_log(home):
                log_event(f"a-long-event-{'x' * 150}-{number}")
            assert process.stdout.readline().endswith(f"-{number}\n")
        process.terminate()
        assert process.wait(PATIENCE) == 0
    assert event_log_path(home).with_name("penstock.log.1").exists()
