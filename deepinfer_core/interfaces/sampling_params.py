"""What a request asks of the sampler. Validated completely on construction: nothing bad reaches the engine."""

from __future__ import annotations

import math
import numbers
import operator
import random
import reprlib
from collections.abc import Iterable, Mapping
from typing import Any, Literal, Self

import attrs

from deepinfer_core.errors import RequestError, nearest
from deepinfer_core.frozen import FrozenDict, freeze
from deepinfer_core.interfaces.structured_output import StructuredOutput

#: Which distribution logprobs are of: the model's own, or the one that tokens are drawn from.
LogprobsMode = Literal["raw", "processed"]

#: Most completions per prompt.
MAX_SAMPLES = 128

#: Between the seeds of two completions: odd, so that no two of a request are equal, and far from the differences
#: between seeds that people choose.
_SEED_STEP = 0x9E3779B97F4A7C15


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


def _token_ids(name: str, rule: str, value: object, ordered: bool = False) -> tuple[int, ...]:
    """A list of ids, as they come if ``ordered``, else each once and rising."""
    if not isinstance(value, list | tuple) and (ordered or not isinstance(value, set | frozenset)):
        raise _refuse(name, rule, value)
    convert = _integer(name, rule)
    ids = tuple(convert(item) for item in value)
    if any(token < 0 for token in ids):
        raise _refuse(name, rule, value)
    return ids if ordered else tuple(sorted(set(ids)))


_IDS = "None or a list of token ids >= 0"


# Each a function of its own: type checkers learn from it what the field accepts.
def _stop_token_ids(value: object) -> tuple[int, ...]:
    return () if value is None else _token_ids("stop_token_ids", _IDS, value)


def _banned_token_ids(value: object) -> tuple[int, ...]:
    return () if value is None else _token_ids("banned_token_ids", _IDS, value)


def _forced_token_ids(value: object) -> tuple[int, ...]:
    return () if value is None else _token_ids("forced_token_ids", _IDS, value, ordered=True)


def _allowed_token_ids(value: object) -> tuple[int, ...] | None:
    rule = "None or a non-empty list of token ids >= 0"
    ids = None if value is None else _token_ids("allowed_token_ids", rule, value)
    if ids == ():
        raise _refuse("allowed_token_ids", rule, value)
    return ids


def _logit_bias(value: object) -> FrozenDict[int, float]:
    rule = "None or a table from token ids >= 0 to biases in [-100, 100]"
    if value is None:
        return FrozenDict()
    if not isinstance(value, Mapping):
        raise _refuse("logit_bias", rule, value)
    # JSON has no integer keys.
    keys = [int(key) if isinstance(key, str) and key.isdecimal() else key for key in value]
    ids = [_integer("logit_bias", rule)(key) for key in keys]
    biases = [_number("logit_bias", rule)(bias) for bias in value.values()]
    for token, bias in zip(ids, biases, strict=True):
        if token < 0 or not -100 <= bias <= 100:
            raise _refuse("logit_bias", rule, {token: bias})
    if len(set(ids)) < len(ids):
        raise _refuse("logit_bias", "a table in which no token id comes twice", value)
    return FrozenDict(sorted(zip(ids, biases, strict=True)))


def _extra(value: object) -> FrozenDict[str, Any]:
    rule = "None or a table from names to plain data (None, booleans, numbers, text, lists and tables of these)"
    if value is None:
        return FrozenDict()
    if not isinstance(value, Mapping):
        raise _refuse("extra", rule, value)
    try:
        frozen: FrozenDict[str, Any] = freeze(value)
    except TypeError as error:
        raise RequestError(f"extra must be {rule}, got {error}") from None
    return frozen


def _structured(value: object) -> StructuredOutput | None:
    return StructuredOutput.of(value)


def _known_mode(instance: object, attribute: attrs.Attribute[Any], value: object) -> None:
    if value not in ("raw", "processed"):
        raise _refuse(attribute.name, "'raw' or 'processed'", value)


