"""
Native core of DeepInfer: scheduler and sampler. Free of torch.
"""
from __future__ import annotations
import collections.abc
import numpy
import numpy.typing
import typing
__all__: list[str] = ['BlockManager', 'CommitReport', 'DEEPINFER_ABI', 'Decoding', 'HostPool', 'Lease', 'Sampler', 'SamplingColumns', 'SamplingSpec', 'Scheduler', 'StepPlan', 'philox4x32', 'sampling_columns', 'sequence_transitions', 'uniform_noise', 'usable_cpus']
class HostPool:
    """
    The threads of an engine: what its ops and its sampler run on.
    
    A context manager, for one thread at a time or several: native code that the thread inside calls runs on the pool; other
    threads' does not. Outside of any it runs on one thread per usable CPU. No result depends on it.
    """
    @staticmethod
    def of(capsule: typing.Any) -> HostPool:
        """
        The pool of a backend: a PyCapsule as kernels/csrc/pool/host_pool.h says. ValueError for any other.
        """
    def __enter__(self) -> HostPool:
        ...
    def __exit__(self, kind: typing.Any = None, error: typing.Any = None, trace: typing.Any = None) -> None:
        ...
    def __init__(self, num_threads: typing.SupportsInt | typing.SupportsIndex | None = None) -> None:
        """
        So many threads, the calling one included; None: one per usable CPU. They start when first needed.
        """
    def close(self) -> None:
        """
        End the threads, at the latest when everybody has left. Nobody may enter any more.
        """
    @property
    def num_threads(self) -> int:
        ...
class Lease:
    """
    One reference to one block; given back by release() or destruction.
    """
    def release(self) -> None:
        """
        Give the reference back now; a second call does nothing.
        """
    @property
    def id(self) -> int:
        """
        The leased block, or 0 once released.
        """
class BlockManager:
    """
    Reference-counted blocks 1 .. num_blocks - 1 (0 is the null block); the longest free is reused first.
    """
    def __init__(self, num_blocks: typing.SupportsInt | typing.SupportsIndex) -> None:
        ...
    def allocate(self) -> Lease:
        """
        Lease a free block. RuntimeError when none is free.
        """
    def audit(self) -> None:
        """
        RuntimeError naming the first broken invariant.
        """
    def pin(self, block_id: typing.SupportsInt | typing.SupportsIndex) -> Lease:
        """
        One more reference to an owned block. ValueError when it is free or no block.
        """
    def ref_count(self, block_id: typing.SupportsInt | typing.SupportsIndex) -> int:
        """
        References to a block.
        """
    @property
    def num_blocks(self) -> int:
        """
        Blocks, the null block included.
        """
    @property
    def num_free(self) -> int:
        """
        Blocks free now.
        """
