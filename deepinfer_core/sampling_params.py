"""Sampling parameters of one request, where people look for them."""

from deepinfer_core.interfaces.sampling_params import LogprobsMode, SamplingParams

__all__ = ["LogprobsMode", "SamplingParams"]
