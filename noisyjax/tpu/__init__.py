"""TPUs from the outside: their names, and files for the engines that run a sweep on many of them."""

from noisyjax.tpu.names import GENERATIONS, Generation, Slice, known, parse_accelerator

__all__ = ["GENERATIONS", "Generation", "Slice", "known", "parse_accelerator"]
