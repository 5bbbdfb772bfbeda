"""The core's default sampler, what it is told of a request, and what other samplers need."""

from deepinfer_core.sampling.edited import edited_logits
from deepinfer_core.sampling.sampler import DefaultSampler
from deepinfer_core.sampling.state import SamplingState

__all__ = ["DefaultSampler", "SamplingState", "edited_logits"]
