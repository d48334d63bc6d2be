"""The judge's pass over a run: asked once all samples are there, about open answers that the rules call wrong."""

from collections.abc import Callable, Mapping

from noisyjax.engine.opened import OpenEngine, open_engine
from noisyjax.evaluate.rescoring import Stored
from noisyjax.evaluate.schema import JudgeStage
from noisyjax.evaluate.score import JUDGE, NO_VERDICT, TaskScorer, judged
from noisyjax.interrupts import Interrupts
from noisyjax.judge import JudgeConfig, OutcomeItem, VerdictCache, judge_id, judge_outcomes
from noisyjax.records import Score
from noisyjax.store import Key, RunWriter, decode_score


def judge_run(
    run: RunWriter,
    config: JudgeStage,
    scorers: Mapping[str, TaskScorer],
    tested: OpenEngine,
    interrupts: Interrupts,
    say: Callable[[str], None],
) -> int:
    """Ask about every sample that needs it and store the new scores; how many samples were judged.

    Each verdict is durable as it comes (`verdicts`), so a run that is stopped here asks nothing twice.
    """
    asked = _to_ask(run, scorers)
    if not asked:
        return 0
    engine = tested if config.engine == "same" else open_engine(config.engine)
    settings = JudgeConfig(**config.model_dump(exclude={"engine"}))
    try:
        name = judge_id(engine.engine.name, settings)
        run.set_about("judge", name)
        say(f"judging {len(asked)} answers with {engine.engine.name}")
        with interrupts.allowed():
            verdicts = judge_outcomes(
                engine.engine,
                [item for _, item, _ in asked],
                VerdictCache(run.logs["verdicts"]),
                settings,
                engine.tokenizer,
            )
    finally:
        if engine is not tested:
            engine.engine.close()
    for (key, _, score), verdict in zip(asked, verdicts, strict=True):
        run.put_score(key, judged(score, verdict))
    run.flush()
    return len(asked)


def _to_ask(run: RunWriter, scorers: Mapping[str, TaskScorer]) -> list[tuple[Key, OutcomeItem, Score]]:
    """Samples whose score is the rules' alone and which a judge may lift."""
    scores = {key: decode_score(record) for key, record in run.latest("scores").items()}
    asked = []
    for key, question, presented, completion in Stored(run).samples():
        score = scores.get(key)
        if score is None or JUDGE in score.values:
            continue
        if score.note.startswith(NO_VERDICT):  # the judge failed on it before
            score = scorers[question.dataset](question, presented, completion)
        item = scorers[question.dataset].to_judge(question, completion, score)
        if item is not None:
            asked.append((key, item, score))
    return asked
