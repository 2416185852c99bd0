"""Whole engine processes on tiny models: same answers, several frontends, death, restart, drain."""

from __future__ import annotations

import asyncio
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from octavo.core.errors import CapacityError, EngineError, ModelFileError
from octavo.core.request import FinishReason
from octavo.core.sampling import SamplingParams
from octavo.engine.assemble import assemble
from octavo.engine.client import AsyncEngineClient
from octavo.engine.outputs import RequestOutput, Timing
from octavo.engine.private_folder import check_private
from octavo.engine.supervisor import RestartPolicy, Supervisor
from remote_harness import client_of, engine_process, tiny_settings, tokenizer_of, until
from tiny import make_tiny_gguf

ENDLESS = SamplingParams(max_tokens=None, ignore_eos=True)
CALLS: list[tuple[str | list[int], SamplingParams]] = [
    ("the cat sat on the mat", SamplingParams(max_tokens=40, temperature=0)),
    ("the cat sat on the mat", SamplingParams(max_tokens=40, seed=5, logprobs=3, n=3)),
    ("one two three four five six seven", SamplingParams(max_tokens=64, seed=1, top_p=0.8)),
    ([9, 8, 7, 6], SamplingParams(max_tokens=0, prompt_logprobs=2)),
    ("hello", SamplingParams(max_tokens=60, temperature=0, stop=("t",), min_tokens=5)),
    ("hello", SamplingParams(max_tokens=30, seed=2, frequency_penalty=1.0, logit_bias={300: 5})),
]


@pytest.fixture(scope="module")
def tiny_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_gguf(tmp_path_factory.mktemp("tiny") / "tiny.gguf")


@pytest.fixture(scope="module")
def expected(tiny_path: Path) -> list[RequestOutput]:
    """Answers of the engine in this process."""
    assembly = assemble(tiny_path, tiny_settings())
    try:
        client = assembly.client
        return [client.complete([client.prepare(*call)])[0] for call in CALLS]
    finally:
        assembly.close()


def comparable(outputs: Sequence[RequestOutput]) -> list[RequestOutput]:
    """Without what depends on time and on what the cache held."""
    return [
        replace(each, timing=Timing(None, 0.0), usage=replace(each.usage, cached_tokens=0))
        for each in outputs
    ]


async def answers(client: AsyncEngineClient) -> list[RequestOutput]:
    calls = [client.submit(client.prepare(*call)) for call in CALLS]
    return [await call.result() for call in calls]


def test_answers_are_those_of_the_engine_in_process(
    tiny_path: Path, expected: list[RequestOutput]
) -> None:
    async def main() -> None:
        async with engine_process(tiny_path) as (supervisor, client):
            assert comparable(await answers(client)) == comparable(expected)
            # A second frontend has its own names for its requests and the same answers.
            async with client_of(supervisor.address, tokenizer_of(tiny_path)) as second:
                both = await asyncio.gather(answers(client), answers(second))
            assert [comparable(each) for each in both] == [comparable(expected)] * 2
            facts = client.facts
            assert facts is not None
            assert facts == supervisor.facts
            assert facts.process_id == supervisor.process_id
            assert facts.memory_bytes["kv_cache"] <= 4 << 20
            assert facts.memory_bytes["weights"] > 0
            assert sum(facts.memory_bytes.values()) <= facts.memory_ceiling_bytes
            assert (facts.threads, facts.backend) == (1, "cpu")
            assert set(facts.phase_seconds) == {"interpreter", "weights", "cache", "warm-up"}
            await until(lambda: client.stats is not None and client.stats.frontends == 2)
            assert client.stats is not None
            assert client.stats.rss_bytes > 1 << 20
            assert client.stats.pss_bytes <= sum(facts.memory_bytes.values())
            assert client.stats.memory_bytes == facts.memory_bytes
            assert 0 < client.stats.native_share <= 1

    asyncio.run(main())


def test_a_killed_engine_ends_calls_at_once_and_comes_back(
    tiny_path: Path, expected: list[RequestOutput]
) -> None:
    async def main() -> None:
        async with engine_process(tiny_path) as (supervisor, client):
            calls = [client.submit(client.prepare("the cat", ENDLESS)) for _ in range(24)]
            await anext(calls[0])
            first_id = supervisor.process_id
            assert first_id is not None
            os.kill(first_id, signal.SIGKILL)
            async with asyncio.timeout(2):
                ends = await asyncio.gather(
                    *(call.result() for call in calls), return_exceptions=True
                )
            assert all(isinstance(end, EngineError) for end in ends)
            assert client.unready_reason() is not None
            with pytest.raises(EngineError):
                client.submit(client.prepare("the cat", ENDLESS))
            await client.wait_ready(60)
            assert client.unready_reason() is None
            assert comparable(await answers(client)) == comparable(expected)
            assert supervisor.restarts == 1
            assert supervisor.process_id != first_id

    asyncio.run(main())


def test_an_engine_that_hangs_is_killed_and_started_again(long_path: Path) -> None:
    async def main() -> None:
        policy = RestartPolicy(stuck_seconds=1.0)
        async with engine_process(long_path, policy=policy) as (supervisor, client):
            call = client.submit(client.prepare("the cat", ENDLESS))
            await anext(call)
            first_id = supervisor.process_id
            assert first_id is not None
            os.kill(first_id, signal.SIGSTOP)
            with pytest.raises(EngineError):
                await call.result()
            await client.wait_ready(60)
            assert supervisor.restarts == 1
            assert supervisor.process_id != first_id

    asyncio.run(main())


