"""The DeepSeek-V4.1 config: published keys in, validated frozen parts out."""

from deepinfer_core.model_loader.rope_table import YarnConfig

from .model import ARCHITECTURES, DeepseekV41Config
from .rope import RopeConfig
from .sections import (
    AttentionConfig,
    DsparkConfig,
    EngramConfig,
    HyperConnectionConfig,
    IndexerConfig,
    MoeConfig,
    QuantizationConfig,
    ScheduleConfig,
    VisionConfig,
)

__all__ = [
    "ARCHITECTURES",
    "AttentionConfig",
    "DeepseekV41Config",
    "DsparkConfig",
    "EngramConfig",
    "HyperConnectionConfig",
    "IndexerConfig",
    "MoeConfig",
    "QuantizationConfig",
    "RopeConfig",
    "ScheduleConfig",
    "VisionConfig",
    "YarnConfig",
]
