"""The prompt: multi-line statements, backslash commands and the history."""

from __future__ import annotations

import readline
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock.cli.prompt import Prompt
from penstock.cli.sql import read_script
from penstock.errors import UsageError

Typing = Callable[..., list[str]]


@pytest.fixture
def type_at_prompt(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Typing]:
    """Type lines at a prompt; return the statements that were executed."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    readline.clear_history()

    def run_lines(*lines: str, rejected: str = "") -> list[str]:
        remaining, answered = list(lines), []

        def read_line(_: str) -> str:
            if not remaining:
                raise EOFError
            readline.add_history(remaining[0])
            return remaining.pop(0)

        def answer(text: str) -> None:
            if rejected and rejected in text:
                message = f"{rejected} is rejected"
                raise UsageError(message)
            answered.append(text)

        monkeypatch.setattr("builtins.input", read_line)
        Prompt(answer, lambda text: [f"{text}!", "other"], read_script).run()
        return answered

    yield run_lines
    readline.clear_history()


def test_statement_spans_several_lines(type_at_prompt: Typing) -> None:
    assert type_at_prompt("SELECT 1", "  AS one;", "SHOW SOURCES;") == ["SELECT 1\n  AS one;", "SHOW SOURCES;"]


def test_error_is_printed_and_the_next_statement_is_read(
    type_at_prompt: Typing, capsys: pytest.CaptureFixture[str]
) -> None:
    assert type_at_prompt("SELECT bad;", "SELECT 2;", rejected="bad") == ["SELECT 2;"]
    assert "bad is rejected" in capsys.readouterr().err


@pytest.mark.parametrize("leave", ["\\q", "exit", "quit"])
def test_quit_commands(type_at_prompt: Typing, leave: str) -> None:
    assert type_at_prompt("SELECT 1;", leave, "SELECT 2;") == ["SELECT 1;"]


def test_backslash_commands_stand_for_statements(type_at_prompt: Typing, capsys: pytest.CaptureFixture[str]) -> None:
    answered = type_at_prompt("\\d", "\\d shop", "\\d shop.orders;", "\\dt", "\\dn", "\\?", "\\nothing")
    assert answered == ["SHOW TABLES", "SHOW TABLES FROM shop", "DESCRIBE shop.orders", "SHOW TABLES", "SHOW SOURCES"]
    output = capsys.readouterr()
    assert "\\d source.table" in output.out
    assert "invalid command \\nothing" in output.err
    assert "Try \\? for help" in output.err


def test_settings_of_the_output(type_at_prompt: Typing, capsys: pytest.CaptureFixture[str]) -> None:
    type_at_prompt("\\x", "\\x", "\\x on", "\\timing on", "\\timing", "\\x maybe")
    output = capsys.readouterr()
    assert output.out.splitlines() == [
        "Expanded display is on.",
        "Expanded display is off.",
        "Expanded display is on.",
        "Timing is on.",
        "Timing is off.",
    ]
    assert 'invalid value for \\x: "maybe"' in output.err


def test_file_of_statements(type_at_prompt: Typing, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.sql").write_text("SELECT 1; SELECT 2;")
    assert type_at_prompt(f"\\i {tmp_path / 'a.sql'}", "\\i", "\\i nowhere.sql") == ["SELECT 1; SELECT 2;"]
    errors = capsys.readouterr().err
    assert "\\i: missing argument" in errors
    assert "could not read file nowhere.sql" in errors


def test_statement_is_printed_edited_and_discarded(
    type_at_prompt: Typing, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("EDITOR", "sed -i s/1/2/")
    monkeypatch.delenv("VISUAL", raising=False)
    answered = type_at_prompt("SELECT 1;", "\\e", "\\p", "SELECT", "\\p", "\\r", "SELECT 3;")
    assert answered == ["SELECT 1;", "SELECT 2;", "SELECT 3;"]
    assert capsys.readouterr().out.splitlines() == ["SELECT 2;", "SELECT"]


def test_history_is_printed_and_text_is_echoed(type_at_prompt: Typing, capfd: pytest.CaptureFixture[str]) -> None:
    type_at_prompt("SELECT 1;", "\\s", "\\echo two words", "\\! echo from a shell")
    assert capfd.readouterr().out.splitlines() == ["SELECT 1;", "\\s", "two words", "from a shell"]


def test_interrupt_cancels_the_statement_and_the_prompt_continues(
    type_at_prompt: Typing, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = ["SELECT 1;", "SELECT 2;"]
    answered = []

    def answer(text: str) -> None:
        answered.append(text)
        raise KeyboardInterrupt

    monkeypatch.setattr("builtins.input", lambda _: lines.pop(0) if lines else "quit")
    Prompt(answer, lambda _: [], read_script).run()
    assert answered == ["SELECT 1;", "SELECT 2;"]
    assert capsys.readouterr().err.count("cancelled") == 2


def test_backslash_inside_a_statement_is_part_of_it(type_at_prompt: Typing) -> None:
    assert type_at_prompt("SELECT '", "\\d';") == ["SELECT '\n\\d';"]


def test_history_is_kept_without_passwords(type_at_prompt: Typing, tmp_path: Path) -> None:
    type_at_prompt("SELECT 1;", "SELECT 'x' AS password;", "  sasl password = 'y';", "  redact key = 'z';", "SELECT 2;")
    file = tmp_path / "penstock" / "history"
    assert file.read_text().splitlines()[-2:] == ["SELECT 1;", "SELECT 2;"]
    assert file.stat().st_mode & 0o777 == 0o600
    readline.clear_history()
    type_at_prompt("SELECT 3;")
    kept = [readline.get_history_item(at) for at in range(1, readline.get_current_history_length() + 1)]
    assert kept == ["SELECT 1;", "SELECT 2;", "SELECT 3;"]


def test_word_at_the_cursor_is_completed(type_at_prompt: Typing, monkeypatch: pytest.MonkeyPatch) -> None:
    prompt = Prompt(lambda _: None, lambda text: [text + "ES", text + "E"], read_script)
    monkeypatch.setattr(readline, "get_line_buffer", lambda: "SHOW SOURC and more")
    monkeypatch.setattr(readline, "get_endidx", lambda: len("SHOW SOURC"))
    found = [prompt._candidate("SOURC", number) for number in range(3)]
    assert found == ["SHOW SOURCES", "SHOW SOURCE", None]
