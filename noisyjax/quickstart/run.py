"""The whole story in the tiny world: evaluate a start in four settings, train it in three ways, evaluate, write a page.

Nothing is downloaded. The world and its two starts are this package's own (`noisyjax.world`); judges are rules. Each
arm gets the same prompts in the same order and differs in its reward alone.
"""

from collections.abc import Sequence
from pathlib import Path

import typer

from noisyjax.config import load
from noisyjax.errors import UsageError
from noisyjax.evaluate import evaluator
from noisyjax.quickstart.arms import QUICKSTART
from noisyjax.report import print_report, write_html
from noisyjax.store.folder import storing
from noisyjax.train import GrpoConfig, train_grpo
from noisyjax.world import start_model, write_world

WORDS = """\
What this shows: a model of a third of a million parameters that answers made-up questions well alone and badly among
noise, trained in the noise by the outcome alone (OR) and by the outcome and the reference it quotes (OR+RARE). Other
starts and seeds end elsewhere: `noisyjax quickstart --start strong --seed 1 --out runs/strong`. docs/results.md holds
the runs with several seeds, and what they do and do not say about large models.

Next: the same commands on a model of yours.
  noisyjax eval sweeps/quickstart engine.model=FOLDER out=runs/mine     a Hugging Face model folder, evaluated
  noisyjax eval sweeps/endpoint engine.base_url=URL engine.model=NAME   an OpenAI-compatible endpoint
  noisyjax train grpo train/grpo_paper model=FOLDER data.files=[FILE] out=runs/rare
  noisyjax bench ls                                                     the datasets, and where their files go
"""


def run_quickstart(
    out: Path,
    *,
    start: str = "sparse",
    seed: int = 0,
    steps: int = 100,
    questions: int = 400,
    judge: str = "rules",
) -> Path:
    """Everything, inside `out`; the page's path. Run again, it goes on where it was.

    Args:
        start: one of `noisyjax.world.STARTS`.
        seed: of the world, the order of prompts and the sampling.
        steps: GRPO steps of each arm.
        questions: held-out questions, asked in four settings.
        judge: `rules`, a model folder, or an endpoint's address with its model, `URL#MODEL`.

    Raises UsageError for a start or judge that is not there and for an `out` that holds something else.
    """
    model = start_model(start)
    judged = judge_words(judge)
    world = out / "world"
    typer.echo(f"the tiny world is in {world}")
    with storing(str(world)):
        write_world(world, seed, questions, mixes=("grpo",))
    runs = [str(out / arm.folder) for arm in QUICKSTART]
    for arm, run in zip(QUICKSTART, runs, strict=True):
        if judge != "rules" and "reward.rationale=graded" in arm.words:
            typer.echo(f"{arm.name} is left out: a model judge says yes or no and grades nothing")
            continue
        config = load(
            GrpoConfig,
            "train/world_grpo",
            [
                f"model={model}",
                f"data.files=[{world / 'train' / 'grpo.jsonl'}]",
                f"out={run}",
                f"name={arm.name}",
                f"seed={seed}",
                f"steps={steps}",
                f"evaluate.every={steps}",
                f"evaluate.overrides=[bench.data={world / 'eval'}, engine.capture.attention=all]",
                *arm.words,
                *judged,
            ],
        )
        train_grpo(config, lambda learner, config=config: evaluator(config, learner))
    done = [run for run in runs if Path(run).exists()]
    print_report(done)
    page = write_html(done, out / "report.html")
    typer.echo(WORDS)
    typer.echo(f"the page with tables, curves and attention: {page}")
    return page


def judge_words(judge: str) -> Sequence[str]:
    """`--judge` as words of the config."""
    if judge == "rules":
        return ()
    if "://" in judge:
        url, _, model = judge.partition("#")
        if not model:
            raise UsageError(f"--judge {judge}: name the endpoint's model too, as URL#MODEL")
        return (f"judge={{kind: engine, engine: {{kind: remote, base_url: {url}, model: {model}}}}}",)
    if not (Path(judge) / "config.json").is_file():
        raise UsageError(f"--judge {judge}: neither `rules`, nor URL#MODEL, nor a model folder")
    return (f"judge={{kind: engine, engine: {{kind: local, model: {judge}}}}}",)
