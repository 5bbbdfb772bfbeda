"""What hooks are shown: copies and frozen records, so that no plugin can change what the engine or others have; and
what those that are asked for something may return."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from attrs import evolve

from deepinfer_core.hookspecs import AcceptedRequest

if TYPE_CHECKING:
    from deepinfer_core.outputs import CompletionOutput, RequestOutput


def _request(request: Any) -> Any:
    return AcceptedRequest(
        request_id=request.request_id,
        prompt=request.prompt,
        prompt_token_ids=tuple(request.prompt_token_ids),
        params=request.params,
    )


def _output(output: RequestOutput) -> RequestOutput:
    return evolve(
        output,
        prompt_token_ids=list(output.prompt_token_ids),
        prompt_logprobs=_positions(output.prompt_logprobs),
        outputs=[_completion(completion) for completion in output.outputs],
        metrics=output.metrics and evolve(output.metrics),
    )


def _completion(completion: CompletionOutput) -> CompletionOutput:
    return evolve(completion, token_ids=list(completion.token_ids), logprobs=_positions(completion.logprobs))


def _positions(positions: Any) -> Any:
    return positions and [position and dict(position) for position in positions]


def _outputs(outputs: Sequence[RequestOutput]) -> tuple[RequestOutput, ...]:
    return tuple(map(_output, outputs))


#: By the name of a hook's argument, what is passed in its place, made anew for each plugin.
VIEWS: Final[Mapping[str, Callable[[Any], Any]]] = MappingProxyType(
    {
        "request": _request,
        "output": _output,
        "outputs": _outputs,
        "metrics": dict,
        "scheduled": tuple,
        "finished": tuple,
        "states": dict,
    }
)


def _check_metrics(result: object) -> None:
    if not isinstance(result, Mapping):
        raise TypeError(f"it must return a mapping of names to numbers or text, got {type(result).__name__}")
    for name, value in result.items():
        if not isinstance(name, str) or not isinstance(value, int | float | str):
            raise TypeError(f"it must return a mapping of names to numbers or text, got {name!r}: {value!r}")


def _check_answer(result: object) -> None:
    if not isinstance(result, bool):
        raise TypeError(f"it must return True, False or None, got {result!r}")


#: By hook, what raises TypeError for a result, other than None, that is none.
RESULTS: Final[Mapping[str, Callable[[object], None]]] = MappingProxyType(
    {"build_extra_metrics_log": _check_metrics, "should_copy_state": _check_answer}
)
