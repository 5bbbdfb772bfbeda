"""Loading a checkpoint: its configuration, the index of its tensors, and the weights themselves."""

from deepinfer_core.model_loader.checkpoint import CheckpointIndex, TensorInfo
from deepinfer_core.model_loader.hf_config import HFConfig, load_hf_config
from deepinfer_core.model_loader.tied import head_is_tied
from deepinfer_core.model_loader.weights import E2M1_PAIRS, E4M3, E8M0, WeightSpec, load_weights, materialize

__all__ = [
    "E2M1_PAIRS",
    "E4M3",
    "E8M0",
    "CheckpointIndex",
    "HFConfig",
    "TensorInfo",
    "WeightSpec",
    "head_is_tied",
    "load_hf_config",
    "load_weights",
    "materialize",
]