class StepPlan:
    """
    What one step computes: S sequences with N rows (tokens) in all, decode rows first. Immutable; the arrays
    are read-only views that keep the plan alive. False when there is nothing to do.
    """
    def __bool__(self) -> bool:
        ...
    def columns(self) -> dict[str, numpy.ndarray]:
        """
        The rows as the columns that inputs are made of, by name: positions, token_ids [N] int64; seq_of_row, slots, starts,
        ends [N] int32, what the row's sequence has; block_tables [S, pages] int32, short ones continued with the null page;
        context_ids [N, 1 + token_history] int64, a row's token and those before it, -1 before the start; sampled_rows [R],
        pending_rows and pending_sources [P] int64. Nothing in them is shared with the plan.
        """
    @property
    def any_tags(self) -> int:
        """
        Bits that the tags of some sequence have.
        """
    @property
    def block_table(self) -> numpy.typing.NDArray[numpy.int32]:
        """
        int32 page ids covering positions 0 .. starts + num_tokens - 1 of each sequence.
        """
    @property
    def block_table_offsets(self) -> numpy.typing.NDArray[numpy.int32]:
        """
        [S + 1] int32 bounds of each sequence's part of block_table.
        """
    @property
    def handles(self) -> numpy.typing.NDArray[numpy.int64]:
        """
        [S] int64, one per sequence.
        """
    @property
    def history(self) -> numpy.typing.NDArray[numpy.int32]:
        """
        [S, token_history] int32 tokens just before each chunk, -1 before position 0.
        """
    @property
    def is_decode(self) -> numpy.typing.NDArray[numpy.bool]:
        """
        [S] bool, true for decode rows.
        """
    @property
    def lacks_pages(self) -> bool:
        """
        Whether somebody would have to be preempted, which waits until no plan is outstanding.
        """
    @property
    def new_pages(self) -> numpy.typing.NDArray[numpy.int32]:
        """
        [S] int32 pages that this step added at the end of the sequence's table.
        """
    @property
    def num_drafts(self) -> numpy.typing.NDArray[numpy.int32]:
        """
        [S] int32 how many of the last rows are drafts; 0 for prefill rows.
        """
    @property
    def num_pending(self) -> int:
        """
        Rows of tokens still to be drawn.
        """
    @property
    def num_rows(self) -> int:
        """
        N.
        """
    @property
    def num_sampled_rows(self) -> int:
        """
        R, rows that yield a token: of each sampling sequence its last known row and those of its drafts.
        """
    @property
    def num_samples(self) -> int:
        """
        Sequences that yield a token.
        """
    @property
    def num_seqs(self) -> int:
        """
        S.
        """
    @property
    def num_tokens(self) -> numpy.typing.NDArray[numpy.int32]:
        """
        [S] int32 rows, at least 1.
        """
    @property
    def page_copies(self) -> numpy.typing.NDArray[numpy.int32]:
        """
        [C, 2] int32 pages (from, to), to be copied before any row is computed.
        """
    @property
    def positions(self) -> numpy.typing.NDArray[numpy.int32]:
        """
        [N] int32 position of each row.
        """
    @property
    def preempted(self) -> list[int]:
        """
        Handles that lost their pages and slot to this step, in order.
        """
    @property
    def query_offsets(self) -> numpy.typing.NDArray[numpy.int32]:
        """
        [S + 1] int32 bounds of each sequence's rows.
        """
    @property
    def samples(self) -> numpy.typing.NDArray[numpy.bool]:
        """
        [S] bool, whether the sequence yields tokens: of its last 1 + num_drafts rows.
        """
    @property
    def skipped(self) -> list[tuple[int, str]]:
        """
        (handle, reason) of each running request without rows, and of the first waiting request that was not
        admitted (everyone behind it waits for it), and of the completions before that one which wait for a prompt
        that another one of their request computes. Reasons: token_budget, no_free_page, running_limit,
        no_free_slot, after_preemption, shared_prompt, in_flight.
        """
    @property
    def slot_copies(self) -> numpy.typing.NDArray[numpy.int32]:
        """
        [C, 2] int32 state slots (from, to), to be copied before any row is computed.
        """
    @property
    def slots(self) -> numpy.typing.NDArray[numpy.int32]:
        """
        [S] int32 state slots, each at least 1.
        """
    @property
    def starts(self) -> numpy.typing.NDArray[numpy.int32]:
        """
        [S] int32 position of the first row; 0 means that the slot's content is stale.
        """
    @property
    def step_id(self) -> int:
        """
        Number of the step.
        """
    @property
    def tags(self) -> numpy.typing.NDArray[numpy.int32]:
        """
        [S] int32 what submit() was given for each sequence.
        """
    @property
    def token_ids(self) -> numpy.typing.NDArray[numpy.int32]:
        """
        [N] int32 token of each row; -1 where it is still to be drawn.
        """
    @property
    def token_sources(self) -> numpy.typing.NDArray[numpy.int32]:
        """
        [N] int32 for a token that is still to be drawn, which of the sampled rows of the plan before draws it; -1 for the others.
        """
