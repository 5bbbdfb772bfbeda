"""Torch modules that models and drafters are made of: weights under their published names, run by any kernel family.

They compose ops and hold no state between steps. What a module needs to know comes from settings
(:mod:`.settings`), which a model's own config fulfils as it is.
"""

from deepinfer_kernels.modules.attention import LatentAttention
from deepinfer_kernels.modules.block import Block, Sublayer
from deepinfer_kernels.modules.hyper_connection import HyperConnection, first_mix
from deepinfer_kernels.modules.moe import Experts, Gate, MixtureOfExperts
from deepinfer_kernels.modules.parameters import (
    Linear,
    Norm,
    checkpoint_tensors,
    dense_storage,
    expert_storage,
    parameter,
)
from deepinfer_kernels.modules.rope import inverse_frequencies
from deepinfer_kernels.modules.settings import (
    AttentionSettings,
    BlockSettings,
    HyperConnectionSettings,
    MoeSettings,
    RopeSettings,
    RopeTable,
    Run,
)

__all__ = [
    "AttentionSettings",
    "Block",
    "BlockSettings",
    "Experts",
    "Gate",
    "HyperConnection",
    "HyperConnectionSettings",
    "LatentAttention",
    "Linear",
    "MixtureOfExperts",
    "MoeSettings",
    "Norm",
    "RopeSettings",
    "RopeTable",
    "Run",
    "Sublayer",
    "checkpoint_tensors",
    "dense_storage",
    "expert_storage",
    "first_mix",
    "inverse_frequencies",
    "parameter",
]
