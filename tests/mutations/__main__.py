"""The command line of the mutation check; see `tests.mutations`."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import tests.mutations
from tests.mutations.mutation import Mutation, MutationError
from tests.mutations.mutations import MUTATIONS
from tests.mutations.trial import FAST_TIER, Outcome, copied, run_tests, snapshot


@dataclass(frozen=True)
class Verdict:
    """The result for one mutation."""

    mutation: Mutation
    outcome: Outcome

    @property
    def caught(self) -> bool:
        """Return whether a test failed."""
        return not self.outcome.passed

    def row(self, width: int) -> str:
        """Return one line of the table."""
        result = "caught  " if self.caught else "SURVIVED"
        return f"{self.mutation.name:<{width}}  {result}  {self.outcome.seconds:6.1f} s  {self.outcome.first_failure}"


def chosen(names: Sequence[str]) -> list[Mutation]:
    """Return the named mutations, or all."""
    known = {mutation.name: mutation for mutation in MUTATIONS}
    unknown = [name for name in names if name not in known]
    if unknown:
        message = f"unknown mutation {', '.join(unknown)}\nhint: `python -m tests.mutations --list` lists all of them"
        raise MutationError(message)
    return [known[name] for name in names] or list(MUTATIONS)


def check_unmutated(taken: Path, mutations: Sequence[Mutation], *, whole: bool) -> None:
    """Run all chosen tests once, without a mutation."""
    tests = FAST_TIER if whole else tuple(dict.fromkeys(test for mutation in mutations for test in mutation.tests))
    print("unmutated: ", end="", flush=True)
    with copied(taken) as root:
        outcome = run_tests(root, tests, stop_at_first=False)
    if not outcome.passed:
        message = f"tests fail without a mutation, so the check is meaningless:\n{outcome.output[-4000:]}"
        raise MutationError(message)
    print(f"all tests pass, {outcome.seconds:.1f} s", flush=True)


def check(taken: Path, mutations: Sequence[Mutation], *, whole: bool, keep_going: bool) -> list[Verdict]:
    """Try each mutation; stop at the first that survives, unless `keep_going` is set."""
    verdicts: list[Verdict] = []
    width = max(len(mutation.name) for mutation in mutations)
    for mutation in mutations:
        with copied(taken, mutation) as root:
            verdicts.append(Verdict(mutation, run_tests(root, FAST_TIER if whole else mutation.tests)))
        print(verdicts[-1].row(width), flush=True)
        print(f"{'':<{width}}  {verdicts[-1].outcome.reason[:100]}", flush=True)
        if not (verdicts[-1].caught or keep_going):
            break
    return verdicts


def main(arguments: Sequence[str]) -> int:
    """Run the check."""
    parser = argparse.ArgumentParser(
        "python -m tests.mutations", description=(tests.mutations.__doc__ or "").split("\n")[0]
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="mutations to try; all of them if none is named")
    parser.add_argument("--list", action="store_true", help="list the mutations and exit")
    parser.add_argument("--keep-going", action="store_true", help="do not stop at the first mutation that survives")
    parser.add_argument("--whole", action="store_true", help="run the whole fast tier for each mutation")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(2))  # so that copies and test servers are removed
    try:
        mutations = chosen(options.names)
        if options.list:
            print("\n".join(f"{mutation.name}: {mutation.breaks}" for mutation in mutations))
            return 0
        with snapshot() as taken:
            check_unmutated(taken, mutations, whole=options.whole)
            verdicts = check(taken, mutations, whole=options.whole, keep_going=options.keep_going)
    except MutationError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    width = max(len(verdict.mutation.name) for verdict in verdicts)
    caught = sum(verdict.caught for verdict in verdicts)
    print("", *(verdict.row(width) for verdict in verdicts), f"{caught} of {len(verdicts)} caught", sep="\n")
    return 0 if caught == len(verdicts) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
