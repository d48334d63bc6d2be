"""Training runs made by hand: metrics and samples through training's own log, evaluations by a fake engine."""

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
from evaluate_fakes import FakeEngine, fake_run, unit

from noisyjax.config import RESOLVED_NAME
from noisyjax.records import LABEL_ID, LABELS, Completion, Finish
from noisyjax.train.watch.log import LogConfig, MetricLog
from noisyjax.world.files import write_eval


class Learner(FakeEngine):
    """Right with the probability `skill`, the less the more noise; looks at noise with a share of `looks`."""

    def __init__(self, skill: float, looks: float = 0.4):
        super().__init__()
        self.skill, self.looks = skill, looks

    def _one(self, request, sample):
        prompt = request.prompt
        harm = 1.0 if prompt.setting == "ND" else 0.6
        right = unit("skill", prompt.question_id, prompt.setting) < harm * self.skill
        mass = np.zeros((3, 1, len(LABELS)), np.float32)
        noise = 0.0 if prompt.setting == "ND" else self.looks
        mass[..., LABEL_ID["distractor"]] = noise
        mass[..., LABEL_ID["evidence"]] = 0.9 - noise
        mass[..., LABEL_ID["question"]] = 0.1
        text = prompt.gold if right else "nobody"
        done = Completion(request.id, sample, text, Finish.STOP, completion_tokens=9, prompt_tokens=50, mass=mass)
        cut = unit("cut", prompt.question_id, prompt.setting) < 0.05
        return replace(done, text="", finish=Finish.LENGTH) if cut else done


def world(folder: Path, n: int = 40) -> Path:
    """Evaluation data of the tiny world, whose questions have types."""
    return write_eval(folder, 0, n)


def evaluated(folder: Path, step: int, data: Path, engine: FakeEngine) -> None:
    words = [f"name='step {step}'", f"bench.data={data}", "bench.datasets=[tiny_world]", "bench.questions=null"]
    fake_run(folder / "eval" / f"step-{step:06d}", *words, engine=engine)


def trained(folder: Path, name: str, metrics: Mapping[int, Mapping[str, float | None]], planned: int = 0) -> MetricLog:
    """A training run with these lines of metrics by step; its log, to write samples into."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "training.json").write_text('{"kind": "grpo", "config": "abc"}\n')
    config = {"name": name, "out": str(folder), "model": "starts/sparse", "steps": planned or max(metrics, default=0)}
    (folder / RESOLVED_NAME).write_text(json.dumps(config))
    log = MetricLog(folder, LogConfig(tensorboard=False), 0, config)
    for step, line in metrics.items():
        log.write(step, line)
    return log


def curves(name: str, steps: int) -> dict[int, dict[str, float | None]]:
    """Metrics as GRPO writes them, some of them undefined at some steps."""
    metrics: dict[int, dict[str, float | None]] = {0: {"eval/ND": 0.5, "eval/HN": 0.3}}
    for step in range(1, steps + 1):
        share = step / steps
        draw = [unit(name, step, i) - 0.5 for i in range(9)]
        metrics[step] = {
            "reward/total": 0.4 + 0.5 * share + 0.2 * draw[0],
            "reward/outcome": 0.3 + 0.4 * share + 0.2 * draw[1],
            "reward/rationale": None if step % 7 == 0 else 0.2 + 0.6 * share + 0.2 * draw[2],
            "reward/overlong": -0.1 * (1 - share),
            "reference/exact": 0.1 + 0.7 * share + 0.1 * draw[3],
            "distraction/lexical": None if 30 <= step < 40 else 0.5 - 0.4 * share + 0.1 * draw[4],
            "distraction/lexical_undefined": 0.04,
            "group/zero_std": 0.1 + 0.5 * share,
            "group/undefined": 0.0,
            "sample/undefined": 0.02,
            "sample/truncated": 0.2 * (1 - share),
            "judge/outcome_unscored": None,
            "length/mean": 40 + 9 * draw[5],
            "loss": 0.01 * draw[6],
            "entropy": 1.2 - share,
            "kl": 0.05 * share,
            "update/grad_norm": 0.7 + draw[7],
            "clip/high": 0.01 * share,
            "mismatch/abs/mean": 1e-7 * (1 + share),
            "speed/rollout": 1500 + 100 * draw[8],
            "speed/update": 4200.0,
            "seconds": 1.5,
            "skipped": float(step == 12),
            "data/left/over_length": 3.0,
            "update/ok": math.nan,
        }
    return metrics


def sample(step: int, number: int = 0, **others) -> dict:
    """A row of the samples log as GRPO writes it."""
    return {
        "record": f"world-{step}",
        "setting": "HN",
        "composition": "A|Q,D",
        "sample": number,
        "question": "anna code + bob age ?",
        "gold": "10",
        "hint": "anna code 7 . bob age 3 .",
        "spans": [["template", 4], ["evidence", 20], ["distractor", 60], ["question", 6], ["template", 3]],
        "completion": "<reference> anna code 7 . bob age 3 . </reference> 7 + 3 = 10 </think> 10",
        "finish": "stop",
        "tokens": 24,
        "references": ["anna code 7 . bob age 3 ."],
        "answer": "10",
        "faults": [],
        "outcome": {"value": True, "score": None, "reason": ""},
        "rationale": {"value": True, "score": 1.0, "reason": "all of 2 facts"},
        "rewards": {"outcome": 1.0, "rationale": 1.0, "overlong": None},
        "reward": 2.0,
        "advantage": 0.71,
        **others,
    }
