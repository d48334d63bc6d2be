"""One reader per dataset: short pure functions from an upstream row to a Question."""

from noisyjax.bench.readers import aime, bbeh, bbq, facts, gpqa, multihop_rag, musique, mwe, sealqa
from noisyjax.bench.readers.base import BadRowError, Context, Item, Negatives, Reader

READERS: dict[str, Reader] = {
    "aime": aime.READER,
    "bbeh": bbeh.READER,
    "bbq": bbq.READER,
    "facts": facts.READER,
    "gpqa": gpqa.READER,
    "multihop_rag": multihop_rag.READER,
    "musique": musique.READER,
    "mwe": mwe.READER,
    "sealqa": sealqa.READER,
}

__all__ = ["READERS", "BadRowError", "Context", "Item", "Negatives", "Reader"]
