"""The core's default sampler, and what it is told of a request."""

from deepinfer_core.sampling.sampler import DefaultSampler
from deepinfer_core.sampling.state import SamplingState

__all__ = ["DefaultSampler", "SamplingState"]
