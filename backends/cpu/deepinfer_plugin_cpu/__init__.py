"""CPU backend of DeepInfer."""
