"""DeepSeek-V4.1 models for DeepInfer."""