class CommitReport:
    """
    The E output tokens that a step appended, in plan order.
    """
    def __len__(self) -> int:
        ...
    @property
    def handles(self) -> numpy.typing.NDArray[numpy.int64]:
        """
        [E] int64.
        """
    @property
    def output_index(self) -> numpy.typing.NDArray[numpy.int32]:
        """
        [E] int32, 0 for the first output token of its request.
        """
    @property
    def tokens(self) -> numpy.typing.NDArray[numpy.int32]:
        """
        [E] int32.
        """
class Decoding:
    """
    S sequences that will decode next.
    """
    @property
    def handles(self) -> numpy.typing.NDArray[numpy.int64]:
        """
        [S] int64, rising.
        """
    @property
    def newest(self) -> numpy.typing.NDArray[numpy.int32]:
        """
        [S] int32, the last of them.
        """
    @property
    def num_tokens(self) -> numpy.typing.NDArray[numpy.int32]:
        """
        [S] int32 tokens known.
        """
    @property
    def room(self) -> numpy.typing.NDArray[numpy.int32]:
        """
        [S] int32, drafts that can be of use: the last token needs none.
        """
    @property
    def slots(self) -> numpy.typing.NDArray[numpy.int32]:
        """
        [S] int32 state slots.
        """
    @property
    def tags(self) -> numpy.typing.NDArray[numpy.int32]:
        """
        [S] int32, as in StepPlan.
        """
    @property
    def temperature(self) -> numpy.typing.NDArray[numpy.float64]:
        """
        [S] float64.
        """
class SamplingSpec:
    """
    How a request's tokens are drawn: numbers and ids, the same in every step.
    """
    def __init__(self, *, temperature: typing.SupportsFloat | typing.SupportsIndex, top_k: typing.SupportsInt | typing.SupportsIndex, top_p: typing.SupportsFloat | typing.SupportsIndex, min_p: typing.SupportsFloat | typing.SupportsIndex, num_logprobs: typing.SupportsInt | typing.SupportsIndex, processed_logprobs: bool, penalties: tuple[typing.SupportsFloat | typing.SupportsIndex, typing.SupportsFloat | typing.SupportsIndex, typing.SupportsFloat | typing.SupportsIndex], bias_ids: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex], bias: collections.abc.Sequence[typing.SupportsFloat | typing.SupportsIndex], allowed: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex], banned: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex], early_banned: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex], min_tokens: typing.SupportsInt | typing.SupportsIndex, forced: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex]) -> None:
        """
        penalties: (repetition, frequency, presence). early_banned: in place of banned for the first min_tokens
        outputs. forced: what the output begins with.
        """
class SamplingColumns:
    """
    What R rows are drawn by.
    """
    def __len__(self) -> int:
        ...
    def columns(self) -> dict:
        """
        The columns by name, read-only views; see deepinfer_core.interfaces.sampler.SamplingBatch.
        """
