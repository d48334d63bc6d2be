"""noisyjax: measure, train and explain reasoning models in noisy contexts, in JAX."""

__version__ = "0.1.0"
