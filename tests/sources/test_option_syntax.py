"""How the fields of a model are written follows from their types; what cannot be written is refused at once."""

from __future__ import annotations

from decimal import Decimal
from typing import Annotated, ClassVar

import pytest
from pydantic import BaseModel, model_validator

from penstock.errors import UsageError
from penstock.sources.option_syntax import Keyword, options_of
from penstock.sources.syntax import Secret, Size
from penstock.sql.errors import SqlError
from penstock.sql.grammar import parse


class Login(BaseModel):
    """A model within a model, with a secret."""

    NAME: ClassVar[str] = "LOGIN"
    password: Annotated[str | None, Secret()] = None


class Clauses(BaseModel):
    """Required fields, and two that do not go together."""

    left: bool = False
    right: bool = False
    login: Login | None = None
    place: str

    @model_validator(mode="after")
    def _one_side(self) -> Clauses:
        if self.left and self.right:
            message = "it cannot be on both sides"
            raise UsageError(message, "Choose one.")
        return self


class Nothing(BaseModel):
    """No settings."""


class Sided:
    """A kind of source."""

    NAME: ClassVar[str] = "SIDED"
    SqlOptions: ClassVar[type[Clauses]] = Clauses
    WithOptions: ClassVar[type[Nothing]] = Nothing


def refused(clauses: str) -> SqlError:
    with pytest.raises(SqlError) as caught:
        parse(f"CREATE SOURCES s FROM SIDED {clauses}", {"SIDED": Sided})
    return caught.value


def test_words_come_from_the_name_or_a_keyword() -> None:
    class Model(BaseModel):
        ssl_ca_location: str = ""
        limit: Annotated[int, Size(), Keyword("NO MORE THAN")] = 0

    assert [(option.clause, option.form) for option in options_of(Model)] == [
        ("SSL CA LOCATION", "SSL CA LOCATION 'text'"),
        ("NO MORE THAN", "NO MORE THAN '16 MB'"),
    ]


def test_a_type_that_cannot_be_written_is_refused() -> None:
    class Model(BaseModel):
        amount: Decimal

    with pytest.raises(TypeError, match="no way to write"):
        options_of(Model)


def test_a_secret_that_must_be_among_the_options_is_refused() -> None:
    class Model(BaseModel):
        password: Annotated[str, Secret()]

    with pytest.raises(TypeError, match="let it have a default"):
        options_of(Model)


@pytest.mark.parametrize("clauses", ["LEFT RIGHT PLACE 'x'", "PLACE 'x' LEFT RIGHT", "LEFT PLACE 'x' RIGHT"])
def test_what_does_not_go_together_is_shown_at_the_later_one(clauses: str) -> None:
    error = refused(clauses)
    assert "both sides" in error.message
    assert error.column - 1 == len("CREATE SOURCES s FROM SIDED ") + clauses.index("RIGHT") + len("RIGHT") + (
        1 if not clauses.endswith("RIGHT") else 0
    )


def test_what_is_missing_is_shown_at_the_kind() -> None:
    error = refused("LEFT RIGHT")
    assert (error.column, error.hint) == (23, "Add PLACE 'text'.")


def test_a_secret_within_a_model_is_a_reference() -> None:
    error = refused("PLACE 'x' LOGIN LOGIN PASSWORD 'hunter2'")
    assert "password holds a secret in clear" in error.message
    assert "hunter2" not in str(error)
    assert parse("CREATE SOURCE s FROM SIDED PLACE 'x' LOGIN LOGIN PASSWORD 'env:X'", {"SIDED": Sided}) is not None