class Scheduler:
    """
    Continuous batching over paged KV. One step: release_deferred(), schedule(), run the plan, commit(), finished(),
    acknowledge(). Handles are the order of arrival. Every call holds the GIL for some microseconds, so threads may call
    it and take turns.
    """
    @staticmethod
    def accepted_counts(plan: StepPlan, sampled: typing.Annotated[numpy.typing.ArrayLike, numpy.int32]) -> numpy.typing.NDArray[numpy.int32]:
        """
        How many tokens each sampling sequence gets, [num_samples] int32: its drafts that the rows before them have drawn,
        up to the first that they have not, and one more. sampled: [R] int32.
        """
    def __init__(self, *, page_size: typing.SupportsInt | typing.SupportsIndex = 128, num_pages: typing.SupportsInt | typing.SupportsIndex, num_slots: typing.SupportsInt | typing.SupportsIndex, max_num_seqs: typing.SupportsInt | typing.SupportsIndex, max_num_batched_tokens: typing.SupportsInt | typing.SupportsIndex, max_model_len: typing.SupportsInt | typing.SupportsIndex, max_chunk_tokens: typing.SupportsInt | typing.SupportsIndex, token_history: typing.SupportsInt | typing.SupportsIndex = 0) -> None:
        """
        page_size: tokens per page. num_pages, num_slots: with the null one, so at least 2. max_num_seqs:
        sequences running at once (also bounded by usable slots and max_num_batched_tokens).
        max_num_batched_tokens: rows per step. max_model_len: tokens per sequence. max_chunk_tokens: prefill
        rows per sequence and step. token_history: width of StepPlan.history. ValueError names a bad one.
        """
    def abandon(self) -> None:
        """
        Take back every outstanding plan; no device may run one any more. Their live sequences wait and compute again
        what they had.
        """
    def acknowledge(self, handles: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex]) -> None:
        """
        The ends of these sequences have been taken care of: finished() names them no more, and the next
        release_deferred() forgets them. RuntimeError for a live one.
        """
    def audit(self) -> None:
        """
        RuntimeError naming the first broken invariant; for tests and debugging, linear in everything held.
        """
    def cancel(self, handle: typing.SupportsInt | typing.SupportsIndex) -> bool:
        """
        End a sequence with 'abort', in any state; the result of a step under way is dropped. False if it had
        ended already. ValueError for a handle that was never issued.
        """
    def check(self, request_id: str, tokens: numpy.typing.NDArray[numpy.int32], *, max_tokens: typing.SupportsInt | typing.SupportsIndex, min_tokens: typing.SupportsInt | typing.SupportsIndex = 0) -> None:
        """
        ValueError where submit() would raise one for these arguments, whatever is alive; nothing changes.
        """
    def commit(self, plan: StepPlan, tokens: numpy.typing.NDArray[numpy.int32], counts: numpy.typing.NDArray[numpy.int32] | None = None, *, verdicts: collections.abc.Sequence[tuple[typing.SupportsInt | typing.SupportsIndex, typing.SupportsInt | typing.SupportsIndex, str, str]] = [], logprobs: tuple[typing.Annotated[numpy.typing.ArrayLike, numpy.float32], typing.Annotated[numpy.typing.ArrayLike, numpy.int32], typing.Annotated[numpy.typing.ArrayLike, numpy.int64], typing.Annotated[numpy.typing.ArrayLike, numpy.int32], typing.Annotated[numpy.typing.ArrayLike, numpy.float32]] | None = None, now: typing.SupportsFloat | typing.SupportsIndex = 0.0) -> CommitReport:
        """
        Apply the outcome of the oldest outstanding plan.
        
        tokens: [T] int32, those of each sampling sequence, in order; -1 ends that sequence with 'error'. counts:
        [num_samples] int32, how many tokens are each sequence's: its accepted drafts and one more; None: one each.
        Tokens after one that ends its sequence are dropped. verdicts: (index among the sampling sequences, tokens that
        count, 'stop' or 'error', detail) of sequences that are found to end with their last token that counts.
        logprobs: (logprobs, ranks, top_offsets, top_ids, top_logprobs) of the plan's R sampled rows. now: seconds.
        
        After a failed forward, finish(handle, 'error') its sequences and commit -1s. RuntimeError for a plan that is not
        the oldest outstanding one, ValueError for wrong tokens; then nothing has changed.
        """
    def decoding(self) -> Decoding:
        """
        The sequences that will decode next, with nothing in flight.
        """
    def draft_batch(self, handles: typing.Annotated[numpy.typing.ArrayLike, numpy.int64], counts: typing.Annotated[numpy.typing.ArrayLike, numpy.int32], tokens: typing.Annotated[numpy.typing.ArrayLike, numpy.int32]) -> SamplingColumns:
        """
        What the token after each sequence's newest one and so many drafts is drawn by: one row per sequence. A draft of
        -1 is none, and counts as nothing.
        """
    def explain(self, handle: typing.SupportsInt | typing.SupportsIndex) -> str:
        """
        Why a sequence does not run, or how far it is, in a sentence with numbers.
        """
    def find(self, request_id: str) -> int:
        """
        The first handle of a live request; 0 if there is none of this id.
        """
    def finish(self, handle: typing.SupportsInt | typing.SupportsIndex, reason: str, detail: str = '') -> bool:
        """
        End a sequence for a reason found outside: 'stop' (its output is whole) or 'error'. detail: what finished()
        tells beside the reason. Otherwise like cancel(). RuntimeError for 'stop' on one that never ran.
        """
    def finished(self) -> list[tuple[int, str, str]]:
        """
        (handle, 'stop' | 'length' | 'abort' | 'error', detail) of the sequences that have ended and are not acknowledged,
        in order. The only source of terminal events.
        """
    def has_unfinished(self) -> bool:
        """
        Whether any sequence is still alive.
        """
    def has_work(self) -> bool:
        """
        Whether any is that is not held.
        """
    def logprobs(self, handle: typing.SupportsInt | typing.SupportsIndex) -> tuple[numpy.typing.NDArray[numpy.float32], numpy.typing.NDArray[numpy.int32], numpy.typing.NDArray[numpy.int64], numpy.typing.NDArray[numpy.int32], numpy.typing.NDArray[numpy.float32], float]:
        """
        Those of the output tokens: (logprobs float32, ranks int32, top_offsets int64, top_ids int32, top_logprobs float32,
        their sum), copies; empty where the sequence keeps none.
        """
    def metrics(self, handle: typing.SupportsInt | typing.SupportsIndex) -> tuple[float, float, float, int, int, list[int], list[int]]:
        """
        (first scheduled, first token, last token: seconds, 0 for what has not happened; preemptions; verifications, and
        drafts verified and accepted by depth).
        """
    def num_computed(self, handle: typing.SupportsInt | typing.SupportsIndex) -> int:
        """
        Tokens whose KV is in the cache.
        """
    def num_tokens(self, handle: typing.SupportsInt | typing.SupportsIndex) -> int:
        """
        Tokens, prompt and output.
        """
    def num_useful(self, handles: typing.Annotated[numpy.typing.ArrayLike, numpy.int64], counts: typing.Annotated[numpy.typing.ArrayLike, numpy.int32], tokens: typing.Annotated[numpy.typing.ArrayLike, numpy.int32]) -> numpy.typing.NDArray[numpy.int32]:
        """
        How many of each sequence's drafts can be of use, [S] int32: none after a -1, after one that would end it, or
        past its length.
        """
    def output_tokens(self, handle: typing.SupportsInt | typing.SupportsIndex) -> numpy.typing.NDArray[numpy.int32]:
        """
        The output tokens: [num_output] int32, a view that stays as it is.
        """
    def release(self, handle: typing.SupportsInt | typing.SupportsIndex) -> bool:
        """
        What a held sequence waited for is there. False if it is not held.
        """
    def release_deferred(self) -> None:
        """
        Free pages and slots of ended sequences that no step under way uses, and forget those acknowledged: their
        handles are unknown from here on. Call before schedule().
        """
    def request_id(self, handle: typing.SupportsInt | typing.SupportsIndex) -> str:
        """
        The id given to submit().
        """
    def sampling_batch(self, plan: StepPlan) -> SamplingColumns:
        """
        What the R sampled rows of the oldest outstanding plan are drawn by, rows after drafts as if these were accepted.
        """
    def schedule(self, drafts: tuple[typing.Annotated[numpy.typing.ArrayLike, numpy.int64], typing.Annotated[numpy.typing.ArrayLike, numpy.int32], typing.Annotated[numpy.typing.ArrayLike, numpy.int32]] | None = None, now: typing.SupportsFloat | typing.SupportsIndex = 0.0) -> StepPlan:
        """
        Plan the next step. At most two plans may be outstanding, RuntimeError otherwise.
        
        drafts: (handles [S] int64, counts [S] int32, tokens [S, B] int32), tokens proposed to follow the newest one of
        each sequence. They become rows as far as the plan without them leaves rows and pages and the sequence's length
        allows; those of a sequence that does not decode in this step are left out. ValueError, with nothing changed,
        for a negative token. now: seconds, for metrics().
        """
    def state(self, handle: typing.SupportsInt | typing.SupportsIndex) -> str:
        """
        A value of deepinfer_core.sequence.SequenceState.
        """
    def submit(self, request_id: str, tokens: numpy.typing.NDArray[numpy.int32], *, max_tokens: typing.SupportsInt | typing.SupportsIndex, min_tokens: typing.SupportsInt | typing.SupportsIndex = 0, stop_token_ids: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex] = [], num_completions: typing.SupportsInt | typing.SupportsIndex = 1, held: bool = False, tags: typing.SupportsInt | typing.SupportsIndex = 0, sampling: SamplingSpec | None = None, seeds: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex] = []) -> int:
        """
        Queue a request and return its handle; handles ascend.
        
        tokens: [prompt length] int32. num_completions: how many outputs it gets, each a sequence of its own; their
        handles follow the returned one, and each ends by itself. They share the pages of the prompt as far as they can.
        A sequence ends with 'stop' at a token of stop_token_ids (kept as its last output) that is not among the
        first min_tokens outputs, or with 'length' at max_tokens outputs, max_model_len tokens or the size of the cache.
        held: wait for release(); others go on. tags: what StepPlan.tags shows. sampling, seeds (one per completion):
        what sampling_batch() is made of.
        
        ValueError, with nothing retained: id still live, empty prompt, prompt too long for max_model_len or the
        cache, negative token id, max_tokens < 1, min_tokens < 0, num_completions < 1, seeds of another number.
        """
    def take_finished(self) -> list[tuple[int, str]]:
        """
        (handle, reason) of finished(), acknowledged at once: for drivers to which nothing can happen in between.
        """
    def tokens(self, handle: typing.SupportsInt | typing.SupportsIndex) -> numpy.typing.NDArray[numpy.int32]:
        """
        All tokens, prompt and output: [num_tokens] int32, a view that stays as it is.
        """
    @property
    def num_free_pages(self) -> int:
        """
        Pages free now.
        """
    @property
    def num_free_slots(self) -> int:
        """
        Slots free now.
        """
    @property
    def num_outstanding(self) -> int:
        """
        Plans that are not committed.
        """
    @property
    def num_pages(self) -> int:
        """
        Pages, the null page included.
        """
    @property
    def num_preemptions(self) -> int:
        """
        Preemptions so far.
        """
    @property
    def num_running(self) -> int:
        """
        Sequences owning pages and a slot.
        """
    @property
    def num_slots(self) -> int:
        """
        Slots, the null slot included.
        """
    @property
    def num_waiting(self) -> int:
        """
        Sequences waiting, preempted and held ones included.
        """
