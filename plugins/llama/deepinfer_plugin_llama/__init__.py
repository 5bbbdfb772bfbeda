"""Llama, Mistral and Qwen2 models for DeepInfer."""
