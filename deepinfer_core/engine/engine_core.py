"""The step loop: admit, plan, launch, account, report."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import TYPE_CHECKING, cast

import attrs

from deepinfer_core import _C
from deepinfer_core.engine.accounting import Accounting
from deepinfer_core.engine.admission import AdmissionGate
from deepinfer_core.engine.bell import Bell
from deepinfer_core.engine.drafting import Drafting
from deepinfer_core.engine.kv_hooks import KvHooks
from deepinfer_core.engine.output_processor import OutputProcessor
from deepinfer_core.engine.prompt_scoring import StepScores, score_rows, take_scores
from deepinfer_core.engine.request import Completion, Ending, Request, Tag
from deepinfer_core.engine.sampling_inputs import SamplingInputs
from deepinfer_core.errors import GenerationError, RequestError
from deepinfer_core.interfaces.cache import PAGE_TOKENS

if TYPE_CHECKING:
    from deepinfer_core.config import EngineConfig
    from deepinfer_core.engine.grammar_admission import GrammarAdmission
    from deepinfer_core.engine.request import Marks
    from deepinfer_core.engine.stats_logger import StatsLogger
    from deepinfer_core.outputs import FinishReason, RequestOutput
    from deepinfer_core.plugins.hooks import Hooks
    from deepinfer_core.tokenizer import Tokenizer
    from deepinfer_core.worker.worker import StepRun, Worker

logger = logging.getLogger(__name__)


@attrs.define(eq=False)
class _Flight:
    """A step between its plan and its account."""

    plan: _C.StepPlan
    run: StepRun
    scores: StepScores | None = None


@attrs.frozen
class _Abort:
    """A wish in the inbox. None: everybody who is there when it is read."""

    request_ids: tuple[str, ...] | None


class EngineCore:
    """Owns the scheduler, the worker and the gate. One thread at a time calls :meth:`step`; :meth:`add` and
    :meth:`abort` may be called from any, and from signal handlers: they only put something into the inbox.

    Every fact has one owner. Tokens, progress, times and why a sequence ended are the scheduler's; what a user gets is
    built from that and then noted as handed over, so a step that is broken off at any point loses nothing and reports
    nothing twice. What it leaves undone the next one sets right first (:meth:`_recover`).
    """

    def __init__(
        self,
        config: EngineConfig,
        worker: Worker,
        hooks: Hooks,
        grammars: GrammarAdmission,
        tokenizer: Tokenizer | None,
        blame: Callable[[BaseException], None],
        bell: Bell,
    ) -> None:
        self.worker = worker
        self.scheduler = _make_scheduler(config, worker)
        self.hooks = hooks
        self.bell = bell
        self.gate = AdmissionGate()
        self.requests: dict[str, Request] = {}
        """Those taken in whose last output is still to come, by id."""
        self.ids: dict[str, Request] = {}
        """Who has which id, from :meth:`add` on; any thread asks and takes with one call."""
        self._grammars = grammars
        self._tokenizer = tokenizer
        self._blame = blame
        self._completions: dict[int, Completion] = {}
        """Those that the scheduler has, by handle."""
        self._inbox: deque[Request | _Abort] = deque()
        self._accounting = Accounting(self.scheduler, self._completions, tokenizer)
        self._outputs = OutputProcessor(self.scheduler, self._accounting, tokenizer)
        self._inputs = SamplingInputs(self.scheduler, self._completions, self._accounting)
        self.drafting = (
            Drafting(worker, self.scheduler, self._inputs, config.speculation, blame) if worker.num_drafts else None
        )
        self.stats: StatsLogger
        """Set by whoever makes the core, before the first step."""
        self._kv_hooks = KvHooks(hooks, worker)
        self._flights: deque[_Flight] = deque()
        self._is_draining = False
        """Whether nothing is planned ahead until nothing is under way."""
        self._news: dict[str, Request] = {}
        """Streamed requests that got tokens."""
        self._outbox: dict[tuple[str, Marks], RequestOutput] = {}
        """Built, and not handed over yet; by what they show, so that none is there twice."""
        self._handed: dict[tuple[str, Marks], RequestOutput] = {}
        """Handed over by the last step."""
        self._unannounced: dict[str, RequestOutput] = {}
        """Ended requests that ``on_request_finished`` and ``on_error`` are still to see."""
        self._to_finalize: dict[str, None] = {}
        """Requests whose first completion has ended since the last step; until the next one, what it held is kept."""
        self._num_prefilled = 0
        self._failure: BaseException | None = None
        """What broke off a step; None if everything is in order."""

    # -- the inbox, for any thread ----------------------------------------------------------------

    def add(self, requests: Iterable[Request]) -> None:
        """Take in requests. Raises RequestError for an id that a live one has, with none of them kept from there on."""
        try:
            for request in requests:
                if self.ids.setdefault(request.request_id, request) is not request:
                    raise RequestError(
                        f"request {request.request_id!r}: a request with this id is still alive; choose another id"
                    )
                self._inbox.append(request)
        finally:
            self.bell.ring()

    def abort(self, request_ids: Iterable[str] | None) -> None:
        """End requests (None: all) with finish reason ``abort``, in any state; unknown and ended ones are ignored."""
        self._inbox.append(_Abort(None if request_ids is None else tuple(request_ids)))
        self.bell.ring()

    @property
    def has_unfinished(self) -> bool:
        """Whether :meth:`step` has anything left to do or to report."""
        return bool(self.requests or self._inbox or self._outbox or self._unannounced or self._flights)

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything now; if not, somebody rings when there is."""
        return bool(
            self._inbox
            or self._flights
            or self._outbox
            or self._unannounced
            or self._failure is not None
            or self.scheduler.has_work()
            or (self.gate and self.gate.has_ready)
        )

    def explain(self, request_id: str) -> str | None:
        """Why a request is not running, or how far it is; None for an unknown one."""
        request = self.ids.get(request_id)
        if request is None:
            return None
        waiting = self.gate.explain(request_id)
        if waiting is not None or not request.completions[-1].handle:
            return waiting or "waiting to be taken in by the next step"
        alive = [each for each in request.completions if each.ending is None]
        texts = [self.scheduler.explain(each.handle) for each in alive]
        if len(texts) == 1:
            return texts[0]
        return "\n".join(f"completion {each.index}: {text}" for each, text in zip(alive, texts, strict=True))

    # -- the step ---------------------------------------------------------------------------------

    def step(self) -> list[RequestOutput]:
        """Compute one step for everyone it has room for, and return what came of it.

        With overlap the next step is planned, and begun on the device, before this one is accounted.

        What it raises comes from a hook or from outside (an interrupt); no output is lost by it, and none comes
        twice. A step that an exception breaks off ends its requests with an error; after an interrupt they go on.
        """
        self._handed = {}  # whoever calls again has got them
        try:
            self.release()
            self._compute()
            self._tell()
            if self.hooks.post_process_model_outputs is not None:
                self.hooks.post_process_model_outputs(list(self._outbox.values()))
            self.stats.log_if_due()
            return self._hand_over()
        except BaseException as failure:
            self._outbox, self._handed = {**self._handed, **self._outbox}, {}
            if self.hooks.on_error is not None:
                self.hooks.on_error(None, failure)
            raise

    def release(self) -> None:
        """Give back what ended sequences held: until now somebody could still read it. A step begins with it."""
        while self._to_finalize:
            request_id = next(iter(self._to_finalize))
            del self._to_finalize[request_id]
            if self.hooks.finalize_seq is not None:
                self.hooks.finalize_seq(request_id)
        self.scheduler.release_deferred()

    def _compute(self) -> None:
        """The part that :meth:`_recover` sets right if it is broken off."""
        if self._failure is not None:
            self._recover(self._failure)
        try:
            self._advance()
        except BaseException as failure:
            self._failure = failure
            raise

    def _advance(self) -> None:
        begin = time.monotonic()
        self._take_in()
        self._admit()
        if not self._flights:
            self._is_draining = False
            self._launch()
            self._draw()
        if self._flights and self._may_plan_ahead:
            self._launch()
        num_tokens, device_seconds = 0, 0.0
        if self._flights:
            run = self._flights[0].run
            num_tokens = self._account()
            device_seconds = run.seconds
            self._draw()
        self._report()
        self._note(num_tokens, time.monotonic() - begin, device_seconds)

    @property
    def _may_plan_ahead(self) -> bool:
        """Drafts need the newest tokens, and hooks that copy state need it to stand still."""
        has_drafter = self.drafting is not None and self.drafting.is_active
        return self.worker.overlaps and not (self._is_draining or has_drafter or self._kv_hooks.is_active)

    # -- admit ------------------------------------------------------------------------------------

    def _take_in(self) -> None:
        while self._inbox:
            wish = self._inbox[0]
            if isinstance(wish, Request):
                self._submit(wish)
            else:
                self._cancel(wish.request_ids)
            self._inbox.popleft()

    def _submit(self, request: Request) -> None:
        """Give a request to the scheduler; a second time changes nothing."""
        self.requests[request.request_id] = request
        completions, params = request.completions, request.params
        is_held = params.structured is not None
        handle = self.scheduler.find(request.request_id) or self.scheduler.submit(
            request.request_id,
            request.tokens,
            max_tokens=request.max_tokens,
            min_tokens=min(params.tokens_before_stop, self.worker.max_model_len),
            stop_token_ids=request.stop_ids,
            num_completions=len(completions),
            held=is_held,
            tags=request.tags,
            sampling=request.spec,
            seeds=request.seeds,
        )
        for completion in completions:
            completion.handle = handle + completion.index
            self._completions[completion.handle] = completion
        if self.hooks.on_request_added is not None and not request.is_announced:
            request.is_announced = True
            try:
                self.hooks.on_request_added(request)
            except Exception as error:
                self._fail(request, _described(error))
                logger.exception("request %r ends with an error: a hook failed", request.request_id)
        if params.structured is not None:
            try:
                self.gate.add(request, self._grammars.begin(params.structured))
            except Exception as error:
                self._fail(request, f"its grammar cannot be compiled: {_described(error)}")

    def _cancel(self, request_ids: tuple[str, ...] | None) -> None:
        for request_id in list(self.requests) if request_ids is None else request_ids:
            request = self.requests.get(request_id)
            for completion in () if request is None else request.completions:
                if completion.handle:
                    self.scheduler.cancel(completion.handle)

    def _fail(self, request: Request, error: str) -> None:
        for completion in request.completions:
            if completion.ending is None:
                self.scheduler.finish(completion.handle, "error", error)

    def _admit(self) -> None:
        """Let go on who need not wait any more."""
        for request, error in self.gate.ready() if self.gate else ():
            guide = request.completions[0].guide
            if error is not None:
                self._fail(request, error)
            elif guide is not None and guide.is_over:  # the empty output is whole, and the only one
                for completion in request.completions:
                    self.scheduler.finish(completion.handle, "stop")
            else:
                for completion in request.completions:
                    self.scheduler.release(completion.handle)
            self.gate.discard(request.request_id)

    # -- plan and launch --------------------------------------------------------------------------

    def _launch(self) -> None:
        """Plan a step and begin it, unless there is nothing to do."""
        drafts = None
        if self.drafting is not None and not self._flights:
            with self.stats.phase("draft"):
                drafts = self.drafting.propose()
        with self.stats.phase("schedule"):
            plan = self.scheduler.schedule(drafts, time.monotonic())
        if plan.lacks_pages:
            self._is_draining = True
        if not plan:
            return
        self._num_prefilled += int(plan.num_tokens[~plan.is_decode].sum())
        try:
            if self.hooks.post_schedule is not None:
                self.hooks.post_schedule(plan)
        except Exception as error:
            self._end_plan(plan, error)
            raise
        with self.stats.phase("launch"):
            try:
                self._flights.append(_Flight(plan, self.worker.launch(plan)))
            except Exception as error:
                self._step_failed(plan, error)

    def _draw(self) -> None:
        """Say by what the oldest step draws its tokens, which depends on all that are accounted."""
        if not self._flights:
            return
        flight = self._flights[0]
        with self.stats.phase("sampling inputs"):
            batch = self._inputs.step(flight.plan)
            if self.drafting is not None:
                batch = self.drafting.verifying(flight.plan, batch)
            flight.scores = score_rows(flight.plan, self._completions)
        with self.stats.phase("draw"):
            flight.run.draw(batch, None if flight.scores is None else flight.scores.rows)

    # -- account ----------------------------------------------------------------------------------

    def _account(self) -> int:
        """Wait for the oldest step and give its tokens to their sequences; returns how many there were.

        A failure ends the requests in it, and no others.
        """
        flight = self._flights[0]
        plan = flight.plan
        try:
            with self.stats.phase("wait"):
                result = flight.run.wait()
        except Exception as error:
            self._step_failed(plan, error)
            return 0
        with self.stats.phase("account"):
            if self._kv_hooks.is_active:
                self._kv_hooks.executed(plan, self._kv_names(plan))
            if flight.scores is not None and result.prompt is not None:
                for request, why in take_scores(flight.scores, result.prompt, self._tokenizer):
                    self._fail(request, why)
            counts, num_tokens = self._accounting.commit(plan, result.sampled, time.monotonic())
            self._flights.popleft()
            if self.drafting is not None:
                self.drafting.settle(plan, counts, flight.run.seconds)
            if plan.any_tags & Tag.STREAMED:
                self._note_streamed(plan)
        if self._kv_hooks.is_active:
            self._call_kv_hooks(plan)
        return num_tokens

    def _note_streamed(self, plan: _C.StepPlan) -> None:
        for handle in plan.handles[plan.samples & ((plan.tags & Tag.STREAMED) != 0)].tolist():
            completion = self._completions.get(handle)
            if completion is not None:
                self._news[completion.request.request_id] = completion.request

    def _step_failed(self, plan: _C.StepPlan, error: Exception) -> None:
        """Its sequences end; those of another one that is under way compute it again."""
        self._blame(error)
        logger.error("a step failed; its %d sequences end with an error", plan.num_seqs, exc_info=error)
        self._end_plan(plan, error)
        self._abandon()
        if self.hooks.on_error is not None:
            self.hooks.on_error(None, error)

    def _end_plan(self, plan: _C.StepPlan, error: BaseException) -> None:
        for handle in plan.handles.tolist():
            self.scheduler.finish(handle, "error", f"the step it was in failed: {_described(error)}")

    def _recover(self, failure: BaseException) -> None:
        """Set right what a step left that was broken off. It may be broken off itself: nothing depends on how often
        it runs.
        """
        if self._flights and isinstance(failure, Exception):
            self._end_plan(self._flights[0].plan, failure)
        self._abandon()
        self._accounting.distrust()
        self._failure = None

    def _abandon(self) -> None:
        """Nothing is under way any more; whoever was in it computes it again."""
        self.worker.queue.drain()
        self._flights.clear()
        self.scheduler.abandon()

    # -- report -----------------------------------------------------------------------------------

    def _report(self) -> None:
        """Build outputs of what is new. Terminal ones come exactly once: a request is forgotten when its last one is
        in the outbox, and until then an end can be looked up as often as one likes.
        """
        with self.stats.phase("report"):
            endings = self.scheduler.finished()
            for handle, reason, detail in endings:
                completion = self._completions.get(handle)
                if completion is None:
                    continue
                request = completion.request
                if completion.ending is None:
                    if completion.index == 0:
                        self._to_finalize[request.request_id] = None
                    completion.ending = Ending(cast("FinishReason", reason), detail)
                if request.stream or request.finished:
                    self._news[request.request_id] = request
            for request in list(self._news.values()):
                self._report_request(request)
            if endings:
                # The tokens of an ended completion are kept until its request needs them no more.
                self.scheduler.acknowledge([handle for handle, _, _ in endings if handle not in self._completions])

    def _report_request(self, request: Request) -> None:
        is_finished, whole = request.finished, None
        if request.stream:
            news = self._outputs.news(request)
            if news is not None:
                output, marks = news
                # One step: whoever is interrupted before it builds the output again, and nobody after it does.
                request.marks, self._outbox[request.request_id, marks] = marks, output
        elif is_finished:
            whole = self._outbox[request.request_id, ()] = self._outputs.whole(request)
        if is_finished and request.request_id in self.requests:
            self._forget(request, whole or self._outputs.whole(request))
        self._news.pop(request.request_id, None)

    def _forget(self, request: Request, whole: RequestOutput) -> None:
        """Nothing more will come of a request, of which this is everything."""
        if self.hooks.on_request_finished is not None or (self.hooks.on_error is not None and whole.error is not None):
            self._unannounced[request.request_id] = whole
        self.gate.discard(request.request_id)
        assert whole.metrics is not None, "a request that was served has times"
        self.stats.finished(whole.metrics, max(len(each.token_ids) for each in whole.outputs))
        for completion in request.completions:
            self._completions.pop(completion.handle, None)
        self.ids.pop(request.request_id, None)
        del self.requests[request.request_id]

    def _tell(self) -> None:
        """Show hooks what is new. One that raises changes nothing about it."""
        outputs = list(self._outbox.values())
        if outputs and self.hooks.process_output is not None:
            self.hooks.process_output(outputs)
        while self._unannounced:
            output = self._unannounced.pop(next(iter(self._unannounced)))
            if self.hooks.on_request_finished is not None:
                self.hooks.on_request_finished(output)
            if output.error is not None and self.hooks.on_error is not None:
                self.hooks.on_error(output.request_id, GenerationError(output.error))

    def _hand_over(self) -> list[RequestOutput]:
        self._handed, self._outbox = self._outbox, {}
        return list(self._handed.values())

    def _note(self, num_tokens: int, seconds: float, device_seconds: float) -> None:
        scheduler = self.scheduler
        prefilled, self._num_prefilled = self._num_prefilled, 0
        self.stats.step(
            prefill_tokens=prefilled,
            generated_tokens=num_tokens,
            running=scheduler.num_running,
            waiting=scheduler.num_waiting,
            used_pages=scheduler.num_pages - 1 - scheduler.num_free_pages,
            total_pages=scheduler.num_pages - 1,
            seconds=seconds,
            device_seconds=device_seconds,
        )

    # -- hooks about keys and values --------------------------------------------------------------

    def _kv_names(self, plan: _C.StepPlan) -> list[str | None]:
        """Per sequence of the plan its request's id if it is the first completion, which stands for the request."""
        found = [self._completions.get(handle) for handle in plan.handles.tolist()]
        return [each.request.request_id if each is not None and each.index == 0 else None for each in found]

    def _call_kv_hooks(self, plan: _C.StepPlan) -> None:
        names = self._kv_names(plan)
        ended = [self._completions.get(handle) for handle, _, _ in self.scheduler.finished()]
        finished = [each.request.request_id for each in ended if each is not None and each.index == 0]
        whole = (plan.samples & ~plan.is_decode).tolist()
        prompts = [
            self._outputs.whole(self.requests[name])
            for name, is_whole in zip(names, whole, strict=True)
            # No output: it failed. More than one token: it was preempted and computed again.
            if is_whole and name is not None and self._num_output(self.requests[name].completions[0]) == 1
        ]
        self._kv_hooks.committed(plan, names, finished, prompts)

    def _num_output(self, completion: Completion) -> int:
        return self.scheduler.num_tokens(completion.handle) - len(completion.request.tokens)

    # -- end --------------------------------------------------------------------------------------

    def flush(self) -> list[RequestOutput]:
        """Finish what is under way and plan nothing more until it is; returns what came of it."""
        outputs: list[RequestOutput] = []
        while self._flights:
            self._is_draining = True
            outputs += self.step()
        return outputs

    def close(self) -> list[RequestOutput]:
        """End everybody with ``abort`` and let go of what they hold; returns their last outputs."""
        with ExitStack() as last:
            last.callback(self.worker.close)
            last.callback(self._grammars.close)
            last.callback(self.stats.close)
            self.abort(None)
            self._abandon()
            self._take_in()
            self._report()
            self.release()
            self._tell()
            return self._hand_over()


def _described(error: BaseException) -> str:
    return ", ".join([f"{type(error).__name__}: {error}", *getattr(error, "__notes__", ())])


def _make_scheduler(config: EngineConfig, worker: Worker) -> _C.Scheduler:
    limits, runner = config.scheduler, worker.runner
    return _C.Scheduler(
        page_size=PAGE_TOKENS,
        num_pages=runner.caches.num_pages,
        num_slots=runner.caches.num_slots,
        max_num_seqs=limits.max_num_seqs,
        max_num_batched_tokens=limits.max_num_batched_tokens,
        max_model_len=worker.max_model_len,
        max_chunk_tokens=limits.max_chunk_tokens,
        token_history=runner.model.token_lookback,
    )