class Sampler:
    """
    Draws one token per row of logits; see csrc/sampler.h for the exact rules.
    """
    def __init__(self, *, num_threads: typing.SupportsInt | typing.SupportsIndex | None = None, isa: str = 'best') -> None:
        """
        num_threads: of a pool of its own, for calls where no HostPool is entered; None: one per usable CPU, which all
        such samplers share. isa: best, plain, avx2 or avx512. Neither argument changes a result.
        """
    def propose(self, logits: numpy.typing.NDArray[numpy.float32], *, max_candidates: typing.SupportsInt | typing.SupportsIndex, temperature: typing.Annotated[numpy.typing.ArrayLike, numpy.float64], top_k: typing.Annotated[numpy.typing.ArrayLike, numpy.int32], top_p: typing.Annotated[numpy.typing.ArrayLike, numpy.float64], min_p: typing.Annotated[numpy.typing.ArrayLike, numpy.float64], seed: typing.Annotated[numpy.typing.ArrayLike, numpy.uint64], position: typing.Annotated[numpy.typing.ArrayLike, numpy.int64], forced: typing.Annotated[numpy.typing.ArrayLike, numpy.int32] | None = None, bias: tuple[typing.Annotated[numpy.typing.ArrayLike, numpy.int64], typing.Annotated[numpy.typing.ArrayLike, numpy.int32], typing.Annotated[numpy.typing.ArrayLike, numpy.float32]] | None = None, seen: tuple[typing.Annotated[numpy.typing.ArrayLike, numpy.int64], typing.Annotated[numpy.typing.ArrayLike, numpy.int32], typing.Annotated[numpy.typing.ArrayLike, numpy.int32]] | None = None, penalties: typing.Annotated[numpy.typing.ArrayLike, numpy.float64] | None = None, allowed: tuple[typing.Annotated[numpy.typing.ArrayLike, numpy.int64], typing.Annotated[numpy.typing.ArrayLike, numpy.int32]] | None = None, banned: tuple[typing.Annotated[numpy.typing.ArrayLike, numpy.int64], typing.Annotated[numpy.typing.ArrayLike, numpy.int32]] | None = None, masks: tuple[typing.Annotated[numpy.typing.ArrayLike, numpy.int32], typing.Annotated[numpy.typing.ArrayLike, numpy.int32]] | None = None) -> tuple:
        """
        Draw drafts for sample() to accept or replace, with noise of their own, without the GIL.
        
        Arguments as for sample(). max_candidates: draw from so many of the most likely tokens at most; 0: no limit.
        Returns (tokens int32 [R], offsets int64 [R + 1], ids int32, probabilities float64): what sample() takes as proposed.
        A token is -1, and its list empty, where nothing can be drawn.
        """
    def sample(self, logits: numpy.typing.NDArray[numpy.float32], *, temperature: typing.Annotated[numpy.typing.ArrayLike, numpy.float64], top_k: typing.Annotated[numpy.typing.ArrayLike, numpy.int32], top_p: typing.Annotated[numpy.typing.ArrayLike, numpy.float64], min_p: typing.Annotated[numpy.typing.ArrayLike, numpy.float64], seed: typing.Annotated[numpy.typing.ArrayLike, numpy.uint64], position: typing.Annotated[numpy.typing.ArrayLike, numpy.int64], num_logprobs: typing.Annotated[numpy.typing.ArrayLike, numpy.int32], processed_logprobs: typing.Annotated[numpy.typing.ArrayLike, numpy.bool] | None = None, forced: typing.Annotated[numpy.typing.ArrayLike, numpy.int32] | None = None, bias: tuple[typing.Annotated[numpy.typing.ArrayLike, numpy.int64], typing.Annotated[numpy.typing.ArrayLike, numpy.int32], typing.Annotated[numpy.typing.ArrayLike, numpy.float32]] | None = None, seen: tuple[typing.Annotated[numpy.typing.ArrayLike, numpy.int64], typing.Annotated[numpy.typing.ArrayLike, numpy.int32], typing.Annotated[numpy.typing.ArrayLike, numpy.int32]] | None = None, penalties: typing.Annotated[numpy.typing.ArrayLike, numpy.float64] | None = None, allowed: tuple[typing.Annotated[numpy.typing.ArrayLike, numpy.int64], typing.Annotated[numpy.typing.ArrayLike, numpy.int32]] | None = None, banned: tuple[typing.Annotated[numpy.typing.ArrayLike, numpy.int64], typing.Annotated[numpy.typing.ArrayLike, numpy.int32]] | None = None, masks: tuple[typing.Annotated[numpy.typing.ArrayLike, numpy.int32], typing.Annotated[numpy.typing.ArrayLike, numpy.int32]] | None = None, proposed: tuple[typing.Annotated[numpy.typing.ArrayLike, numpy.int32], typing.Annotated[numpy.typing.ArrayLike, numpy.int64], typing.Annotated[numpy.typing.ArrayLike, numpy.int32], typing.Annotated[numpy.typing.ArrayLike, numpy.float64]] | None = None) -> tuple:
        """
        Sample one token per row, without the GIL.
        
        logits: float32 [R, V], C-contiguous. The other arguments have one entry per row: temperature, top_p, min_p
        float64, top_k and num_logprobs int32 (-1: no logprobs, 0: the chosen token's, N: also the N most likely),
        seed uint64, position int64, processed_logprobs bool, forced int32 (the token to report as drawn, -1: draw),
        penalties float64 [R, 3] (repetition, frequency, presence).
        
        bias, seen, allowed and banned are tuples (offsets int64 [R + 1], ids int32, ...): row i's ids, all distinct, are
        ids[offsets[i]:offsets[i + 1]]. bias has also float32 values, seen also int32 counts; penalties and seen go
        together. Without allowed ids a row may draw any. See LogitEdits for what they do.
        
        masks: (which int32 [R], words int32 [M, ceil(V / 32)]): bit t % 32 of words[which[i], t // 32] is set for a token t that
        row i may draw; -1 for a row without.
        
        proposed is a tuple (tokens int32 [R], -1 for none; offsets int64 [R + 1]; ids int32, rising; probabilities float64),
        the tokens to accept or replace and the distributions they were drawn from, as propose() returns them.
        
        Returns (tokens int32 [R], logprobs float32 [R], ranks int32 [R], top_offsets int64 [R + 1], top_ids int32,
        top_logprobs float32). A token is -1 where nothing can be drawn: a NaN or +inf logit, or nothing left but -inf.
        Raises ValueError for an argument out of range.
        """
    def score(self, logits: numpy.typing.NDArray[numpy.float32], *, token_ids: typing.Annotated[numpy.typing.ArrayLike, numpy.int32], num_logprobs: typing.Annotated[numpy.typing.ArrayLike, numpy.int32]) -> tuple:
        """
        How likely given tokens are, without the GIL: what sample() would return had it drawn them.
        
        logits: float32 [R, V], C-contiguous. token_ids: int32 [R]. num_logprobs: int32 [R], each at least 0.
        Returns and raises as sample(); a token is -1 for a row with a NaN or +inf logit, or nothing but -inf.
        """
