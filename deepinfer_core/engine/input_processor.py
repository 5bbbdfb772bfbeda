"""Intake: from what a user asks for to a request that the engine can serve, or the reason why it cannot."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np

from deepinfer_core.engine.detokenizer import IncrementalDetokenizer
from deepinfer_core.engine.prompt import Prompt, check_prompt, prompt_parts, tokenize_prompt
from deepinfer_core.engine.request import Completion, Request, Tag
from deepinfer_core.errors import RequestError
from deepinfer_core.interfaces.logits_processor import RowContext
from deepinfer_core.sampling.batch import sampling_spec
from deepinfer_core.sampling.processors import check_extra
from deepinfer_core.sampling_params import SamplingParams

if TYPE_CHECKING:
    from deepinfer_core import _C
    from deepinfer_core.interfaces.logits_processor import LogitsProcessor
    from deepinfer_core.interfaces.structured_output import StructuredOutput
    from deepinfer_core.outputs import RequestOutput
    from deepinfer_core.tokenizer import Tokenizer

_NO_OUTPUT = np.empty(0, np.int32)
_NO_OUTPUT.flags.writeable = False


@attrs.frozen(eq=False)
class _Checked:
    """What is the same for every request with these parameters."""

    params: SamplingParams
    stop_ids: tuple[int, ...]
    spec: _C.SamplingSpec
    max_tokens: int
    tags: int


class InputProcessor:
    """Checks and tokenizes. It holds no lock of the engine and touches nothing of it, so any thread may call it.

    check_prompt_length: raises ValueError for a prompt that could never be served.
    check_structured: raises RequestError for what cannot be compiled.
    """

    def __init__(
        self,
        *,
        tokenizer: Tokenizer | None,
        vocab_size: int,
        max_model_len: int,
        eos_token_ids: tuple[int, ...],
        sampling_defaults: Mapping[str, Any],
        processors: Mapping[str, LogitsProcessor],
        check_length: Callable[..., None],
        check_structured: Callable[[StructuredOutput], None],
        seed: int,
    ) -> None:
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._max_model_len = max_model_len
        self._eos_token_ids = eos_token_ids
        self._defaults = SamplingParams(**sampling_defaults)
        self._processors = processors
        self._check_length = check_length
        self._check_structured = check_structured
        self._rng = random.Random(seed)
        self._last: _Checked | None = None
        """Of the request before: a batch usually shares one object, which is then checked once."""

    def process(
        self,
        request_id: str,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        stream: bool = False,
        sink: Callable[[RequestOutput], object] | None = None,
    ) -> Request:
        """The request, which nobody knows yet. Raises RequestError if it could never be served.

        stream: report what each step adds; otherwise only the final output, whole.
        """
        arrival = time.monotonic()
        checked = self._checked(params)
        params = checked.params
        text, ids = prompt_parts(prompt, self._tokenizer)
        token_ids = tokenize_prompt(text, ids, self._tokenizer)
        tokens = check_prompt(token_ids, self._vocab_size)
        try:
            self._check_length(request_id, tokens, max_tokens=checked.max_tokens)
        except ValueError as error:
            raise RequestError(str(error)) from None
        request = Request(
            request_id,
            text,
            token_ids,
            tokens,
            params,
            checked.spec,
            checked.stop_ids,
            params.sample_seeds(params.resolve_seed(self._rng)),
            checked.max_tokens,
            checked.tags | Tag.STREAMED if stream else checked.tags,
            arrival,
            sink,
        )
        request.completions = [Completion(request, index) for index in range(params.n)]
        if checked.tags & Tag.SCORED:
            request.prompt_logprobs = [None]
        for completion in request.completions if params.stop or params.extra else ():
            self._prepare(completion)
        return request

    def _checked(self, params: SamplingParams | None) -> _Checked:
        params = self._defaults if params is None else params
        last = self._last
        if last is not None and last.params is params:
            return last
        if not isinstance(params, SamplingParams):
            raise RequestError(f"sampling_params must be a SamplingParams, got {type(params).__name__}")
        params.check_vocabulary(self._vocab_size)
        if params.structured is not None:
            self._check_structured(params.structured)
        is_processed = check_extra(params, self._processors)
        if self._tokenizer is None and params.stop:
            raise RequestError(f"stop strings need a tokenizer and this model has none, got stop={params.stop!r}")
        stop_ids = tuple(sorted({*params.stop_token_ids, *(() if params.ignore_eos else self._eos_token_ids)}))
        tags = 0
        if params.stop or params.structured is not None:
            tags |= Tag.JUDGED
        if params.structured is not None:
            tags |= Tag.GUIDED
        if is_processed:
            tags |= Tag.PROCESSED
        if params.prompt_logprobs is not None:
            tags |= Tag.SCORED
        longest = self._max_model_len
        self._last = _Checked(
            params,
            stop_ids,
            sampling_spec(params, stop_ids),
            min(params.max_tokens or longest, longest),
            tags,
        )
        return self._last

    def _prepare(self, completion: Completion) -> None:
        """What a completion needs from its first token on."""
        request = completion.request
        if request.params.stop and self._tokenizer is not None:
            completion.detokenizer = IncrementalDetokenizer(self._tokenizer, request.prompt_token_ids, request.params)
        if request.params.extra:
            request.tokens.flags.writeable = False
            completion.context = RowContext(request.request_id, request.params, request.tokens, _NO_OUTPUT)
