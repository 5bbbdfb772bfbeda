"""The suites can fail: each is tried on components with one fault, and its test for that fault notices."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest
import torch
from torch import Tensor, nn

from deepinfer_core import testing
from deepinfer_core.interfaces.cache import CacheLayout, StateBuffer
from deepinfer_core.interfaces.eplb_policy import ExpertTopology
from deepinfer_core.interfaces.grammar import Vocabulary
from deepinfer_core.interfaces.kv_connector import KvCaches, KvResult, KvTransfer
from deepinfer_core.interfaces.sampler import Proposals, SamplerOutput, SamplingBatch
from deepinfer_core.interfaces.scheduler_policy import SchedulerDecision, SchedulerView
from deepinfer_core.interfaces.speculator import DraftBatch, Proposal
from deepinfer_core.interfaces.structured_output import StructuredOutput
from deepinfer_core.plugins import PluginManager
from deepinfer_core.sampling import DefaultSampler, edited_logits
from deepinfer_core.testing.checkpoints import write_toy_checkpoint
from deepinfer_core.testing.grammar import CHOICES, make_vocabulary
from deepinfer_core.testing.kv_connector import make_caches
from deepinfer_core.testing.scheduling import FirstComeFirstServed
from deepinfer_core.testing.sequences import Sequences
from deepinfer_core.testing.toy import TOY_CONFIG, ToyArchitecture, ToyModel

Noticed = (AssertionError, pytest.fail.Exception)


def notices(test: Callable[..., object], *arguments: object) -> None:
    """The test fails, and not by an error of its own."""
    with pytest.raises(Noticed):
        test(*arguments)


# -- sampler --------------------------------------------------------------------------------------


class FaultySampler:
    """The default sampler, with the batch or the output of each call changed."""

    def __init__(self, batch: Any = lambda batch: batch, output: Any = lambda output, logits: output) -> None:
        self._batch, self._output, self._default = batch, output, DefaultSampler()

    def sample(self, logits: Tensor, batch: SamplingBatch) -> SamplerOutput:
        result: SamplerOutput = self._output(self._default.sample(logits, self._batch(batch)), logits)
        return result


class FaultyDrafter(FaultySampler):
    """The same with proposals, which are changed too."""

    def __init__(self, proposed: Any = lambda proposals, logits: proposals, **faults: Any) -> None:
        super().__init__(**faults)
        self._proposed = proposed

    def propose(self, logits: Tensor, batch: SamplingBatch, max_candidates: int) -> Proposals:
        result: Proposals = self._proposed(self._default.propose(logits, self._batch(batch), max_candidates), logits)
        return result


class PenaltiesFirst(FaultySampler):
    """Adds the bias after the penalties, in the rows where nothing else would show."""

    def sample(self, logits: Tensor, batch: SamplingBatch) -> SamplerOutput:
        assert batch.penalties is not None
        penalized = edited_logits(logits.numpy(), without("bias", "banned")(batch))
        rows = batch.processed_logprobs[:, None]
        edited = torch.from_numpy(np.where(rows, penalized, logits.numpy()))
        return self._default.sample(edited, attrs.evolve(batch, penalties=np.where(rows, [1, 0, 0], batch.penalties)))


def without(*columns: str) -> Any:
    return lambda batch: attrs.evolve(batch, **dict.fromkeys(columns))


def counting_seeds() -> Any:
    calls = itertools.count()
    return lambda batch: attrs.evolve(batch, seed=batch.seed + np.uint64(next(calls)))


def seeds_by_place(batch: SamplingBatch) -> SamplingBatch:
    return attrs.evolve(batch, seed=batch.seed + np.arange(len(batch), dtype=np.uint64))


def without_filters(batch: SamplingBatch) -> SamplingBatch:
    none = np.zeros(len(batch))
    return attrs.evolve(batch, top_k=none.astype(np.int32), top_p=none + 1, min_p=none)


def one_seed(batch: SamplingBatch) -> SamplingBatch:
    return attrs.evolve(batch, seed=np.ones(len(batch), np.uint64))


def hottest(batch: SamplingBatch) -> SamplingBatch:
    """Every row as hot as the hottest one."""
    return attrs.evolve(batch, temperature=np.where(batch.temperature > 0, batch.temperature.max(initial=0), 0))


def written_to(batch: SamplingBatch) -> SamplingBatch:
    batch.seed[:] += np.uint64(1)
    return batch


def last_of_equals(output: SamplerOutput, logits: Tensor) -> SamplerOutput:
    last = [int((row == row.max()).nonzero()[-1]) for row in logits]
    return attrs.evolve(output, token_ids=np.array(last, np.int32))


def written(output: SamplerOutput, logits: Tensor) -> SamplerOutput:
    logits.mul_(2)
    return output


def never_failing(output: SamplerOutput, logits: Tensor) -> SamplerOutput:
    return attrs.evolve(output, token_ids=np.maximum(output.token_ids, 0))


SAMPLERS = {
    "test_a_call_leaves_no_trace": FaultySampler(batch=counting_seeds()),
    "test_a_row_does_not_notice_its_neighbours_or_its_place": FaultySampler(batch=seeds_by_place),
    "test_what_a_request_excludes_is_never_drawn": FaultySampler(batch=without("banned")),
    "test_seeds_and_positions_make_the_randomness": FaultySampler(batch=one_seed),
    "test_greedy_is_argmax_and_ties_go_to_the_lowest_id": FaultySampler(output=last_of_equals),
    "test_logits_are_left_unchanged_and_may_be_strided": FaultySampler(output=written),
    "test_the_batch_is_left_unchanged": FaultySampler(batch=written_to),
    "test_edits_and_logprobs_agree_with_the_default_sampler": FaultySampler(
        output=lambda output, logits: attrs.evolve(output, logprobs=output.logprobs * 2)
    ),
}


@pytest.mark.parametrize("test", SAMPLERS)
def test_samplers(test: str) -> None:
    notices(getattr(testing.SamplerSuite(), test), SAMPLERS[test])


@pytest.mark.parametrize("fault", [without("allowed"), without("masks"), without_filters])
def test_samplers_that_draw_what_a_request_excludes(fault: Any) -> None:
    notices(testing.SamplerSuite().test_what_a_request_excludes_is_never_drawn, FaultySampler(batch=fault))


@pytest.mark.parametrize(
    "fault",
    [*[FaultySampler(without(*each)) for each in (("seen", "penalties"), ("bias",), ("forced",))], PenaltiesFirst()],
)
def test_samplers_that_edit_otherwise(fault: FaultySampler) -> None:
    notices(testing.SamplerSuite().test_edits_and_logprobs_agree_with_the_default_sampler, fault)


def test_samplers_that_look_at_neighbours_or_draw_from_nothing() -> None:
    suite = testing.SamplerSuite()
    notices(suite.test_a_row_does_not_notice_its_neighbours_or_its_place, FaultySampler(batch=hottest))
    notices(suite.test_a_row_with_nothing_to_draw_fails_alone, FaultySampler(output=never_failing), float("nan"))
    notices(suite.test_a_row_with_nothing_to_draw_fails_alone, FaultySampler(batch=without("masks")), float("nan"))
    wrong_dtype = FaultySampler(output=lambda output, _: attrs.evolve(output, token_ids=output.token_ids.astype("i8")))
    notices(suite.test_outputs_have_one_entry_per_row, wrong_dtype, 5)


def unsure(proposals: Proposals, logits: Tensor) -> Proposals:
    return attrs.evolve(proposals, probabilities=proposals.probabilities * 0.5)


def shifted(proposals: Proposals, logits: Tensor) -> Proposals:
    return attrs.evolve(proposals, tokens=(proposals.tokens + 1) % logits.shape[1])


OWN = "test_proposals_and_their_verification_are_their_rows_alone"
STATED = "test_proposals_say_what_they_were_drawn_from"
VERIFIED = "test_drafts_from_the_models_own_logits_are_accepted"


@pytest.mark.parametrize(
    ("test", "fault"),
    [
        (OWN, FaultyDrafter(batch=seeds_by_place)),
        (OWN, FaultyDrafter(batch=counting_seeds())),
        (STATED, FaultyDrafter(unsure)),
        (STATED, FaultyDrafter(shifted)),
        (STATED, FaultyDrafter(batch=without("masks"))),
        (VERIFIED, FaultyDrafter(batch=without("proposed"))),
        (VERIFIED, FaultyDrafter(batch=without("masks"))),
    ],
)
def test_samplers_that_draw_proposals(test: str, fault: FaultyDrafter) -> None:
    notices(getattr(testing.SamplerSuite(), test), fault, *[5] * (test == STATED))


@pytest.mark.parametrize("test", [OWN, STATED, VERIFIED])
def test_samplers_that_draw_none_are_not_asked_for_any(test: str) -> None:
    with pytest.raises(pytest.skip.Exception):
        getattr(testing.SamplerSuite(), test)(FaultySampler(), *[5] * (test == STATED))


# -- logits processor -----------------------------------------------------------------------------


class FaultyProcessor:
    """``edit(logits, rows)`` for every call."""

    def __init__(self, edit: Any, check: Any = lambda parameters: None) -> None:
        self._edit, self._check = edit, check

    def check_parameters(self, parameters: Any) -> None:
        self._check(parameters)

    def process(self, logits: Tensor, rows: Any) -> Tensor:
        result: Tensor = self._edit(logits, rows)
        return result


def remembering() -> Any:
    seen = itertools.count()
    return lambda logits, rows: logits + next(seen)


def test_logits_processors() -> None:
    suite = testing.LogitsProcessorSuite()
    coupled = FaultyProcessor(lambda logits, rows: logits - logits.mean())
    notices(suite.test_a_row_depends_on_itself_only, coupled)
    notices(suite.test_earlier_calls_leave_no_trace, FaultyProcessor(remembering()))
    notices(suite.test_logits_come_back_in_shape_and_finite, FaultyProcessor(lambda logits, rows: logits / 0), 2)
    notices(suite.test_logits_come_back_in_shape_and_finite, FaultyProcessor(lambda logits, rows: logits[:1]), 2)
    unfit = FaultyProcessor(lambda logits, rows: logits.double())
    notices(suite.test_in_front_of_a_sampler_it_touches_the_rows_that_name_it_only, unfit)
    careless = FaultyProcessor(lambda logits, rows: logits, check=lambda parameters: parameters["key"])
    with pytest.raises(TypeError):
        suite.test_parameters_are_accepted_or_refused_with_a_value_error(careless)


# -- policies -------------------------------------------------------------------------------------


class FaultyPolicy(FirstComeFirstServed):
    """First come, first served, with its decisions changed."""

    def __init__(self, change: Callable[[SchedulerDecision, SchedulerView], SchedulerDecision]) -> None:
        self._change = change

    def decide(self, view: SchedulerView) -> SchedulerDecision:
        return self._change(super().decide(view), view)


class Forgetful(FirstComeFirstServed):
    """Decides otherwise from call to call, whatever it is shown: instances do not share what they count."""

    calls = itertools.count()

    def decide(self, view: SchedulerView) -> SchedulerDecision:
        decision = super().decide(view)
        return attrs.evolve(decision, eviction=decision.eviction[:: 1 if next(self.calls) % 3 else -1])


def test_scheduler_policies() -> None:
    suite = testing.SchedulerPolicySuite()
    illegal = FaultyPolicy(lambda decision, view: attrs.evolve(decision, admission=(*decision.admission, 99_999)))
    notices(suite.test_decisions_are_legal, illegal, 5, 3)
    dropping = FaultyPolicy(lambda decision, view: attrs.evolve(decision, prefill=decision.prefill[1:]))
    notices(suite.test_decisions_are_legal, dropping, 0, 64)
    notices(suite.test_the_same_views_give_the_same_decisions, Forgetful())
    starving = FaultyPolicy(
        lambda decision, view: attrs.evolve(decision, max_prefill_tokens=0 if view.running else None)
    )
    with pytest.raises(Exception, match=r"max_prefill_tokens must be at least 1|two steps without a row"):
        suite.test_every_request_comes_to_its_end(starving, 20, 0)


class InOrder:
    """Experts in order, whatever the counts."""

    def place(self, counts: Any, topology: ExpertTopology, current: Any) -> Any:
        layers, experts = counts.shape
        line = np.arange(topology.num_slots, dtype=np.int32) * experts // topology.num_slots
        return np.tile(line.reshape(1, topology.num_ranks, -1), (layers, 1, 1))


class Busiest(InOrder):
    """The busiest expert everywhere."""

    def place(self, counts: Any, topology: ExpertTopology, current: Any) -> Any:
        found = super().place(counts, topology, current)
        found[:] = counts.argmax(1)[:, None, None]
        return found


class Shuffled(InOrder):
    """Ranks in an order that nobody can repeat."""

    calls = itertools.count()

    def place(self, counts: Any, topology: ExpertTopology, current: Any) -> Any:
        return np.roll(super().place(counts, topology, current), next(self.calls), axis=1)


class Lopsided(InOrder):
    """The four busiest of eight experts on one rank, copies of the others on three."""

    def place(self, counts: Any, topology: ExpertTopology, current: Any) -> Any:
        order = np.argsort(-counts, axis=1, kind="stable").astype(np.int32)
        return order[:, [[0, 1, 2, 3], [4, 5, 6, 7], [4, 5, 6, 7], [4, 5, 6, 7]]]


def test_eplb_policies() -> None:
    suite, topology = testing.EplbPolicySuite(), ExpertTopology(4, 4)
    notices(suite.test_placements_are_legal, Busiest(), topology)
    notices(suite.test_placements_are_legal, InOrder(), topology)  # an expert twice on a rank
    notices(suite.test_the_same_counts_give_the_same_placement, Shuffled(), topology)
    notices(suite.test_a_skewed_load_is_spread, Lopsided(), topology)


# -- kv connector ---------------------------------------------------------------------------------


class Store:
    """A connector that works; faults are made by subclasses."""

    def __init__(self) -> None:
        self.pages: dict[bytes, Any] = {}
        self.states: dict[bytes, Any] = {}
        self.results: list[KvResult] = []

    def attach(self, caches: KvCaches) -> None:
        self.caches = caches

    def find(self, prefixes: Sequence[tuple[bytes, ...]]) -> list[int]:
        return [max((i + 1 for i, key in enumerate(keys) if key in self.states), default=0) for keys in prefixes]

    def keep(self, tensor: Tensor) -> Tensor:
        return tensor.clone()

    def save(self, transfers: Sequence[KvTransfer]) -> None:
        for transfer in transfers:
            for key, page in zip(transfer.keys[transfer.first :], transfer.pages, strict=True):
                self.pages[key] = {name: self.keep(t[page]) for name, t in self.caches.pages.items()}
            self.states[transfer.keys[-1]] = {n: self.keep(t[transfer.slot]) for n, t in self.caches.slots.items()}
            self.results.append(KvResult(transfer.transfer_id))

    def load(self, transfers: Sequence[KvTransfer]) -> None:
        for transfer in transfers:
            if transfer.keys[-1] not in self.states:
                self.results.append(KvResult(transfer.transfer_id, "gone"))
                continue
            self.fill(transfer)
            self.results.append(KvResult(transfer.transfer_id))

    def fill(self, transfer: KvTransfer) -> None:
        for key, page in zip(transfer.keys[transfer.first :], transfer.pages, strict=True):
            for name, value in self.pages[key].items():
                self.caches.pages[name][page] = value
        for name, value in self.states[transfer.keys[-1]].items():
            self.caches.slots[name][transfer.slot] = value

    def finished(self) -> list[KvResult]:
        results, self.results = self.results, []
        return results

    def close(self) -> None: ...


class ByReference(Store):
    def keep(self, tensor: Tensor) -> Tensor:
        return tensor


class Stateless(Store):
    def fill(self, transfer: KvTransfer) -> None:
        before = {name: t.clone() for name, t in self.caches.slots.items()}
        super().fill(transfer)
        for name, tensor in before.items():
            self.caches.slots[name].copy_(tensor)


class Spilling(Store):
    def fill(self, transfer: KvTransfer) -> None:
        super().fill(transfer)
        self.caches.pages["compressed"][0] = 7


class Repeating(Store):
    def finished(self) -> list[KvResult]:
        return self.results


class Boasting(Store):
    def find(self, prefixes: Sequence[tuple[bytes, ...]]) -> list[int]:
        return [len(keys) for keys in prefixes]


class Silent(Store):
    def load(self, transfers: Sequence[KvTransfer]) -> None:
        known = [transfer for transfer in transfers if transfer.keys[-1] in self.states]
        self.results += [KvResult(t.transfer_id) for t in transfers if t not in known]
        super().load(known)


KV_FAULTS = {
    ByReference: "test_what_was_saved_is_a_copy",
    Stateless: "test_a_saved_prefix_is_found_and_comes_back_elsewhere",
    Spilling: "test_a_saved_prefix_is_found_and_comes_back_elsewhere",
    Repeating: "test_many_transfers_are_each_reported_once",
    Boasting: "test_an_empty_store_finds_nothing",
    Silent: "test_a_load_of_what_is_not_there_fails_alone",
}


@pytest.mark.parametrize("fault", [None, *KV_FAULTS])
def test_kv_connectors(fault: type[Store] | None) -> None:
    suite, connector, caches = testing.KvConnectorSuite(), (fault or Store)(), make_caches(0)
    connector.attach(caches)
    arguments = (connector,) if fault is Boasting else (connector, caches)
    if fault is None:
        suite.test_a_saved_prefix_is_found_and_comes_back_elsewhere(*arguments)
    else:
        notices(getattr(suite, KV_FAULTS[fault]), *arguments)


# -- grammar --------------------------------------------------------------------------------------


class Choosing:
    """Outputs that are one of some texts; engine, grammar and matcher in one. Faults are made by subclasses."""

    kinds = ("choice",)

    def compile(self, spec: Any, vocabulary: Vocabulary) -> Choosing:
        self.texts, self.vocabulary = [text.encode() for text in spec.choice], vocabulary
        return self

    def matcher(self) -> Choosing:
        made = type(self)()
        made.texts, made.vocabulary, made.states = self.texts, self.vocabulary, [b""]
        return made

    @property
    def is_complete(self) -> bool:
        return self.states[-1] in self.texts

    def leads_on(self, added: bytes) -> bool:
        return bool(added) and any(text.startswith(self.states[-1] + added) for text in self.texts)

    def accept(self, token_id: int) -> bool:
        added = self.vocabulary.token_bytes[token_id]
        if not self.leads_on(added):
            return False
        self.states.append(self.states[-1] + added)
        return True

    def rollback(self, count: int) -> None:
        del self.states[len(self.states) - count :]

    def fill_mask(self, row: Any) -> None:
        for token, added in enumerate(self.vocabulary.token_bytes):
            if self.leads_on(added):
                row.view(np.uint32)[token // 32] |= np.uint32(1 << token % 32)


class Shared(Choosing):
    def matcher(self) -> Choosing:
        self.states = getattr(self, "states", [b""])
        return self


class Careless(Choosing):
    """Says that an output is complete where it is not."""

    is_complete = True


class Reluctant(Choosing):
    """Takes back one token at most."""

    def rollback(self, count: int) -> None:
        super().rollback(min(count, 1))


class Open(Choosing):
    """Masks nothing."""

    def fill_mask(self, row: Any) -> None:
        row[:] = -1


GRAMMAR_FAULTS = {
    Shared: "test_matchers_do_not_share_their_state",
    Careless: "test_complete_outputs_are_valid",
    Reluctant: "test_rolling_back_is_exact",
    Open: "test_a_token_is_accepted_exactly_if_its_bit_is_set",
}


@pytest.mark.parametrize("fault", [Choosing, *GRAMMAR_FAULTS])
def test_grammars(fault: type[Choosing]) -> None:
    suite, vocabulary = testing.GrammarSuite(), make_vocabulary()
    grammars = {"choice": fault().compile(StructuredOutput(choice=CHOICES), vocabulary)}
    for test in [GRAMMAR_FAULTS[fault]] if fault in GRAMMAR_FAULTS else GRAMMAR_FAULTS.values():
        seed = (0,) if test == "test_complete_outputs_are_valid" else ()
        if fault is Choosing:
            getattr(suite, test)(grammars, vocabulary, *seed)
        else:
            notices(getattr(suite, test), grammars, vocabulary, *seed)


# -- speculator -----------------------------------------------------------------------------------


class Counting(nn.Module):
    """Drafts the numbers after the newest token. Faults are made by subclasses."""

    num_drafts = 3
    feature_layers = ()

    @property
    def module(self) -> nn.Module:
        return self

    def cache_layout(self) -> CacheLayout:
        return CacheLayout((), (StateBuffer("counting.seen", (1,), "float32"),))

    def weight_specs(self) -> list[Any]:
        return []

    def build_metadata(self, rows: Any) -> dict[str, Any]:
        return {}

    def observe(self, batch: Any, features: Any, caches: Any, tap: Any = None) -> None: ...

    def first(self, batch: DraftBatch, caches: Any) -> Tensor:
        return batch.token_ids + 1

    def propose(self, batch: DraftBatch, caches: Any, pick: Any, tap: Any = None) -> Proposal:
        drafts = (self.first(batch, caches)[:, None] + torch.arange(self.num_drafts)) % 61
        return Proposal(drafts, None, torch.zeros(drafts.shape))


class Crowding(Counting):
    """What it drafts depends on how many sequences there are."""

    def first(self, batch: DraftBatch, caches: Any) -> Tensor:
        return batch.token_ids + len(batch)


class Marking(Counting):
    """Writes as it proposes."""

    def first(self, batch: DraftBatch, caches: Any) -> Tensor:
        caches["counting.seen"] += 1
        return super().first(batch, caches)


class Summing(Counting):
    """Adds up all tokens that it is shown, drafts that are rejected and other sequences' among them."""

    def observe(self, batch: Any, features: Any, caches: Any, tap: Any = None) -> None:
        caches["counting.seen"].index_add_(0, batch.slots.long(), 1 + batch.token_ids.float()[:, None])

    def first(self, batch: DraftBatch, caches: Any) -> Tensor:
        return batch.token_ids + caches["counting.seen"][batch.slots.long(), 0].long()


