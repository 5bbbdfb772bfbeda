"""Bind the lifecycle hooks once: each is None when nobody implements it, else one plain callable."""

from __future__ import annotations

import inspect
import itertools
import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import pluggy
from attrs import fields, frozen

from deepinfer_core.errors import PluginError, nearest
from deepinfer_core.hookspecs import HOOK_NAMES, MERGED_HOOKS, PROJECT, HookSpecs
from deepinfer_core.plugins.views import RESULTS, VIEWS

Hook = Callable[..., Any] | None

logger = logging.getLogger(__name__)

#: Failures of a tolerated hook that are logged: one that fails in every step must not fill a disk.
_LOGGED_FAILURES = 10


@frozen(kw_only=True)
class Hooks:
    """One bound callable per hook of ``deepinfer_core.hookspecs``, or None where nobody implements it.

    Arguments are positional, in the order of the specification. The result is the list of what the
    implementations returned, in order, without None; for a ``firstresult`` hook the first answer or None; for
    one of ``MERGED_HOOKS`` one mapping with everything.
    """

    init_pd_split: Hook = None
    on_request_added: Hook = None
    post_schedule: Hook = None
    should_copy_state: Hook = None
    save_kvcache: Hook = None
    pe_prepare_save_kvcache: Hook = None
    pe_save_kvcache: Hook = None
    finalize_seq: Hook = None
    process_output: Hook = None
    on_request_finished: Hook = None
    send_processed_prompts: Hook = None
    post_process_model_outputs: Hook = None
    build_extra_metrics_log: Hook = None
    on_error: Hook = None

    def implemented(self) -> tuple[str, ...]:
        """Names of the hooks that somebody implements."""
        return tuple(a.name for a in fields(Hooks) if getattr(self, a.name) is not None)


def hook_names(plugin: object) -> tuple[str, ...]:
    """Names of the members of ``plugin`` that are marked ``@hookimpl``."""
    members = {name: inspect.getattr_static(plugin, name, None) for name in dir(plugin)}
    mark = f"{PROJECT}_impl"
    return tuple(name for name, member in members.items() if hasattr(getattr(member, "__func__", member), mark))


def _check_hooks(plugin: object) -> None:
    """Raise PluginError for a marked member that is no hook, and for a hook that lacks its mark."""
    marked = hook_names(plugin)
    for name in marked:
        if name not in HOOK_NAMES:
            raise PluginError(f"unknown hook {name!r}{nearest(name, HOOK_NAMES)} (known: {', '.join(HOOK_NAMES)})")
    for name in HOOK_NAMES:
        if name not in marked and inspect.isroutine(inspect.getattr_static(plugin, name, None)):
            raise PluginError(f"{name!r} is named like a hook but not marked: add @hookimpl to it")


def bind_hooks(plugins: Iterable[tuple[str, object]], tolerated: Collection[str] = ()) -> Hooks:
    """Bind the hooks of ``(label, plugin)`` pairs, called in the order given.

    tolerated: labels of plugins whose exceptions are logged, at most ten a hook, and otherwise ignored.

    Raises PluginError for a hook that does not exist, lacks its mark, or takes unknown arguments.
    """
    manager = pluggy.PluginManager(PROJECT)
    manager.add_hookspecs(HookSpecs)
    for label, plugin in reversed(list(plugins)):  # pluggy calls the last registered first
        _check_hooks(plugin)
        try:
            manager.register(plugin, name=label)
        except (pluggy.PluginValidationError, ValueError) as error:
            raise PluginError(str(error)) from error
    callers = [getattr(manager.hook, name) for name in HOOK_NAMES]
    return Hooks(**{caller.name: _bind(caller, tolerated) for caller in callers if caller.get_hookimpls()})


def _bind(caller: pluggy.HookCaller, tolerated: Collection[str]) -> Callable[..., Any]:
    implementations = caller.get_hookimpls()[::-1]
    assert caller.spec is not None, f"hook {caller.name!r} has no specification"
    names = caller.spec.argnames
    wrappers = [impl for impl in implementations if impl.hookwrapper or impl.wrapper]
    for impl in wrappers:
        if impl.plugin_name in tolerated:
            raise PluginError(f"{impl.plugin_name!r} wraps {caller.name!r} and cannot be set to warn")
    if wrappers:
        for impl in implementations:
            if impl not in wrappers:
                impl.function = _guarded(impl, caller.name, tolerated)  # type: ignore[misc]  # ours, made here
        run = _through_pluggy(caller, names)
    else:
        calls = [_called(impl, caller.name, names, tolerated) for impl in implementations]
        run = _first(calls) if caller.spec.opts.get("firstresult") else _all(calls)
    if caller.name in MERGED_HOOKS:
        return lambda *args: {name: value for result in run(*args) for name, value in result.items()}
    return run


def _through_pluggy(caller: pluggy.HookCaller, names: Sequence[str]) -> Callable[..., Any]:
    """For wrappers, which only pluggy knows how to nest. All that take part share one view."""

    def run(*args: Any) -> Any:
        shown = {name: VIEWS[name](arg) if name in VIEWS else arg for name, arg in zip(names, args, strict=True)}
        return caller(**shown)

    return run


def _guarded(impl: pluggy.HookImpl, hook: str, tolerated: Collection[str]) -> Callable[..., Any]:
    """An implementation, its result checked. Exceptions carry the plugin's name; if tolerated they are only logged."""
    function, name, check = impl.function, impl.plugin_name, RESULTS.get(hook)
    where = f"in hook {hook!r} of plugin {name!r}"
    failures = itertools.count(1)

    def call(*args: Any) -> Any:
        try:
            result = function(*args)
            if check is not None and result is not None:
                check(result)
            return result
        except Exception as error:
            error.add_note(where)
            if name not in tolerated:
                raise
            number = next(failures)
            if number <= _LOGGED_FAILURES:
                last = "; further ones are not logged" if number == _LOGGED_FAILURES else ""
                logger.warning("plugin %r failed and is set to warn%s", name, last, exc_info=error)
            return None

    return call


def _called(impl: pluggy.HookImpl, hook: str, names: Sequence[str], tolerated: Collection[str]) -> Callable[..., Any]:
    """One implementation, called with all arguments of the hook: it gets its own views of those it takes."""
    call = _guarded(impl, hook, tolerated)
    wanted = [(names.index(name), VIEWS.get(name)) for name in impl.argnames]
    return lambda *args: call(*[view(args[i]) if view else args[i] for i, view in wanted])


def _all(calls: Sequence[Callable[..., Any]]) -> Callable[..., Any]:
    return lambda *args: [result for call in calls if (result := call(*args)) is not None]


def _first(calls: Sequence[Callable[..., Any]]) -> Callable[..., Any]:
    return lambda *args: next((result for call in calls if (result := call(*args)) is not None), None)
