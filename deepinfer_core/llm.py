"""LLM: the engine as a Python object."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeAlias, cast

from tqdm import tqdm

from deepinfer_core.engine.front import EngineFront
from deepinfer_core.engine.mailbox import Mailbox
from deepinfer_core.errors import GenerationError, RequestError
from deepinfer_core.outputs import CompletionOutput, RequestOutput
from deepinfer_core.sampling_params import SamplingParams

if TYPE_CHECKING:
    from deepinfer_core.engine.prompt import Prompt

#: Messages in order, each with ``role`` and ``content``.
Conversation: TypeAlias = Sequence[Mapping[str, Any]]

#: A run shorter than this many seconds shows no progress bar.
_BAR_DELAY = 1.0


class LLM(EngineFront):
    """A model ready to generate. Use it as a context manager, or call :meth:`close`.

    model: folder of a checkpoint in the published format, name of an installed one, or ``org/name`` on the
        Hugging Face hub.
    plugins: names of installed plugins, objects or classes; or a table of names with their configuration.
    engine_args: any field of :class:`deepinfer_core.arg_utils.EngineArgs`; an unknown one is refused.

    Raises ConfigError, CheckpointError or PluginError when it cannot start.

    Threads may share it: their requests run in the same steps, which a thread of the engine's own computes. To step an
    engine by hand, use :class:`deepinfer_core.engine.llm_engine.LLMEngine`.
    """

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool | Callable[..., Any] = True,
    ) -> list[RequestOutput]:
        """Complete prompts: one RequestOutput per prompt, in order, whatever happens to it.

        A prompt is text, a list of token ids, or a dict with ``prompt``, ``prompt_token_ids`` or ``messages`` (as
        for :meth:`chat`).
        sampling_params: one for all, or one per prompt; None takes the checkpoint's defaults.
        use_tqdm: show a progress bar on work longer than a second; or what to make it with.

        A prompt that cannot be served gives an output with ``error`` and finish reason ``error``; only wrong
        arguments as such raise (RequestError).
        """
        batch = _as_batch(prompts)
        params = _params_per_prompt(sampling_params, len(batch))
        order = [str(next(self._ids)) for _ in batch]
        done: dict[str, RequestOutput] = {}
        bar = _progress_bar(use_tqdm, len(batch))
        with Mailbox(self._thread, is_lasting=True) as mailbox:
            try:
                for request_id, prompt, each in zip(order, batch, params, strict=True):
                    refusal = self._submit(mailbox, request_id, prompt, each, stream=False)
                    if refusal is not None:
                        done[request_id] = refusal
                        bar.update()
                mailbox.flush()
                while len(done) < len(order):
                    output = mailbox.get()
                    done[output.request_id] = output
                    bar.update()
            finally:
                if len(done) < len(order):
                    self.abort(request_id for request_id in order if request_id not in done)
                bar.close()
        return [done[request_id] for request_id in order]

    def chat(
        self,
        messages: Conversation | Sequence[Conversation],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        add_generation_prompt: bool = True,
        use_tqdm: bool | Callable[..., Any] = True,
    ) -> list[RequestOutput]:
        """Continue conversations: one RequestOutput per conversation, in order, as :meth:`generate`.

        messages: a conversation, or a list of them. A conversation is a list of dicts, each with ``role`` and
            ``content``; the checkpoint's chat template makes text of it, which the output's ``prompt`` shows.
        add_generation_prompt: end the text where the assistant's reply begins.

        To stream a reply: ``stream({"messages": conversation})``. Raises RequestError if the checkpoint has no
        chat template.
        """
        self.get_tokenizer().require_chat_template()
        prompts: list[Prompt] = [
            {"messages": conversation, "add_generation_prompt": add_generation_prompt}
            for conversation in _as_conversations(messages)
        ]
        return self.generate(prompts, sampling_params, use_tqdm=use_tqdm)

    def stream(self, prompt: Prompt, sampling_params: SamplingParams | None = None) -> Iterator[CompletionOutput]:
        """Complete one prompt piece by piece; each piece holds only what is new.

        Joined texts equal :meth:`generate`'s text. The last piece has a ``finish_reason``; with ``n`` completions,
        whose pieces come as they are ready and tell their ``index``, the last of each. Closing the iterator
        aborts the request. Raises RequestError, at once, for a prompt that cannot be served, and GenerationError
        for a request that fails while it runs.
        """
        request_id = str(next(self._ids))
        mailbox = Mailbox(self._thread, is_lasting=False)
        refusal = self._submit(mailbox, request_id, prompt, sampling_params, stream=True)
        if refusal is not None:
            raise RequestError(refusal.error or "the request was refused")
        pieces = self._pieces(mailbox, request_id)
        next(pieces)  # begun: closing or dropping it now runs its clean-up, even if nobody ever asks for a piece
        mailbox.flush()
        return cast("Iterator[CompletionOutput]", pieces)

    def close(self) -> None:
        """End everything under way, and free weights, caches and threads. A second call does nothing."""
        self._thread.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- delivery -----------------------------------------------------------------------------------

    def _submit(
        self, mailbox: Mailbox, request_id: str, prompt: Prompt, params: SamplingParams | None, *, stream: bool
    ) -> RequestOutput | None:
        """Queue a request, whose outputs come to the mailbox; its output if it is refused."""
        try:
            mailbox.post(self.engine.make_request(request_id, prompt, params, stream=stream, sink=mailbox.put))
        except RequestError as error:
            text = prompt if isinstance(prompt, str) else None
            n = params.n if isinstance(params, SamplingParams) else 1
            return RequestOutput.refused(request_id, str(error), prompt=text, n=n)
        return None

    def _pieces(self, mailbox: Mailbox, request_id: str) -> Iterator[CompletionOutput | None]:
        """None first, then the pieces."""
        finished = False
        try:
            with mailbox:
                yield None
                while not finished:
                    output = mailbox.get()
                    finished = output.finished
                    yield from output.outputs
                    if output.error is not None:
                        raise GenerationError(f"the request failed: {output.error}")
        finally:
            if not finished:
                self.abort(request_id)


def _as_batch(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """A list of prompts; a single one, token ids included, becomes a list of one."""
    if isinstance(prompts, str | Mapping):
        return [prompts]
    if isinstance(prompts, bytes | bytearray) or not isinstance(prompts, Iterable):
        raise RequestError(f"prompts must be text, token ids, a dict, or a list of these, got {type(prompts).__name__}")
    items: list[Any] = list(prompts)
    if items and not any(isinstance(item, str | Mapping | Sequence) or hasattr(item, "__len__") for item in items):
        return [items]
    return items


def _as_conversations(messages: Conversation | Sequence[Conversation]) -> list[Any]:
    """A list of conversations; a single one, known by a message in it, becomes a list of one."""
    if isinstance(messages, str | bytes | Mapping) or not isinstance(messages, Sequence):
        raise RequestError(
            f"messages must be a list of dicts with 'role' and 'content', or a list of such lists, "
            f"got {type(messages).__name__}"
        )
    is_single = any(isinstance(item, Mapping) for item in messages)
    return [messages] if is_single else list(messages)


def _params_per_prompt(
    params: SamplingParams | Sequence[SamplingParams] | None, count: int
) -> Sequence[SamplingParams | None]:
    if params is None or isinstance(params, SamplingParams):
        return [params] * count
    if isinstance(params, str | Mapping) or not isinstance(params, Sequence):
        raise RequestError(
            f"sampling_params must be a SamplingParams, a list of them or None, got {type(params).__name__}"
        )
    if len(params) != count:
        raise RequestError(
            f"sampling_params must be one object or one per prompt ({count}), got a list of {len(params)}"
        )
    for each in params:
        if not isinstance(each, SamplingParams):
            raise RequestError(f"sampling_params must hold SamplingParams, got {type(each).__name__}")
    return params


def _progress_bar(use_tqdm: bool | Callable[..., Any], count: int) -> Any:
    if callable(use_tqdm):
        return use_tqdm(total=count, desc="prompts")
    return tqdm(total=count, desc="prompts", delay=_BAR_DELAY, disable=not use_tqdm, dynamic_ncols=True)
