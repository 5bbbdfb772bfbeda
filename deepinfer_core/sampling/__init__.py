"""The core's default sampler, what it is told of a request, and what other samplers need."""

from deepinfer_core.sampling.batch import Drawn, batch_of, sampling_spec
from deepinfer_core.sampling.edited import edited_logits, narrowed
from deepinfer_core.sampling.sampler import DefaultSampler

__all__ = ["DefaultSampler", "Drawn", "batch_of", "edited_logits", "narrowed", "sampling_spec"]
