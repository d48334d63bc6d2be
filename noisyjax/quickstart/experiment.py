"""Every arm, start and seed of the tiny world on the same fresh questions, and what is found, as tables.

python -m noisyjax.quickstart.experiment OUT [--steps 200] [--questions 400] [--seeds 0,1,2] [--starts sparse,strong]
    [--eval-seed 1000] [--part 0/2] [--tables]

Run again, it goes on where it was; several processes may take a part each; `--tables` only reads what is there. The
evaluation questions are drawn from a seed of their own, held out from all training, and are the same for all runs.
Arms: none (the start), SFT on as many noisy records as GRPO draws prompts, and `arms.ALL`.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from noisyjax.chat.reference import parse_references
from noisyjax.config import load
from noisyjax.errors import NoisyjaxError
from noisyjax.evaluate import EvalConfig, evaluate, evaluator
from noisyjax.evaluate.results import RunResults, load_results
from noisyjax.judge.matching import match_facts
from noisyjax.quickstart.arms import ALL, OR, Arm
from noisyjax.report import words
from noisyjax.scoring import CellValues, Interval, summarise
from noisyjax.train import Evaluate, GrpoConfig, SftConfig, train_grpo, train_sft
from noisyjax.world import start_model, write_world
from noisyjax.world.files import write_eval

NONE, SFT = "none", "SFT on noise"
SETTINGS = ("ND", "RD", "RC", "HN")
MEAN = "mean"
SFT_BATCH = 32


@dataclass(frozen=True)
class Plan:
    """What is run, and where. One evaluation set for all; one training world per seed."""

    out: Path
    starts: tuple[str, ...] = ("sparse", "strong")
    seeds: tuple[int, ...] = (0, 1, 2)
    steps: int = 200
    questions: int = 400
    eval_seed: int = 1000

    def folder(self, start: str, arm: str, seed: int | None = None) -> Path:
        return self.out / start / (arm if seed is None else f"{arm}-{seed}")

    def jobs(self) -> Iterator[tuple[str, Arm | None, int]]:
        """(start, arm or None for SFT, seed); all arms of a seed before the next, so that a stop leaves whole seeds."""
        for seed in self.seeds:
            for start in self.starts:
                yield from ((start, arm, seed) for arm in (None, *ALL))


def run(plan: Plan, part: int = 0, parts: int = 1) -> None:
    """Train and evaluate whatever of the plan's share `part` of `parts` is not there yet."""
    if not (plan.out / "eval").exists():
        write_eval(plan.out / "eval", plan.eval_seed, plan.questions)
    for seed in plan.seeds:
        if not (plan.out / f"world-{seed}").exists():
            write_world(plan.out / f"world-{seed}", seed, 4, mixes=("grpo", "noise"))
    for start in plan.starts:
        words = [f"engine.model={start_model(start)}", f"bench.data={plan.out / 'eval'}"]
        evaluate(load(EvalConfig, "sweeps/tiny_world", [*words, f"out={plan.folder(start, NONE)}"]))
    jobs = list(plan.jobs())
    for number, (start, arm, seed) in list(enumerate(jobs, start=1))[part::parts]:
        typer.echo(f"[{number}/{len(jobs)}] {start}, {SFT if arm is None else arm.name}, seed {seed}")
        train(plan, start, arm, seed)


def train(plan: Plan, start: str, arm: Arm | None, seed: int) -> None:
    """One run. SFT sees as many records as GRPO draws prompts."""
    world = plan.out / f"world-{seed}" / "train"
    grpo = load(GrpoConfig, "train/world_grpo", [f"model={start_model(start)}", "data.files=[unused]", "out=unused"])
    steps = plan.steps if arm else plan.steps * grpo.prompts // SFT_BATCH
    same = [
        f"model={start_model(start)}",
        f"data.files=[{world / ('grpo.jsonl' if arm else 'noise.jsonl')}]",
        f"out={plan.folder(start, arm.folder if arm else 'sft', seed)}",
        f"name={arm.name if arm else SFT}",
        f"seed={seed}",
        f"steps={steps}",
        "evaluate.config=sweeps/tiny_world",
        f"evaluate.every={steps}",
        f"evaluate.overrides=[bench.data={plan.out / 'eval'}]",
        "log.tensorboard=false",
    ]
    if arm:
        rl = load(GrpoConfig, "train/world_grpo", [*same, *arm.words])
        train_grpo(rl, lambda learner: _in_the_end(evaluator(rl, learner)))
    else:
        sft = load(SftConfig, "train/world_strong", [*same, f"batch={SFT_BATCH}"])
        train_sft(sft, lambda learner: _in_the_end(evaluator(sft, learner)))


def _in_the_end(measure: Evaluate) -> Evaluate:
    """Evaluation without the one before the first step: that is the arm None, the same for all."""
    return lambda tree, step: measure(tree, step) if step else {}


# -- tables --------------------------------------------------------------------------------------------------------


