"""MultiHop-RAG's own hit rule (yixuantt/MultiHop-RAG, qa_evaluate.py), kept beside a stricter one."""

import re

_SENTENCE = re.compile(r'The answer to the question is "(.*?)"')


def official_answer(response: str) -> str:
    """The quoted part of the answer sentence that the benchmark's prompt asks for, else the whole response."""
    match = _SENTENCE.search(response)
    return match.group(1) if match else response


def official_overlap(response: str, gold: str) -> bool:
    """Whether answer and gold share any lower-cased word between blanks: lenient, `the` alone is a hit."""
    return not set(official_answer(response).lower().split()).isdisjoint(gold.lower().split())
