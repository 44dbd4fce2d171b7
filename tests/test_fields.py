"""Copies of models have the fields that they are told, or there is no copy."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from pydantic import BaseModel, ConfigDict

from penstock.fields import with_fields
from penstock.sources.kafka.config import KafkaConfig
from penstock.sources.kinds import kind, kinds

SRC = Path(__file__).parent.parent / "src" / "penstock"


class Point(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    x: int
    y: int = 0


def test_a_copy_has_what_it_is_told() -> None:
    point = Point(x=1)
    assert with_fields(point, y=2) == Point(x=1, y=2)
    assert point == Point(x=1)


def test_no_other_field() -> None:
    with pytest.raises(TypeError, match="Point has no fields a, z"):
        with_fields(Point(x=1), y=2, z=3, a=4)


def test_nothing_else_makes_copies_with_other_fields() -> None:
    """`model_copy(update=…)` would take a name that is none of the model's fields."""
    assert [path for path in sorted(SRC.rglob("*.py")) if _makes_copies(path)] == [SRC / "fields.py"]


def _makes_copies(path: Path) -> bool:
    called = (node for node in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(node, ast.Call))
    return any(
        isinstance(node.func, ast.Attribute) and node.func.attr == "model_copy" and (node.args or node.keywords)
        for node in called
    )


@pytest.mark.parametrize("name", kinds())
def test_options_that_can_be_changed_are_fields_of_the_config(name: str) -> None:
    found = kind(name)
    if issubclass(found.config, KafkaConfig):  # which has them in `how`, and says so itself
        return
    assert found.config.model_fields.keys() >= found.source.ALTERABLE
