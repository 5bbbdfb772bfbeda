"""Drafting tokens ahead of the model and verifying them: lengths, costs, acceptance. Torch-free."""
