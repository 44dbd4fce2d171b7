"""A copy of a model has the given field values; unknown fields are rejected."""

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


def test_copy_has_the_given_values() -> None:
    point = Point(x=1)
    assert with_fields(point, y=2) == Point(x=1, y=2)
    assert point == Point(x=1)


def test_unknown_fields_are_rejected() -> None:
    with pytest.raises(TypeError, match="Point has no fields a, z"):
        with_fields(Point(x=1), y=2, z=3, a=4)


def test_no_other_code_copies_models_with_changed_fields() -> None:
    """`model_copy(update=…)` would accept a name that is not a field of the model."""
    assert [path for path in sorted(SRC.rglob("*.py")) if _calls_model_copy(path)] == [SRC / "fields.py"]


def _calls_model_copy(path: Path) -> bool:
    called = (node for node in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(node, ast.Call))
    return any(
        isinstance(node.func, ast.Attribute) and node.func.attr == "model_copy" and (node.args or node.keywords)
        for node in called
    )


@pytest.mark.parametrize("name", kinds())
def test_alterable_options_are_fields_of_the_config(name: str) -> None:
    found = kind(name)
    if issubclass(found.config, KafkaConfig):  # keeps its options in `how`, and checks them itself
        return
    in_tables = found.source.RESNAPSHOT  # these are in the descriptions of tables
    assert found.config.model_fields.keys() >= found.source.ALTERABLE - in_tables