class Waiting(Counting):
    """Asks the device what it was shown."""

    def observe(self, batch: Any, features: Any, caches: Any, tap: Any = None) -> None:
        batch.positions.nonzero()


class Counter:
    """The speculator of a drafter."""

    def __init__(self, drafter: type[Counting]) -> None:
        self._drafter = drafter

    def num_drafts(self, config: Any) -> int:
        return self._drafter.num_drafts

    def build(self, config: Any, model: Any, context: Any) -> Counting:
        return self._drafter()


SPECULATOR_FAULTS = {
    Crowding: ("test_sequences_are_independent",),
    Marking: ("test_proposing_leaves_no_trace",),
    Summing: ("test_rejected_drafts_leave_no_trace", "test_what_others_left_in_slots_is_not_read"),
}


@pytest.mark.parametrize("fault", [Counting, *SPECULATOR_FAULTS])
def test_speculators(fault: type[Counting], tmp_path: Path) -> None:
    from deepinfer_core.testing.model import load_model
    from deepinfer_core.testing.speculator import Drafting

    suite, backend = testing.SpeculatorSuite(), PluginManager(["cpu"], environ={}).component("backend")
    checkpoint = write_toy_checkpoint(tmp_path / "checkpoint")
    model, config, _ = load_model(ToyArchitecture(), checkpoint, backend, 3)
    drafting, prompts = Drafting(model, fault(), config, backend), [[5, 9, 11, 2] * 3, [7, 1] * 20, [3, 30, 4] * 2]
    for test in itertools.chain(*SPECULATOR_FAULTS.values()):
        if fault is Counting:
            getattr(suite, test)(drafting, prompts)
        elif test in SPECULATOR_FAULTS[fault]:
            notices(getattr(suite, test), drafting, prompts)


