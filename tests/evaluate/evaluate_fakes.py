"""A deterministic engine without a model, and the config of a small run on it.

Also a program, so that a run can be killed for real: `python evaluate_fakes.py OUT [delay] [key=value ...]`.
"""

import hashlib
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from noisyjax.config import load
from noisyjax.evaluate import EvalConfig, OpenEngine, evaluate
from noisyjax.records import LABELS, Completion, Finish, Request


def unit(*parts: object) -> float:
    digest = hashlib.sha256("\0".join(map(str, parts)).encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:8], "big") / 2**64


class FakeEngine:
    """Answers by hash of (seed, key, sample, messages): right, wrong, cut, silent, thinking. `width` requests are
    gathered before any is answered, and they are answered in another order, as real engines do."""

    name = "fake"

    def __init__(self, width: int = 3, delay: float = 0.0, fail: frozenset[str] = frozenset()):
        self.width, self.delay, self.fail = width, delay, fail
        self.asked: list[tuple[str, int]] = []
        self.closed = False

    def close(self) -> None:
        self.closed = True

    def generate(self, requests: Iterable[Request]) -> Iterator[Completion]:
        waiting: list[tuple[Request, int]] = []
        for request in requests:
            waiting += [(request, request.first_sample + i) for i in range(request.n)]
            if len(waiting) >= self.width:
                yield from self._answer(waiting)
                waiting = []
        yield from self._answer(waiting)

    def _answer(self, waiting: list[tuple[Request, int]]) -> Iterator[Completion]:
        for request, sample in sorted(waiting, key=lambda w: unit("order", w[0].id, w[1])):
            time.sleep(self.delay)
            self.asked.append((request.id, sample))
            yield self._one(request, sample)

    def _one(self, request: Request, sample: int) -> Completion:
        prompt = request.prompt
        if prompt.over_length:
            return Completion(request.id, sample, "", Finish.OVER_LENGTH)
        if prompt.question_id in self.fail:
            return Completion(request.id, sample, "", Finish.ERROR, error="the fake was told to fail")
        content = "".join(m.content for m in prompt.messages)
        luck = unit(request.seed, request.key, sample, content)
        harm = 0.0 if prompt.setting == "ND" else 0.25
        if luck < 0.6 - harm:
            text, finish = f"<think>easy</think>Answer: {prompt.gold}", Finish.STOP
        elif luck < 0.8:
            text, finish = "<think>hm</think>Answer: (B)", Finish.STOP
        elif luck < 0.9:
            text, finish = f"<think>I believe it is {prompt.gold}", Finish.LENGTH
        else:
            text, finish = "", Finish.STOP
        tokens = 1 + int(luck * 50)
        mass = np.full((tokens, 1, len(LABELS)), 1 / len(LABELS), np.float32)
        return Completion(request.id, sample, text, finish, completion_tokens=tokens, prompt_tokens=9, mass=mass)


def fake_config(out: str | Path, *overrides: str) -> EvalConfig:
    base = ["engine={kind: remote, base_url: 'http://nowhere.invalid/v1', model: fake}", f"out={out}"]
    return load(EvalConfig, None, [*base, "bench.questions=5", *overrides])


def fake_run(out: str | Path, *overrides: str, engine: FakeEngine | None = None) -> FakeEngine:
    engine = engine or FakeEngine()
    evaluate(fake_config(out, *overrides), OpenEngine(engine, {"weights": "fake"}))
    return engine


if __name__ == "__main__":
    from noisyjax.cli import guarded

    folder, delay, *words = sys.argv[1:]
    sys.exit(guarded(lambda: fake_run(folder, *words, engine=FakeEngine(delay=float(delay))), debug=False))
