"""What a request asks of the sampler. Validated completely on construction: nothing bad reaches the engine."""

from __future__ import annotations

import math
import numbers
import operator
import random
from collections.abc import Mapping
from typing import Any, Self

import attrs

from deepinfer_core.errors import RequestError, nearest


def _refuse(name: str, rule: str, value: object) -> RequestError:
    return RequestError(f"{name} must be {rule}, got {value!r}")


def _number(name: str, rule: str) -> Any:
    """Converter to a finite float; bools and strings are no numbers."""

    def convert(value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, numbers.Real) or not math.isfinite(value):
            raise _refuse(name, rule, value)
        return float(value)

    return convert


def _integer(name: str, rule: str, *, optional: bool = False) -> Any:
    """Converter to an int (numpy's integers too); bools, floats and strings are refused."""

    def convert(value: Any) -> int | None:
        if value is None and optional:
            return None
        if isinstance(value, bool) or not isinstance(value, numbers.Integral):
            raise _refuse(name, rule, value)
        return operator.index(value)

    return convert


def _flag(name: str) -> Any:
    def convert(value: object) -> bool:
        if not isinstance(value, bool):
            raise _refuse(name, "True or False", value)
        return value

    return convert


def _within(rule: str, accepts: Any) -> Any:
    """Validator for values that are not None."""

    def validate(instance: object, attribute: attrs.Attribute[Any], value: Any) -> None:
        if value is not None and not accepts(value):
            raise _refuse(attribute.name, rule, value)

    return validate


def _real_field(name: str, default: float, rule: str, accepts: Any) -> Any:
    return attrs.field(default=default, converter=_number(name, rule), validator=_within(rule, accepts))


def _integer_field(name: str, default: int | None, rule: str, accepts: Any, *, optional: bool = False) -> Any:
    convert = _integer(name, rule, optional=optional)
    return attrs.field(default=default, converter=convert, validator=_within(rule, accepts))


def _flag_field(name: str, default: bool) -> Any:
    return attrs.field(default=default, converter=_flag(name))


def _stop_strings(value: object) -> tuple[str, ...]:
    rule = "None, a non-empty string or a list of them"
    strings = () if value is None else (value,) if isinstance(value, str) else value
    if not isinstance(strings, list | tuple) or not all(isinstance(item, str) and item for item in strings):
        raise _refuse("stop", rule, value)
    return tuple(dict.fromkeys(strings))


def _stop_token_ids(value: object) -> tuple[int, ...]:
    rule = "None or a list of token ids >= 0"
    if value is None:
        return ()
    if not isinstance(value, list | tuple | set | frozenset):
        raise _refuse("stop_token_ids", rule, value)
    convert = _integer("stop_token_ids", rule)
    ids = sorted({convert(item) for item in value})
    if ids and ids[0] < 0:
        raise _refuse("stop_token_ids", rule, value)
    return tuple(ids)


@attrs.frozen(kw_only=True)
class SamplingParams:
    """Sampling parameters of one request. Keyword-only, immutable, hashable; ``attrs.evolve`` makes variants.

    Raises RequestError, naming the field, the rule and the value; an unknown field names its nearest relative.

    n: completions per prompt; only 1 for now.
    temperature: 0 is greedy: the largest logit, ties to the lowest id, and the filters play no part.
    top_k: keep the k most likely tokens; -1 or 0 keeps all.
    top_p: keep the most likely tokens until they hold this share of the probability; 1.0 keeps all.
    min_p: keep tokens at least this share as likely as the most likely one; 0.0 keeps all.
        The order is temperature, top_k, top_p, min_p.
    seed: in [0, 2**64); with it a request gives the same tokens whatever runs beside it. None: random.
    stop: strings that end the output; not part of the text unless ``include_stop_str_in_output``.
    stop_token_ids: token ids that end the output, besides the model's end-of-sequence ids.
    ignore_eos: the model's end-of-sequence ids do not end the output.
    max_tokens: longest output; None: as long as the model or the cache allows.
    min_tokens: neither stop ids nor stop strings end the output before it is this long.
    logprobs: None for none; N for the chosen token's and those of the N most likely tokens, of the raw logits.
    prompt_logprobs: the same for each token of the prompt but the first, which nothing comes before.
    skip_special_tokens: special tokens leave no trace in the text.
    """

    n: int = _integer_field("n", 1, "1 (several completions per prompt are not supported)", lambda v: v == 1)
    temperature: float = _real_field("temperature", 1.0, "a finite number >= 0 (0 is greedy)", lambda v: v >= 0)
    top_k: int = _integer_field("top_k", -1, "-1 or 0 (off) or a positive integer", lambda v: v >= -1)
    top_p: float = _real_field("top_p", 1.0, "in (0, 1]", lambda v: 0 < v <= 1)
    min_p: float = _real_field("min_p", 0.0, "in [0, 1]", lambda v: 0 <= v <= 1)
    seed: int | None = _integer_field(
        "seed", None, "None or an integer in [0, 2**64)", lambda v: 0 <= v < 2**64, optional=True
    )
    stop: tuple[str, ...] = attrs.field(default=(), converter=_stop_strings)
    stop_token_ids: tuple[int, ...] = attrs.field(default=(), converter=_stop_token_ids)
    ignore_eos: bool = _flag_field("ignore_eos", False)
    max_tokens: int | None = _integer_field(
        "max_tokens", 16, "None or an integer >= 1", lambda v: v >= 1, optional=True
    )
    min_tokens: int = _integer_field("min_tokens", 0, "an integer >= 0", lambda v: v >= 0)
    logprobs: int | None = _integer_field("logprobs", None, "None or an integer >= 0", lambda v: v >= 0, optional=True)
    prompt_logprobs: int | None = _integer_field(
        "prompt_logprobs", None, "None or an integer >= 0", lambda v: v >= 0, optional=True
    )
    skip_special_tokens: bool = _flag_field("skip_special_tokens", True)
    include_stop_str_in_output: bool = _flag_field("include_stop_str_in_output", False)

    def __new__(cls, *args: object, **fields: object) -> Self:
        """Refuse unknown names before the generated ``__init__`` would, with the nearest known one."""
        known = [field.name for field in attrs.fields(SamplingParams)]
        for name in fields:
            if name not in known:
                raise RequestError(f"SamplingParams has no field {name!r}{nearest(name, known)}")
        return super().__new__(cls)

    def __attrs_post_init__(self) -> None:
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise RequestError(f"min_tokens must be <= max_tokens ({self.max_tokens}), got {self.min_tokens}")

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Self:
        """Build from plain data, e.g. parsed JSON, with the same checks."""
        return cls(**fields)

    @property
    def is_greedy(self) -> bool:
        """Whether the largest logit is always chosen."""
        return self.temperature == 0.0

    def resolve_seed(self, rng: random.Random) -> int:
        """The request's seed in [0, 2**64): its own, or a fresh one from ``rng``, drawn once at admission."""
        return rng.getrandbits(64) if self.seed is None else self.seed

    def check_vocabulary(self, vocab_size: int) -> None:
        """Refuse token ids and counts that a vocabulary of this size does not have."""
        outside = [token for token in self.stop_token_ids if token >= vocab_size]
        if outside:
            raise RequestError(f"stop_token_ids must be below the vocabulary's size {vocab_size}, got {outside}")
        for name, count in (("logprobs", self.logprobs), ("prompt_logprobs", self.prompt_logprobs)):
            if count is not None and count > vocab_size:
                raise RequestError(f"{name} must be at most the vocabulary's size {vocab_size}, got {count}")