def test_draining_finishes_open_calls(tiny_path: Path) -> None:
    async def main() -> None:
        async with engine_process(tiny_path) as (supervisor, client):
            params = SamplingParams(max_tokens=200, ignore_eos=True)
            calls = [client.submit(client.prepare("the cat", params)) for _ in range(10)]
            for call in calls:
                await call.taken()
            waiting = asyncio.create_task(supervisor.wait())
            assert await supervisor.drain(60)
            for call in calls:
                assert (await call.result()).usage.completion_tokens == 200
            await waiting
            assert supervisor.process_id is None
            assert supervisor.restarts == 0
            assert not Path(supervisor.address.removeprefix("ipc://")).parent.exists()

    asyncio.run(main())


def test_the_deadline_ends_what_does_not_finish(tiny_path: Path) -> None:
    async def main() -> None:
        async with engine_process(tiny_path) as (supervisor, client):
            call = client.submit(client.prepare("the cat", ENDLESS))
            await anext(call)
            assert not await supervisor.drain(0.0)
            with pytest.raises(EngineError):
                await call.result()
            assert supervisor.process_id is None

    asyncio.run(main())


def test_an_engine_that_keeps_dying_is_given_up(tiny_path: Path) -> None:
    async def main() -> None:
        policy = RestartPolicy(delays_seconds=(0.0,))
        async with engine_process(tiny_path, policy=policy) as (supervisor, client):
            waiting = asyncio.create_task(supervisor.wait())
            for _ in range(2):
                await client.wait_ready(60)
                await until(lambda: supervisor.process_id is not None)
                process_id = supervisor.process_id
                assert process_id is not None
                os.kill(process_id, signal.SIGKILL)
                await until(lambda gone=process_id: supervisor.process_id != gone)
                await until(lambda: client.unready_reason() is not None)
            with pytest.raises(EngineError, match=r"2 times in a row.*SIGKILL"):
                await waiting

    asyncio.run(main())


def test_what_prevents_a_start_is_told(tiny_path: Path, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.gguf"
    damaged.write_bytes(tiny_path.read_bytes()[:5000])

    async def start(path: Path, **overrides: object) -> None:
        supervisor = Supervisor(path, tiny_settings(**overrides))
        try:
            await supervisor.start()
        finally:
            await supervisor.stop()

    with pytest.raises(ModelFileError):
        asyncio.run(start(damaged))
    with pytest.raises(CapacityError) as caught:
        asyncio.run(start(tiny_path, **{"memory.kv_bytes": "1000"}))
    assert caught.value.field == "memory.kv_bytes"


def test_the_socket_is_private(tiny_path: Path, tmp_path: Path) -> None:
    supervisor = Supervisor(tiny_path, tiny_settings())
    folder = Path(supervisor.address.removeprefix("ipc://")).parent
    try:
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    finally:
        asyncio.run(supervisor.stop())
    assert not folder.exists()
    tmp_path.chmod(0o755)
    with pytest.raises(EngineError, match="only this user"):
        Supervisor(tiny_path, tiny_settings(), folder=tmp_path)
    deep = tmp_path / ("d" * 100)
    deep.mkdir(mode=0o700)
    with pytest.raises(EngineError, match="too long"):
        check_private(deep)
    with pytest.raises(EngineError, match="cannot use"):
        check_private(tmp_path / "missing")


def test_an_engine_dies_with_its_parent(tiny_path: Path) -> None:
    program = f"""
import asyncio, sys
from pathlib import Path
from octavo.core.settings_load import load_settings
from octavo.engine.supervisor import Supervisor

async def main():
    settings = load_settings(environment={{}}, overrides={{"memory.kv_bytes": "4MB"}}).settings
    supervisor = Supervisor(Path({str(tiny_path)!r}), settings)
    await supervisor.start()
    print(supervisor.process_id, flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    try:
        assert parent.stdout is not None
        engine = Path(f"/proc/{int(parent.stdout.readline())}")
        assert engine.exists()
    finally:
        parent.kill()
        parent.communicate()
    asyncio.run(until(lambda: not _is_running(engine)))


def _is_running(process: Path) -> bool:
    """Whether a process of /proc is there and more than a zombie that nobody has waited for."""
    try:
        return (process / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_no_descriptor_is_left_behind(tiny_path: Path) -> None:
    def count(process_id: int | str) -> int:
        return len(os.listdir(f"/proc/{process_id}/fd"))

    async def visit(supervisor: Supervisor) -> None:
        async with client_of(supervisor.address, tokenizer_of(tiny_path)) as client:
            call = client.submit(client.prepare("the", SamplingParams(max_tokens=3)))
            await call.result()
            client.submit(client.prepare("the", ENDLESS))

    async def main() -> None:
        async with engine_process(tiny_path) as (supervisor, client):
            assert supervisor.process_id is not None
            await visit(supervisor)
            await until(lambda: client.stats is not None and client.stats.frontends == 2)
            own, engines = count("self"), count(supervisor.process_id)
            for _ in range(5):
                await visit(supervisor)
            await until(lambda: count("self") <= own)
            await until(lambda: count(supervisor.process_id or "self") <= engines)

    asyncio.run(main())


def test_sigterm_to_the_engine_alone_drains_it_and_another_takes_over(tiny_path: Path) -> None:
    async def main() -> None:
        async with engine_process(tiny_path) as (supervisor, client):
            params = SamplingParams(max_tokens=100, ignore_eos=True)
            call = client.submit(client.prepare("the cat", params))
            await anext(call)
            assert supervisor.process_id is not None
            os.kill(supervisor.process_id, signal.SIGTERM)
            output = await call.result()
            assert output.finish_reason is FinishReason.LENGTH
            await until(lambda: supervisor.restarts == 1)
            await client.wait_ready(60)
            assert len((await client.submit(client.prepare("a", params)).result()).token_ids) == 100

    asyncio.run(main())
