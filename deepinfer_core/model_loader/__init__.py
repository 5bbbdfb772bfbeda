"""Loading a checkpoint: its configuration, the index of its tensors, and the weights themselves."""

from deepinfer_core.interfaces.weights import WeightSpec
from deepinfer_core.model_loader.checkpoint import CheckpointIndex, TensorInfo
from deepinfer_core.model_loader.hf_config import HFConfig, load_hf_config
from deepinfer_core.model_loader.tied import warn_if_different
from deepinfer_core.model_loader.weights import load_weights, materialize

__all__ = [
    "CheckpointIndex",
    "HFConfig",
    "TensorInfo",
    "WeightSpec",
    "load_hf_config",
    "load_weights",
    "materialize",
    "warn_if_different",
]
