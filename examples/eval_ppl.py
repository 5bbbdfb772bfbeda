"""Perplexity of a text under a model, by the engine's prompt log-probabilities.

    python examples/eval_ppl.py MODEL TEXTFILE [--window N] [--limit N] [--json]

The text's tokens are cut into windows of N, by default as many as the model takes. Each window is judged on its
own, after the begin token, where the tokenizer has one; otherwise after the last token of the window before it.
So every token counts once (without a begin token: every one but the first), and
perplexity = exp(mean of -log p(token | the window before it)).
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from deepinfer_core import LLM, SamplingParams
from deepinfer_core.errors import DeepInferError, RequestError

#: Windows handed to the engine at once: enough to fill its steps, few enough to hold their results.
_BATCH = 64
_SCORE = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True, prompt_logprobs=0)


def windows(tokens: Sequence[int], size: int, bos: int | None) -> list[list[int]]:
    """Prompts of at most ``1 + size`` tokens; all tokens of each but the first are to be judged."""
    if bos is not None:
        return [[bos, *tokens[start : start + size]] for start in range(0, len(tokens), size)]
    return [list(tokens[start : start + size + 1]) for start in range(0, len(tokens) - 1, size)]


def logprobs(llm: LLM, prompts: Sequence[list[int]]) -> Iterator[float]:
    """Natural log-probability of each token but the first of each prompt."""
    for start in range(0, len(prompts), _BATCH):
        for output in llm.generate(prompts[start : start + _BATCH], _SCORE, use_tqdm=False):
            if output.error is not None or output.prompt_logprobs is None:
                raise RequestError(f"a window could not be judged: {output.error}")
            pairs = zip(output.prompt_token_ids[1:], output.prompt_logprobs[1:], strict=True)
            yield from (entry[token].logprob for token, entry in pairs if entry is not None)


def evaluate(llm: LLM, text: str, *, window: int | None = None, limit: int | None = None) -> dict[str, Any]:
    """Figures of ``text``. window: tokens per window; limit: only that many windows. Raises RequestError."""
    tokenizer = llm.get_tokenizer()
    bos = tokenizer.bos_token_id
    longest = llm.engine.worker.max_model_len - 2  # the first token and the one that a request must generate
    size = longest if window is None else window
    if not 1 <= size <= longest:
        raise RequestError(f"window must be from 1 to {longest} (what the model and its cache take), got {size}")
    prompts = windows(tokenizer.encode(text, add_special_tokens=False), size, bos)[:limit]
    started = time.monotonic()
    values = list(logprobs(llm, prompts))
    if not values:
        raise RequestError("the text has no token to judge")
    seconds = time.monotonic() - started
    nats = -math.fsum(values)
    judged = tokenizer.decode([token for prompt in prompts for token in prompt[1:]], skip_special_tokens=False)
    return {
        "perplexity": math.exp(nats / len(values)),
        "nats_per_token": nats / len(values),
        "bits_per_byte": nats / math.log(2) / len(judged.encode()),
        "tokens": len(values),
        "windows": len(prompts),
        "window": size,
        "tokens_per_second": len(values) / seconds,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; 2 for what cannot be evaluated."""
    parser = argparse.ArgumentParser(description="Perplexity of a text under a model.")
    parser.add_argument("model", metavar="MODEL", help="as for deepinfer generate --model")
    parser.add_argument("text", metavar="TEXTFILE", type=Path, help="UTF-8 text")
    parser.add_argument("--window", type=int, metavar="N", help="tokens per window (default: what the model takes)")
    parser.add_argument("--limit", type=int, metavar="N", help="judge only the first N windows")
    parser.add_argument("--json", action="store_true", help="print JSON")
    args = parser.parse_args(arguments)
    try:
        text = args.text.read_text(encoding="utf-8")
        with LLM(args.model, disable_log_stats=True) as llm:
            figures = evaluate(llm, text, window=args.window, limit=args.limit)
    except (DeepInferError, OSError, UnicodeDecodeError) as error:
        print(f"eval_ppl: error: {error}", file=sys.stderr)
        return 2
    if args.json:
        print(json.dumps(figures))
    else:
        for name, value in figures.items():
            print(f"{name.replace('_', ' ')}: {value:.6g}" if isinstance(value, float) else f"{name}: {value}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
