"""The prompt: lines become statements, short commands stand for some, and what is typed is remembered."""

from __future__ import annotations

import readline
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock.cli.prompt import Prompt, expanded
from penstock.errors import UsageError

Typing = Callable[..., list[str]]


@pytest.fixture
def typing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Typing]:
    """Type lines at a prompt; return the statements that were to be answered."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    readline.clear_history()

    def type_lines(*lines: str, refused: str = "") -> list[str]:
        left, answered = list(lines), []

        def typed(_: str) -> str:
            if not left:
                raise EOFError
            readline.add_history(left[0])
            return left.pop(0)

        def answer(text: str) -> None:
            if refused and refused in text:
                message = f"{refused} is refused"
                raise UsageError(message)
            answered.append(text)

        monkeypatch.setattr("builtins.input", typed)
        Prompt(answer, lambda text: [f"{text}!", "other"]).run()
        return answered

    yield type_lines
    readline.clear_history()


def test_a_statement_goes_over_several_lines(typing: Typing) -> None:
    assert typing("SELECT 1", "  AS one;", "SHOW SOURCES;") == ["SELECT 1\n  AS one;", "SHOW SOURCES;"]


def test_an_error_is_told_and_the_next_is_read(typing: Typing, capsys: pytest.CaptureFixture[str]) -> None:
    assert typing("SELECT bad;", "SELECT 2;", refused="bad") == ["SELECT 2;"]
    assert "bad is refused" in capsys.readouterr().err


@pytest.mark.parametrize("leave", ["\\q", "exit", "quit"])
def test_leaving(typing: Typing, leave: str) -> None:
    assert typing("SELECT 1;", leave, "SELECT 2;") == ["SELECT 1;"]


def test_short_commands_stand_for_statements(typing: Typing, capsys: pytest.CaptureFixture[str]) -> None:
    answered = typing("\\s", "\\d", "\\d shop", "\\d shop.orders", "\\e", "\\c shop;", "\\?", "\\x")
    assert answered == [
        "SHOW SOURCES",
        "SHOW TABLES",
        "SHOW TABLES FROM shop",
        "DESCRIBE shop.orders",
        "SHOW ERRORS",
        "SHOW CREATE SOURCES shop",
    ]
    told = capsys.readouterr()
    assert "\\d source.table" in told.out
    assert "there is no short command \\x" in told.err


def test_a_backslash_within_a_statement_is_part_of_it(typing: Typing) -> None:
    assert typing("SELECT '", "\\d';") == ["SELECT '\n\\d';"]


def test_what_was_typed_is_there_again(typing: Typing, tmp_path: Path) -> None:
    typing("SELECT 1;", "SELECT 'x' AS password;", "  sasl password = 'y';", "SELECT 2;")
    file = tmp_path / "penstock" / "history"
    assert file.read_text().splitlines()[-2:] == ["SELECT 1;", "SELECT 2;"]
    assert file.stat().st_mode & 0o777 == 0o600
    readline.clear_history()
    typing("SELECT 3;")
    kept = [readline.get_history_item(at) for at in range(1, readline.get_current_history_length() + 1)]
    assert kept == ["SELECT 1;", "SELECT 2;", "SELECT 3;"]


def test_the_word_at_the_cursor_is_completed(typing: Typing, monkeypatch: pytest.MonkeyPatch) -> None:
    prompt = Prompt(lambda _: None, lambda text: [text + "ES", text + "E"])
    monkeypatch.setattr(readline, "get_line_buffer", lambda: "SHOW SOURC and more")
    monkeypatch.setattr(readline, "get_endidx", lambda: len("SHOW SOURC"))
    found = [prompt._candidate("SOURC", number) for number in range(3)]
    assert found == ["SHOW SOURCES", "SHOW SOURCE", None]


def test_an_unknown_short_command_is_answered_with_the_list() -> None:
    with pytest.raises(UsageError) as caught:
        expanded("\\dd")
    assert "\\?" in caught.value.hint