def test_drafters_that_wait_for_the_device(tmp_path: Path) -> None:
    suite, backend = testing.SpeculatorSuite(), PluginManager(["cpu"], environ={}).component("backend")
    arguments = ToyArchitecture(), write_toy_checkpoint(tmp_path / "checkpoint"), backend, [[5, 9], [7] * 20, [3]]
    suite.test_observing_does_not_wait_for_the_device(Counter(Counting), *arguments)
    notices(suite.test_observing_does_not_wait_for_the_device, Counter(Waiting), *arguments)


# -- kernels --------------------------------------------------------------------------------------


def test_kernels() -> None:
    backend = PluginManager(["cpu"], environ={}).component("backend")
    oracle, suite = backend.kernels, testing.MoeSuite()

    def coupled(x: Tensor, *rest: Any) -> Any:
        return oracle.swiglu(x - x.float().mean().to(x.dtype) * 0.001, *rest)

    def writing(a: Tensor, b: Tensor, limit: float) -> Tensor:
        result: Tensor = oracle.swiglu(a, b, limit)
        a.zero_()
        return result

    calls = itertools.count()
    notices(
        suite.test_results_are_those_of_the_cpu_backend,
        {"swiglu": lambda a, b, limit: oracle.swiglu(a, b, limit * 2)}, oracle, backend,
    )  # fmt: skip
    notices(suite.test_rows_are_independent, {"swiglu": coupled}, oracle, backend)
    notices(suite.test_arguments_are_left_unchanged, {"swiglu": writing}, oracle, backend)
    drifting = {"swiglu": lambda a, b, limit: oracle.swiglu(a, b, limit) + next(calls)}
    notices(suite.test_a_call_can_be_repeated, drifting, oracle, backend)
    notices(suite.test_something_is_replaced, {})


