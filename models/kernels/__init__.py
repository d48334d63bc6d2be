"""Attention and experts by kernels for the TPU, from those that JAX brings along; on the CPU they are interpreted."""
