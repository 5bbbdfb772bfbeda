"""AsyncLLM: the engine for programs that run on an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import TracebackType
from typing import TYPE_CHECKING, Self

from deepinfer_core.engine.front import EngineFront
from deepinfer_core.errors import GenerationError

if TYPE_CHECKING:
    from deepinfer_core.engine.prompt import Prompt
    from deepinfer_core.outputs import RequestOutput
    from deepinfer_core.sampling_params import SamplingParams


class AsyncLLM(EngineFront):
    """A model ready to generate, many requests at once, for coroutines. Arguments and errors are those of
    :class:`deepinfer_core.LLM`; so are the engine and its thread.

    An asynchronous context manager; or call :meth:`close`.
    """

    async def generate(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        *,
        request_id: str | None = None,
    ) -> AsyncIterator[RequestOutput]:
        """Complete one prompt piece by piece: each RequestOutput holds what is new, and the last one is ``finished``.

        Joined texts equal those of :meth:`deepinfer_core.LLM.generate`. The prompt is tokenized on a thread of the
        event loop's executor. Whoever stops iterating, or is cancelled, aborts the request.

        request_id: must be no live request's; None makes one. Raises RequestError for a prompt that cannot be served,
        and GenerationError for a request that fails while it runs.
        """
        loop = asyncio.get_running_loop()
        arrived: asyncio.Queue[RequestOutput | BaseException] = asyncio.Queue()

        def put(found: RequestOutput | BaseException) -> bool:
            loop.call_soon_threadsafe(arrived.put_nowait, found)
            return True

        name = f"async-{next(self._ids)}" if request_id is None else request_id

        def begin() -> None:
            self._thread.submit([self.engine.make_request(name, prompt, sampling_params, stream=True, sink=put)])

        self._thread.listeners[id(arrived)] = put
        begun = loop.run_in_executor(None, begin)
        finished = False
        try:
            await asyncio.shield(begun)
            while not finished:
                found = await arrived.get()
                if isinstance(found, BaseException):
                    raise found
                finished = found.finished
                if found.error is not None:
                    raise GenerationError(f"the request failed: {found.error}")
                yield found
        finally:
            self._thread.listeners.pop(id(arrived), None)
            if not finished:
                # Now, or when it has begun; a refused one's id is somebody else's.
                begun.add_done_callback(lambda done: None if done.exception() else self.abort(name))

    async def close(self) -> None:
        """End everything under way, and free weights, caches and threads. A second call does nothing."""
        await asyncio.get_running_loop().run_in_executor(None, self._thread.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