def measured(plan: Plan, start: str, arm: str, *, exact: bool) -> Mapping[str, list[CellValues]]:
    """Setting -> per seed that is there, accuracy by question, or with `exact` whether its reference was exact."""
    if arm == NONE:
        runs = [plan.folder(start, NONE)]
    else:
        runs = [end for seed in plan.seeds for end in (plan.folder(start, arm, seed) / "eval").glob("step-*")]
    found: dict[str, list[CellValues]] = {}
    for run in runs:
        results = load_results(str(run))
        for cell in results.cells:
            values = exact_references(results, cell.setting) if exact else results.values(cell)
            found.setdefault(cell.setting, []).append(values)
    return found


def exact_references(results: RunResults, setting: str) -> CellValues:
    """1 where a completion's references state the gold facts and no other, else 0."""
    cell = results.cell("tiny_world", setting)
    questions = {r["question"]: r["meta"] for r in results.readers[0].records("questions")}
    asked = {r["question"]: r["text"] for r in results.readers[0].records("questions")}
    by_question = {}
    for key, record in results.readers[0].latest("samples").items():
        if cell is None or key.cell != cell.id:
            continue
        said = parse_references(record["text"], scope="think").text or ""
        gold = questions[key.question]["reference"]
        by_question[key.question] = float(match_facts(asked[key.question], gold, said, (" .",)).f1 == 1.0)
    ids = sorted(by_question)
    return CellValues("tiny_world", setting, ids, np.array([by_question[q] for q in ids]))


def table(plan: Plan, start: str, *, exact: bool) -> str:
    """Markdown, a row per arm: the mean over seeds and questions in percent, its 95 % interval over questions, and its
    change relative to OR, paired by question; in the end the mean of the four settings for each seed."""
    names = {NONE: "None", "sft": SFT} | {arm.folder: arm.name for arm in ALL}
    cells, spread = [], {}
    for folder, name in names.items():
        found = measured(plan, start, folder, exact=exact)
        if set(found) != set(SETTINGS):
            continue
        values = {setting: np.mean([one.values_q for one in found[setting]], axis=0) for setting in SETTINGS}
        ids = found[SETTINGS[0]][0].question_ids
        values[MEAN] = np.mean([values[setting] for setting in SETTINGS], axis=0)
        cells += [CellValues(setting, name, ids, value) for setting, value in values.items()]
        by_seed = zip(*(found[setting] for setting in SETTINGS), strict=True)
        spread[name] = [float(np.mean([one.values_q.mean() for one in four])) for four in by_seed]
    results = summarise(cells, baseline=OR.name).cells
    columns = (*SETTINGS, MEAN)
    lines = [f"| | {' | '.join(columns)} | by seed |", "|" + "---|" * (len(columns) + 2)]
    for name, means in spread.items():
        row = [_cell(results[setting, name].mean, results[setting, name].change) for setting in columns]
        lines.append(f"| {name} | {' | '.join(row)} | {' '.join(f'{100 * mean:.1f}' for mean in means)} |")
    return "\n".join(lines)


def _cell(mean: Interval, change: Interval) -> str:
    against = "" if change.point is None else f", Δ {words.change(change)} {words.bounds(change, 1.0, sign=True)}"
    return f"{words.interval(mean)}{against}"


def tables(plan: Plan) -> str:
    """Everything found so far, as Markdown."""
    parts = [
        f"{plan.questions} questions in four settings, {plan.steps} steps, seeds {', '.join(map(str, plan.seeds))}"
    ]
    for start in plan.starts:
        parts += [f"### From the {start} start: accuracy, %", table(plan, start, exact=False)]
        parts += [f"### From the {start} start: exact references, %", table(plan, start, exact=True)]
    return "\n\n".join(parts) + "\n"


def main(
    out: Annotated[Path, typer.Argument(help="Folder for all runs.")],
    starts: Annotated[str, typer.Option(help="Starts, by comma.")] = "sparse,strong",
    seeds: Annotated[str, typer.Option(help="Seeds, by comma.")] = "0,1,2",
    steps: Annotated[int, typer.Option(help="GRPO steps.")] = 200,
    questions: Annotated[int, typer.Option(help="Held-out questions, in four settings each.")] = 400,
    eval_seed: Annotated[int, typer.Option(help="Of the evaluation questions.")] = 1000,
    part: Annotated[str, typer.Option(help="This process's share of the runs: 0/2, 1/2.")] = "0/1",
    only_tables: Annotated[bool, typer.Option("--tables", help="Train nothing; read what is there.")] = False,
) -> None:
    """Train every arm from every start with every seed, evaluate on the same questions, print the tables."""
    plan = Plan(out, tuple(starts.split(",")), tuple(map(int, seeds.split(","))), steps, questions, eval_seed)
    try:
        if not only_tables:
            run(plan, *map(int, part.split("/")))
        found = tables(plan)
    except NoisyjaxError as error:
        typer.echo(f"experiment: {error}", err=True)
        raise typer.Exit(error.exit_code) from error
    (out / "tables.md").write_text(found, encoding="utf-8")
    (out / "plan.json").write_text(json.dumps({**vars(plan), "out": str(out)}, default=list) + "\n", encoding="utf-8")
    typer.echo(found)


if __name__ == "__main__":
    typer.run(main)
