"""What hooks are shown: copies and frozen records, so that no plugin can change what the engine or others have; and
what those that are asked for something may return."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from attrs import evolve

from deepinfer_core.hookspecs import AcceptedRequest

if TYPE_CHECKING:
    from deepinfer_core.outputs import RequestOutput


def _request(request: Any) -> AcceptedRequest:
    ids = tuple(request.prompt_token_ids)
    return AcceptedRequest(
        request_id=request.request_id, prompt=request.prompt, prompt_token_ids=ids, params=request.params
    )


def _output(output: RequestOutput) -> RequestOutput:
    completions = [
        evolve(each, token_ids=list(each.token_ids), logprobs=_positions(each.logprobs)) for each in output.outputs
    ]
    return evolve(
        output,
        prompt_token_ids=list(output.prompt_token_ids),
        prompt_logprobs=_positions(output.prompt_logprobs),
        outputs=completions,
        metrics=output.metrics and evolve(output.metrics),
    )


def _positions(positions: Any) -> Any:
    return positions and [position and dict(position) for position in positions]


#: By the name of a hook's argument, what is passed in its place, made anew for each plugin.
VIEWS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "request": _request,
    "output": _output,
    "outputs": lambda outputs: tuple(map(_output, outputs)),
    "metrics": dict,
    "scheduled": tuple,
    "finished": tuple,
    "states": dict,
}


def _check_metrics(result: object) -> None:
    found = type(result).__name__
    if isinstance(result, Mapping):
        wrong = [(k, v) for k, v in result.items() if not isinstance(k, str) or not isinstance(v, int | float | str)]
        if not wrong:
            return
        found = "{!r}: {!r}".format(*wrong[0])
    raise TypeError(f"it must return a mapping of names to numbers or text, got {found}")


def _check_answer(result: object) -> None:
    if not isinstance(result, bool):
        raise TypeError(f"it must return True, False or None, got {result!r}")


#: By hook, what raises TypeError for a result, other than None, that is none.
RESULTS: Final[Mapping[str, Callable[[object], None]]] = {
    "build_extra_metrics_log": _check_metrics,
    "should_copy_state": _check_answer,
}
