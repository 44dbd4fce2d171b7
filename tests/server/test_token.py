"""The token file."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.errors import UsageError
from penstock.server.token import Token, read_token

SECRET = "0123456789abcdef"


@pytest.mark.parametrize("text", [SECRET, f"{SECRET}\n", f"  {SECRET}\r\n"])
def test_surrounding_space_does_not_matter(tmp_path: Path, text: str) -> None:
    (tmp_path / "token").write_bytes(text.encode())
    assert read_token(tmp_path / "token").matches(SECRET)


@pytest.mark.parametrize("text", ["", "\n", SECRET[1:], f"{SECRET} {SECRET}", f"{SECRET}\nsecond line", "é" * 20])
def test_unusable_token(tmp_path: Path, text: str) -> None:
    (tmp_path / "token").write_text(text)
    with pytest.raises(UsageError) as caught:
        read_token(tmp_path / "token")
    assert str(tmp_path / "token") in caught.value.message
    assert "openssl rand" in caught.value.hint
    assert not text.strip() or text.strip() not in str(caught.value)


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file"):
        read_token(tmp_path / "token")


def test_cookies_of_two_servers_differ() -> None:
    one, other = Token(SECRET), Token(SECRET[::-1])
    assert one.cookie_name != other.cookie_name
    assert one.is_sent({"cookie": f"a=b; {one.cookie_name}={one.cookie}; c"})
    assert not one.is_sent({"cookie": f"{one.cookie_name}={other.cookie}"})
    assert not one.is_sent({"cookie": f"{one.cookie_name}={SECRET}"})
