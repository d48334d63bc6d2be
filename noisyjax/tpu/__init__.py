"""TPUs from the outside: names, what a run would be on one, and files for engines that run a sweep on many of them."""

from noisyjax.tpu.names import GENERATIONS, Generation, Slice, known, parse_accelerator

__all__ = ["GENERATIONS", "Generation", "Slice", "known", "parse_accelerator"]