# -- model ----------------------------------------------------------------------------------------


class FaultyModel(ToyModel):
    """The toy model with a forward of its own."""

    fault = ""

    def build_metadata(self, rows: Any) -> Any:
        if self.fault == "chunks":  # takes the chunk's start for the sequence's
            rows = attrs.evolve(rows, positions=np.maximum(rows.positions - rows.starts % 2, 0))
        return super().build_metadata(rows)

    def forward(self, batch: Any, caches: Any, tap: Any = None, features: Any = None) -> Tensor:
        left = caches["toy.states"][batch.slots.long(), 1].to(torch.bfloat16)
        hidden = super().forward(batch, caches, tap, features)
        if self.fault == "stale":  # goes on from what the slot held
            return torch.where(batch.positions[:, None] == 0, hidden + left, hidden)
        if self.fault == "neighbours":
            return hidden + hidden.mean(0)
        if self.fault == "waits" and bool((batch.positions > 9).any()):
            return hidden + 0
        return hidden


class FaultyArchitecture(ToyArchitecture):
    def __init__(self, fault: str, ring: int | None = None) -> None:
        self._fault, self._ring = fault, ring

    def build(self, config: Any, context: Any) -> ToyModel:
        with torch.device("meta"):
            model = FaultyModel(config, context.rollback)
        model.fault = self._fault
        model.ring = self._ring or model.ring
        return model


