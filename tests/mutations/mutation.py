"""A mutation: a small change of the source that makes Penstock lose, tear or invent data."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

__all__ = ["Mutation", "MutationError"]


class MutationError(Exception):
    """The check has no result: fix the mutation, its tests or the environment."""


@dataclass(frozen=True)
class Mutation:
    """One defect, and the tests that must detect it."""

    name: str
    breaks: str
    """The guarantee that is violated, and the effect on the data."""
    file: str
    """Relative to the root of the repository."""
    old: str
    """Occurs exactly once in the file: short, so that it survives a refactoring, and distinctive."""
    new: str
    tests: tuple[str, ...]
    """Paths or node ids of tests in the fast tier."""

    def applied(self, text: str) -> str:
        """Return the mutated text of the file."""
        if text.count(self.old) != 1:
            message = f"mutation {self.name} no longer applies to {self.file}"
            raise MutationError(message)
        return text.replace(self.old, self.new)

    def apply(self, root: Path) -> None:
        """Mutate the file below `root`."""
        path = root / self.file
        if not path.is_file():
            message = f"mutation {self.name} no longer applies to {self.file}"
            raise MutationError(message)
        path.write_text(self.applied(path.read_text(encoding="utf-8")), encoding="utf-8")