def philox4x32(counter: typing.Annotated[collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex], "FixedSize(4)"], key: typing.Annotated[collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex], "FixedSize(2)"]) -> typing.Annotated[list[int], "FixedSize(4)"]:
    """
    Philox4x32-10: four uint32 from a counter of four and a key of two.
    """
def sampling_columns(specs: collections.abc.Sequence[SamplingSpec], seeds: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex], prompts: collections.abc.Sequence[typing.Annotated[numpy.typing.ArrayLike, numpy.int32]], outputs: collections.abc.Sequence[typing.Annotated[numpy.typing.ArrayLike, numpy.int32]]) -> SamplingColumns:
    """
    What the next token of each of R requests is drawn by, made from its tokens so far, int32 each.
    """
def sequence_transitions() -> list[tuple[str, str]]:
    """
    The edges (from, to) that the state of a sequence may take.
    """
def uniform_noise(seed: typing.SupportsInt | typing.SupportsIndex, position: typing.SupportsInt | typing.SupportsIndex, token_ids: typing.Annotated[numpy.typing.ArrayLike, numpy.uint32]) -> numpy.typing.NDArray[numpy.float64]:
    """
    The uniforms in (0, 1), float64 [N], behind the Gumbel noise of these token ids at this position.
    """
def usable_cpus() -> int:
    """
    CPUs this process may use.
    """
DEEPINFER_ABI: str = 'deepinfer-1'
