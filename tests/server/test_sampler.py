"""The sampler: one reader of the status for all clients, also when the status cannot be read."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from penstock.engine.status_document import HomeStatus
from penstock.errors import DefiniteError, PenstockError, TransientError
from penstock.server.sampler import Sample, Sampler
from penstock.testing.waiting import PATIENCE

STATUS = HomeStatus(1, "home", None, [])


def sampled(read: Callable[[], HomeStatus], use: Callable[[Sampler], Awaitable[object]]) -> None:
    """Run a sampler that does not wait between its samples.

    It runs in a thread, because Playwright's event loop stays in the main thread after tests of the page.
    """

    async def run() -> None:
        sampler = Sampler(read, 0.01)
        sampler.start()
        try:
            await asyncio.wait_for(use(sampler), PATIENCE)
        finally:
            sampler.stop()

    with ThreadPoolExecutor(1) as pool:
        pool.submit(lambda: asyncio.run(run())).result()


def test_many_clients_read_the_status_once() -> None:
    reads = 0

    def read() -> HomeStatus:
        nonlocal reads
        reads += 1
        return STATUS

    async def use(sampler: Sampler) -> None:
        samples = await asyncio.gather(*(sampler.current() for _ in range(100)))
        assert len({id(sample) for sample in samples}) == 1
        assert reads <= 2
        assert samples[0].document == STATUS.as_json()

    sampled(read, use)


def test_error_is_raised_until_the_status_can_be_read_again() -> None:
    results: Iterator[HomeStatus | Exception] = iter([DefiniteError("no disk", "Free some."), STATUS])
    later = threading.Event()

    def read() -> HomeStatus:
        result = next(results, STATUS)
        if isinstance(result, Exception):
            raise result
        later.wait(PATIENCE)
        return result

    async def use(sampler: Sampler) -> None:
        with pytest.raises(DefiniteError, match="no disk"):
            await sampler.current()
        later.set()
        while sampler.error is not None:
            await sampler.wait()
        assert (await sampler.current()).status is STATUS

    sampled(read, use)


def test_unexpected_error_does_not_end_the_sampler() -> None:
    results: Iterator[HomeStatus | None] = iter([None, None, STATUS])

    def read() -> HomeStatus:
        result = next(results, STATUS)
        if result is None:
            raise ValueError("row value 4711")
        return result

    async def use(sampler: Sampler) -> None:
        with pytest.raises(PenstockError, match="unexpected ValueError") as caught:
            await sampler.current()
        assert "4711" not in str(caught.value)
        while sampler.latest is None:
            await sampler.wait()

    sampled(read, use)


def test_stop_wakes_those_who_wait_for_the_first_sample() -> None:
    blocked = threading.Event()

    def read() -> HomeStatus:
        blocked.wait(PATIENCE)
        return STATUS

    async def use(sampler: Sampler) -> None:
        waiting = asyncio.create_task(sampler.current())
        await asyncio.sleep(0)
        sampler.stop()
        with pytest.raises(TransientError, match="stopping"):
            await waiting
        assert not await sampler.wait()
        blocked.set()

    sampled(read, use)


def test_wait_ends_after_its_timeout() -> None:
    blocked = threading.Event()

    async def use(sampler: Sampler) -> None:
        assert not await sampler.wait(0.01)
        blocked.set()

    def read() -> HomeStatus:
        blocked.wait(PATIENCE)
        return STATUS

    sampled(read, use)


def test_samples_carry_their_history() -> None:
    async def use(sampler: Sampler) -> None:
        seen: list[Sample] = []
        while len(seen) < 3:
            await sampler.wait()
            if sampler.latest is not None and sampler.latest not in seen:
                seen.append(sampler.latest)
        assert {sample.at for sample in seen} <= set(sampler.history.as_json()["at"])

    sampled(lambda: STATUS, use)
