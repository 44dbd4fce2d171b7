"""Every mutation of `tests.mutations` still applies, and the tests that it names exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.mutations.mutation import Mutation, MutationError
from tests.mutations.mutations import MUTATIONS

ROOT = Path(__file__).parent.parent
EACH = pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)


@EACH
def test_mutation_applies_exactly_once_and_leaves_valid_python(mutation: Mutation) -> None:
    text = (ROOT / mutation.file).read_text(encoding="utf-8")
    mutated = mutation.applied(text)
    assert ast.dump(ast.parse(mutated)) != ast.dump(ast.parse(text)), "the mutation does not change the code"


@EACH
def test_tests_that_catch_the_mutation_exist(mutation: Mutation) -> None:
    assert mutation.tests
    for test in mutation.tests:
        file, _, name = test.partition("::")
        text = (ROOT / file).read_text(encoding="utf-8")
        function = re.sub(r"\[.*", "", name)
        assert not name or f"def {function}(" in text, test


def test_names_are_distinct() -> None:
    assert len({mutation.name for mutation in MUTATIONS}) == len(MUTATIONS)


@pytest.mark.parametrize("text", ["", "old old"])
def test_error_for_a_stale_mutation_names_its_file(text: str) -> None:
    mutation = Mutation("some", "nothing", "src/a.py", "old", "new", ())
    assert mutation.applied("an old one") == "an new one"
    with pytest.raises(MutationError, match=r"^mutation some no longer applies to src/a\.py$"):
        mutation.applied(text)
