"""The core's default sampler."""

from deepinfer_core.sampling.sampler import DefaultSampler

__all__ = ["DefaultSampler"]
