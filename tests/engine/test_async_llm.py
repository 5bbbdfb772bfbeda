"""AsyncLLM: the engine for coroutines."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from deepinfer_core import LLM, AsyncLLM, SamplingParams
from deepinfer_core.errors import GenerationError, RequestError

MODEL = Path(__file__).parents[1] / "data" / "v41-tiny-bf16"
PARAMS = SamplingParams(temperature=0.8, seed=1, max_tokens=12, ignore_eos=True)
ENDLESS = SamplingParams(temperature=0, max_tokens=None, ignore_eos=True)


def run(work: Any) -> Any:
    """``work(llm)`` on a fresh engine and event loop; afterwards nothing is held."""

    async def main() -> Any:
        async with AsyncLLM(MODEL, max_num_seqs=8, disable_log_stats=True) as llm:
            result = await work(llm)
            scheduler = llm.engine.scheduler
            for _ in range(3000):
                if not llm.engine.has_unfinished_requests() and scheduler.num_free_slots == scheduler.num_slots - 1:
                    break
                await asyncio.sleep(0.01)
            scheduler.audit()
            assert scheduler.num_free_slots == scheduler.num_slots - 1
            assert not (llm.engine.core.ids or llm._thread._sinks or llm._thread.listeners)
            return result

    return asyncio.run(main())


async def text_of(llm: AsyncLLM, prompt: str, params: SamplingParams = PARAMS) -> str:
    return "".join([output.outputs[0].text async for output in llm.generate(prompt, params)])


def test_many_at_once_say_what_they_say_alone(llm: LLM) -> None:
    prompts = [f"The lamp {i}" for i in range(20)]

    async def work(engine: AsyncLLM) -> list[str]:
        return await asyncio.gather(*[text_of(engine, prompt) for prompt in prompts])

    assert run(work) == [output.outputs[0].text for output in llm.generate(prompts, PARAMS, use_tqdm=False)]


def test_the_last_output_alone_is_finished() -> None:
    async def work(engine: AsyncLLM) -> list[bool]:
        return [output.finished async for output in engine.generate("x", PARAMS, request_id="mine")]

    finished = run(work)
    assert finished == [False] * (len(finished) - 1) + [True]


@pytest.mark.parametrize("how", ["break", "cancel", "cancel at once", "abort"])
def test_who_goes_away_aborts_the_request(how: str) -> None:
    async def work(engine: AsyncLLM) -> None:
        if how == "break":
            async for _ in engine.generate("x", ENDLESS):
                break
        elif how == "abort":
            reasons = []
            async for output in engine.generate("x", ENDLESS, request_id="mine"):
                reasons.append(output.outputs[0].finish_reason)
                engine.abort("mine")
            assert reasons[-1] == "abort"
        else:
            task = asyncio.create_task(text_of(engine, "x", ENDLESS))
            await asyncio.sleep(0.0 if how == "cancel at once" else 0.2)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    run(work)


def raised(error: type[Exception], match: str, work: Any) -> None:
    async def expecting(engine: AsyncLLM) -> None:
        with pytest.raises(error, match=match):
            await work(engine)

    run(expecting)


def test_bad_requests_are_refused_and_failing_ones_raise() -> None:
    raised(RequestError, "empty", lambda engine: text_of(engine, ""))
    hopeless = SamplingParams(temperature=0, max_tokens=4, min_tokens=4, stop_token_ids=tuple(range(512)))
    raised(GenerationError, "no token could be drawn", lambda engine: text_of(engine, "x", hopeless))


def test_an_id_that_lives_is_refused_and_its_owner_goes_on() -> None:
    async def work(engine: AsyncLLM) -> None:
        first = engine.generate("x", PARAMS, request_id="mine")
        pieces = [(await anext(first)).outputs[0].text]
        with pytest.raises(RequestError, match="still alive"):
            await anext(engine.generate("y", PARAMS, request_id="mine"))
        pieces += [output.outputs[0].text async for output in first]
        assert "".join(pieces) == await text_of(engine, "x")

    run(work)


def test_closing_ends_whoever_waits() -> None:
    async def main() -> None:
        llm = AsyncLLM(MODEL, max_num_seqs=2, disable_log_stats=True)

        async def wait() -> list[str | None]:
            return [output.outputs[0].finish_reason async for output in llm.generate("x", ENDLESS)]

        task: asyncio.Task[list[str | None]] = asyncio.create_task(wait())
        await asyncio.sleep(0.2)
        await llm.close()
        await llm.close()
        assert (await task)[-1] == "abort"
        with pytest.raises(RuntimeError, match="closed"):
            await anext(llm.generate("x", PARAMS))

    coroutine: Coroutine[Any, Any, None] = main()
    asyncio.run(coroutine)
