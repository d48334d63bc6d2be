"""BM25 over a small pool of documents: which passages look like the answer to a question and are not?"""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence

from noisyjax.records import Document

WORD = re.compile(r"\w+")


class Bm25:
    """Okapi BM25 with the usual k1 = 1.5, b = 0.75 (Robertson and Zaragoza 2009) and idf that is never negative."""

    def __init__(self, documents: Sequence[Document], k1: float = 1.5, b: float = 0.75) -> None:
        self.documents = documents
        counts = [Counter(_words(f"{d.title} {d.text}")) for d in documents]
        lengths = [sum(c.values()) for c in counts]
        mean = sum(lengths) / max(len(lengths), 1) or 1.0
        self._weights: dict[str, list[tuple[int, float]]] = defaultdict(list)
        for i, count in enumerate(counts):
            for word, times in count.items():
                weight = times * (k1 + 1) / (times + k1 * (1 - b + b * lengths[i] / mean))
                self._weights[word].append((i, weight))

    def top(self, query: str, n: int, keep: Callable[[Document], bool] = lambda document: True) -> list[Document]:
        """The n best documents that `keep` allows, best first; equal scores in the order of ids."""
        scores: dict[int, float] = defaultdict(float)
        for word in sorted(set(_words(query))):
            postings = self._weights.get(word, ())
            idf = math.log(1 + (len(self.documents) - len(postings) + 0.5) / (len(postings) + 0.5))
            for i, weight in postings:
                scores[i] += idf * weight
        ranked = sorted(scores, key=lambda i: (-scores[i], self.documents[i].id))
        return [self.documents[i] for i in ranked if keep(self.documents[i])][:n]


def _words(text: str) -> list[str]:
    return WORD.findall(text.casefold())
