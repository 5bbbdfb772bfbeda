"""Operator interface of DeepInfer."""
