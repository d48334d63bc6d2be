"""The tiny world: made-up questions under noise, and models small enough to learn them on a laptop in minutes."""

from noisyjax.world.facts import KINDS, Fact, Puzzle, puzzle, split_of
from noisyjax.world.files import held_out, write_eval, write_world
from noisyjax.world.model import STARTS, model_config, start_model, write_model
from noisyjax.world.records import MIXES, mix_records, record
from noisyjax.world.tokenizer import make_tokenizer

__all__ = [
    "KINDS",
    "MIXES",
    "STARTS",
    "Fact",
    "Puzzle",
    "held_out",
    "make_tokenizer",
    "mix_records",
    "model_config",
    "puzzle",
    "record",
    "split_of",
    "start_model",
    "write_eval",
    "write_model",
    "write_world",
]
