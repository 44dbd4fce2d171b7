"""The log of a home: lines, levels, the file, and what must never be in it."""

from __future__ import annotations

import json
import logging
import threading
import warnings
from pathlib import Path
from typing import Any

import pytest

from penstock import event_log
from penstock.event_log import Event, log_event, open_event_log, redacted
from penstock.layout import event_log_path

CANARY = "canary-4711"


def logged(home: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in event_log_path(home).read_text().splitlines()]


def test_event_is_a_line_of_json_in_the_file_and_of_text_on_stderr(tmp_path: Path) -> None:
    lines = list[str]()
    with open_event_log(tmp_path, write=lines.append):
        log_event(Event("shop: copying public.orders", "snapshot", source="shop", table="public.orders"))
        log_event("a plain text")
    first, second = logged(tmp_path)
    at = first.pop("at")
    assert at.endswith("Z")
    assert first == {
        "level": "info",
        "logger": "run",
        "event": "snapshot",
        "message": "shop: copying public.orders",
        "source": "shop",
        "table": "public.orders",
    }
    assert (second["event"], second["message"]) == ("progress", "a plain text")
    assert lines[0] == f"{at} INFO    run: shop: copying public.orders"


def test_numbers_stay_numbers_and_the_message_names_the_source(tmp_path: Path) -> None:
    copied = Event(
        "snapshot of public.orders complete: 1,200 rows", "snapshot_complete", table="public.orders", rows=1200
    )
    with open_event_log(tmp_path):
        log_event(Event.of_source("shop", copied))
        log_event(Event.of_source("shop", "resumed"))
    first, second = logged(tmp_path)
    assert (first["source"], first["table"], first["rows"]) == ("shop", "public.orders", 1200)
    assert first["message"] == "shop: snapshot of public.orders complete: 1,200 rows"
    assert (second["event"], second["source"], second["message"]) == ("progress", "shop", "shop: resumed")


def test_json_lines_on_stderr(tmp_path: Path) -> None:
    lines = list[str]()
    with open_event_log(tmp_path, form="json", write=lines.append):
        log_event("one")
    assert [json.loads(line) for line in lines] == logged(tmp_path)


@pytest.mark.parametrize(("level", "expected"), [("debug", 4), ("info", 3), ("warning", 2), ("error", 1)])
def test_level(tmp_path: Path, level: event_log.Level, expected: int) -> None:
    with open_event_log(tmp_path, level):
        for each in event_log.LEVELS:
            log_event(Event(each, "test", each))
    assert [found["level"] for found in logged(tmp_path)] == list(event_log.LEVELS)[4 - expected :]


def test_file_is_private_and_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_log, "MOST_BYTES", 2_000)
    with open_event_log(tmp_path):
        for number in range(500):
            log_event(f"event {number}")
    files = sorted(event_log_path(tmp_path).parent.iterdir())
    assert len(files) == event_log.FILES + 1
    assert all(file.stat().st_mode & 0o777 == 0o600 for file in files)
    assert all(file.stat().st_size <= 2_000 for file in files)
    assert logged(tmp_path)[-1]["message"] == "event 499"


def test_texts_of_exceptions_are_not_logged(tmp_path: Path) -> None:
    with open_event_log(tmp_path, "debug"):
        try:
            int(CANARY)
        except ValueError:
            logging.getLogger("some.library").exception("a request failed")
        thread = threading.Thread(target=lambda: int(CANARY), name="worker")
        thread.start()
        thread.join()
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.warn("a library warns", RuntimeWarning, stacklevel=1)
    text = event_log_path(tmp_path).read_text()
    assert CANARY not in text
    messages = [found["message"] for found in logged(tmp_path)]
    assert messages[0].startswith("a request failed (ValueError at ")
    assert messages[1].startswith("worker ended with an unexpected ValueError at ")
    assert "a library warns" in messages[2]


@pytest.mark.parametrize(
    "text",
    [
        f"postgresql://user:{CANARY}@host:5432/shop",
        f"kafka+ssl://:{CANARY}@broker",
        f"host=h password={CANARY} user=u",
        f"password = '{CANARY}'",
        f'sasl.password: "{CANARY}", x',
        f"ssl.key.password={CANARY};",
        f"token={CANARY}",
    ],
)
def test_secrets_are_redacted(text: str) -> None:
    assert CANARY not in redacted(text)
    assert "***" in redacted(text)


def test_other_texts_are_unchanged() -> None:
    text = "status page: http://127.0.0.1:7878 of shop, at 0/16B3748 (user@host)"
    assert redacted(text) == text


def test_closed_terminal_and_full_disk_do_not_raise(tmp_path: Path) -> None:
    def write(_: str) -> None:
        raise BrokenPipeError

    with open_event_log(tmp_path, write=write):
        log_event("one")
        event_log_path(tmp_path).parent.chmod(0o500)
        log_event("two")
        event_log_path(tmp_path).parent.chmod(0o700)
    assert [found["message"] for found in logged(tmp_path)] == ["one", "two"]