@pytest.mark.parametrize(
    ("fault", "ring", "test", "extra"),
    [
        ("chunks", None, "test_chunks_and_batches_change_nothing", (7,)),
        ("neighbours", None, "test_chunks_and_batches_change_nothing", (None,)),
        ("stale", None, "test_what_others_left_in_pages_and_slots_is_not_read", ()),
        ("", 2, "test_positions_may_be_computed_again", ()),
    ],
)
def test_models(fault: str, ring: int | None, test: str, extra: tuple[Any, ...], tmp_path: Path) -> None:
    from deepinfer_core.testing.model import ROLLBACK, load_model

    suite, backend = testing.ModelSuite(), PluginManager(["cpu"], environ={}).component("backend")
    architecture = FaultyArchitecture(fault, ring)
    checkpoint = write_toy_checkpoint(tmp_path / "checkpoint")
    model, config, _ = load_model(architecture, checkpoint, backend, ROLLBACK)
    prompts = suite.token_ids(config)
    longest = max(map(len, prompts)) + ROLLBACK
    alone = [Sequences(model, 1, longest, backend.device).run_all([prompt])[0] for prompt in prompts]
    ways = Sequences(model, len(prompts), longest, backend.device), prompts, alone
    notices(getattr(suite, test), ways, *extra)


def test_models_that_wait_for_the_device(tmp_path: Path) -> None:
    suite, backend = testing.ModelSuite(), PluginManager(["cpu"], environ={}).component("backend")
    checkpoint = write_toy_checkpoint(tmp_path / "checkpoint")
    suite.test_a_forward_does_not_wait_for_the_device(ToyArchitecture(), checkpoint, backend)
    notices(suite.test_a_forward_does_not_wait_for_the_device, FaultyArchitecture("waits"), checkpoint, backend)


def test_architectures() -> None:
    class Lenient(ToyArchitecture):
        def translate_config(self, hf_config: Any) -> Any:
            return super().translate_config({**hf_config, "vocab_size": int(hf_config["vocab_size"])})

    suite = testing.ModelSuite()
    notices(suite.test_wrong_configs_are_refused_with_a_config_error, Lenient(), dict(TOY_CONFIG))
