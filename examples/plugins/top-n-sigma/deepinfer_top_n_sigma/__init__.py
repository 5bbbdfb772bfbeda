"""Top-n-sigma sampling (Tang et al., arXiv:2411.07641)."""