@attrs.frozen(kw_only=True)
class SamplingParams:
    """Sampling parameters of one request. Keyword-only, immutable, hashable; ``attrs.evolve`` makes variants.

    Raises RequestError, naming the field, the rule and the value; an unknown field names its nearest relative.

    n: completions per prompt, in 1..128; more than one need a temperature. The prompt is computed once.
    temperature: 0 is greedy: the largest logit, ties to the lowest id, and the filters play no part.
    presence_penalty: in [-2, 2], taken from the logit of each token that the output has.
    frequency_penalty: in [-2, 2], taken from a token's logit as often as the output has it.
    repetition_penalty: > 0; logits of tokens that the prompt or the output has are divided by it if positive,
        multiplied by it if not.
    logit_bias: from token id to a number in [-100, 100] that is added to its logit.
    allowed_token_ids: the only tokens that may be drawn; None: all.
    banned_token_ids: tokens that must not be drawn.
    forced_token_ids: what the output begins with, whatever the logits; logprobs are reported as for drawn tokens,
        and nothing but a length limit ends the output before the last of them.
    top_k: keep the k most likely tokens; -1 or 0 keeps all.
    top_p: keep the most likely tokens until they hold this share of the probability; 1.0 keeps all.
    min_p: keep tokens at least this share as likely as the most likely one; 0.0 keeps all.

    The order, for each token: logits_processor plugins, logit_bias, repetition, frequency and presence penalty,
    allowed and banned ids and ``structured``, temperature, top_k, top_p, min_p.

    seed: in [0, 2**64); with it a request gives the same tokens whatever runs beside it. None: random. Completion i
        of n is what the seed (seed + i * 0x9E3779B97F4A7C15) mod 2**64 gives with n=1: the first is that of ``seed``.
    stop: strings that end the output; not part of the text unless ``include_stop_str_in_output``.
    stop_token_ids: token ids that end the output, besides the model's end-of-sequence ids.
    ignore_eos: the model's end-of-sequence ids do not end the output.
    max_tokens: longest output; None: as long as the model or the cache allows.
    min_tokens: neither stop ids nor stop strings end the output before it is this long.
    logprobs: None for none; N for the chosen token's and those of the N most likely tokens.
    logprobs_mode: ``raw``: of the logits as the model gives them; ``processed``: of the distribution that tokens
        are drawn from, after everything in the order above (of a greedy request: before temperature). Only tokens
        that it can give are among the N; what it cannot give has -inf.
    prompt_logprobs: the same for each token of the prompt but the first, which nothing comes before; always raw.
    skip_special_tokens: special tokens leave no trace in the text.
    structured: what form the output has: a :class:`~deepinfer_core.StructuredOutput`, or a table of its
        fields. It excludes tokens beside those that are banned or not allowed; ``forced_token_ids`` must fit it.
    extra: parameters for plugins, by the name of the component they are for: plain data, never code. Naming a
        logits_processor component is what makes it act on the request.
    """

    n: int = _integer_field("n", 1, f"an integer in 1..{MAX_SAMPLES}", lambda v: 1 <= v <= MAX_SAMPLES)
    temperature: float = _real_field("temperature", 1.0, "a finite number >= 0 (0 is greedy)", lambda v: v >= 0)
    top_k: int = _integer_field("top_k", -1, "-1 or 0 (off) or a positive integer", lambda v: v >= -1)
    top_p: float = _real_field("top_p", 1.0, "in (0, 1]", lambda v: 0 < v <= 1)
    min_p: float = _real_field("min_p", 0.0, "in [0, 1]", lambda v: 0 <= v <= 1)
    presence_penalty: float = _real_field("presence_penalty", 0.0, "in [-2, 2]", lambda v: -2 <= v <= 2)
    frequency_penalty: float = _real_field("frequency_penalty", 0.0, "in [-2, 2]", lambda v: -2 <= v <= 2)
    repetition_penalty: float = _real_field("repetition_penalty", 1.0, "a finite number > 0", lambda v: v > 0)
    logit_bias: FrozenDict[int, float] = attrs.field(default=FrozenDict(), converter=_logit_bias)
    allowed_token_ids: tuple[int, ...] | None = attrs.field(default=None, converter=_allowed_token_ids)
    banned_token_ids: tuple[int, ...] = attrs.field(default=(), converter=_banned_token_ids)
    forced_token_ids: tuple[int, ...] = attrs.field(default=(), converter=_forced_token_ids)
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
    logprobs_mode: LogprobsMode = attrs.field(default="raw", validator=_known_mode)
    prompt_logprobs: int | None = _integer_field(
        "prompt_logprobs", None, "None or an integer >= 0", lambda v: v >= 0, optional=True
    )
    skip_special_tokens: bool = _flag_field("skip_special_tokens", True)
    include_stop_str_in_output: bool = _flag_field("include_stop_str_in_output", False)
    structured: StructuredOutput | None = attrs.field(default=None, converter=_structured)
    extra: FrozenDict[str, Any] = attrs.field(default=FrozenDict(), converter=_extra)

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
        if self.max_tokens is not None and len(self.forced_token_ids) > self.max_tokens:
            count = len(self.forced_token_ids)
            raise RequestError(f"forced_token_ids must be at most max_tokens ({self.max_tokens}), got {count} of them")
        if self.n > 1 and self.is_greedy:
            raise RequestError(f"n must be 1 when temperature is 0 (all completions would be equal), got {self.n}")
        self._check_choice()

    def _check_choice(self) -> None:
        """Refuse masks that leave nothing to draw."""
        if self.allowed_token_ids is None:
            return
        left = set(self.allowed_token_ids) - set(self.banned_token_ids)
        allowed = reprlib.repr(self.allowed_token_ids)
        if not left:
            raise RequestError(f"allowed_token_ids must have an id that is not in banned_token_ids, got {allowed}")
        if self.min_tokens > len(self.forced_token_ids) and left <= set(self.stop_token_ids):
            raise RequestError(
                f"allowed_token_ids must have an id that is not in stop_token_ids while min_tokens is "
                f"{self.min_tokens}, got {allowed}"
            )

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Self:
        """Build from plain data, e.g. parsed JSON, with the same checks."""
        return cls(**fields)

    @property
    def is_greedy(self) -> bool:
        """Whether the largest logit is always chosen."""
        return self.temperature == 0.0

    @property
    def has_penalties(self) -> bool:
        """Whether logits depend on the tokens that came before, other than through the model."""
        return (self.repetition_penalty, self.frequency_penalty, self.presence_penalty) != (1.0, 0.0, 0.0)

    @property
    def tokens_before_stop(self) -> int:
        """Only tokens after this many, or a length limit, end the output."""
        return max(self.min_tokens, len(self.forced_token_ids) - 1)

    def resolve_seed(self, rng: random.Random) -> int:
        """The request's seed in [0, 2**64): its own, or a fresh one from ``rng``, drawn once at admission."""
        return rng.getrandbits(64) if self.seed is None else self.seed

    def sample_seeds(self, seed: int) -> list[int]:
        """Seeds of the ``n`` completions of a request with this seed: all different, the first is its own."""
        return [(seed + index * _SEED_STEP) % 2**64 for index in range(self.n)]

    def check_vocabulary(self, vocab_size: int) -> None:
        """Refuse token ids and counts that a vocabulary of this size does not have."""
        for name in ("stop_token_ids", "allowed_token_ids", "banned_token_ids", "forced_token_ids", "logit_bias"):
            ids: Iterable[int] = getattr(self, name) or ()
            outside = [token for token in ids if token >= vocab_size]
            if outside:
                raise RequestError(f"{name} must be below the vocabulary's size {vocab_size}, got {outside}")
        if len(self.banned_token_ids) == vocab_size:
            raise RequestError("banned_token_ids must leave a token to draw, got every id of the vocabulary")
        for name, count in (("logprobs", self.logprobs), ("prompt_logprobs", self.prompt_logprobs)):
            if count is not None and count > vocab_size:
                raise RequestError(f"{name} must be at most the vocabulary's size {vocab_size}, got {count}")
