"""The functions of sinks: imported by name, or registered in this process."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from penstock.errors import TransientError, UsageError
from penstock.sinks.function.registration import function_name, function_of, register, unregister
from penstock.sinks.function.spec import FunctionSink

MODULE = """
def send(df, first, last): ...
class Sender:
    @staticmethod
    def send(df, first, last): ...
limit = 500
"""


def sink(function: str, *, is_registered: bool = False) -> FunctionSink:
    return FunctionSink.of("out", "shop", "orders", function=function, is_registered=is_registered)


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module that can be imported."""
    (tmp_path / "sinks_of_test.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))


@pytest.mark.usefixtures("module")
@pytest.mark.parametrize("name", ["sinks_of_test:send", "sinks_of_test:Sender.send"])
def test_imported_function(tmp_path: Path, name: str) -> None:
    found = function_of(tmp_path, sink(name))
    assert function_name(found) == name


@pytest.mark.usefixtures("module")
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("sinks_of_tset:send", "cannot be imported: No module named 'sinks_of_tset'"),
        ("sinks_of_test:sned", "cannot be imported: module 'sinks_of_test' has no attribute 'sned'"),
        ("sinks_of_test:limit", "is not a function"),
    ],
)
def test_function_that_cannot_be_imported(tmp_path: Path, name: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        function_of(tmp_path, sink(name))
    assert message in caught.value.message
    assert name in caught.value.message
    assert caught.value.hint


def test_registered_function_belongs_to_one_home(tmp_path: Path) -> None:
    calls: list[object] = []
    function = partial(calls.append)
    register(tmp_path, "out", function)
    described = sink(function_name(function), is_registered=True)
    assert described.function == "functools:partial"
    assert function_of(tmp_path / "." / "x" / "..", described) is function
    with pytest.raises(TransientError, match="the function of sink out is not registered in this process"):
        function_of(tmp_path / "other", described)
    unregister(tmp_path, "out")
    unregister(tmp_path, "out")
    with pytest.raises(TransientError) as caught:
        function_of(tmp_path, described)
    assert 'home.sink("out", …, partial)' in caught.value.hint
