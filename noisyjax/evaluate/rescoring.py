"""Scores made again from stored completions. Nothing is generated, and no model is asked."""

from collections.abc import Iterator, Mapping
from typing import Any

from noisyjax.bench import get_task
from noisyjax.errors import RunError
from noisyjax.evaluate.prompts import read_question
from noisyjax.evaluate.score import NO_VERDICT, Presented, Reading, TaskScorer, judged, presented_of, stored_verdict
from noisyjax.judge import VerdictCache
from noisyjax.records import Completion, Finish, Question, Score, State
from noisyjax.store import Key, RunReader, RunWriter, decode_completion, decode_score, open_readers
from noisyjax.store.manifest import broken


class Stored:
    """A run's samples with all that scoring needs of them: questions, prompts as presented, verdicts."""

    def __init__(self, run: RunReader):
        self.run = run
        if "reading" not in run.manifest.about:
            raise broken(run.folder.url, "lacks 'about.reading'")
        self.reading = Reading(**run.manifest.about["reading"])
        self.questions = {r["id"]: read_question(r) for r in run.records("questions")}
        self._presented = {r["id"]: (r["dataset"], presented_of(r)) for r in run.records("prompts")}

    def question_of(self, record: Mapping[str, Any]) -> tuple[Question, Presented]:
        """RunError when a log was lost that the sample refers to."""
        try:
            dataset, presented = self._presented[record["prompt"]]
            return self.questions[f"{dataset}/{record['question']}"], presented
        except KeyError as error:
            raise RunError(
                f"{self.run.folder.url}: a sample refers to {error}, which the logs 'prompts' and 'questions' lack: "
                "restore those files, or run the evaluation again in a new folder"
            ) from error

    def samples(self) -> Iterator[tuple[Key, Question, Presented, Completion]]:
        """One per key, in stored order, without arrays."""
        for key, record in self.run.latest("samples").items():
            yield key, *self.question_of(record), decode_completion(record, arrays=False)


def score_missing(run: RunWriter, scorers: Mapping[str, TaskScorer]) -> int:
    """Score stored samples whose score was lost: the process died between the two writes. How many there were.

    Unscored ones are tried again too: the score may be that of an earlier, failed completion of the same sample.
    """
    scores = {key: decode_score(record) for key, record in run.latest("scores").items()}
    settled = {key for key, s in scores.items() if s.state is not State.UNSCORED or s.note.startswith(NO_VERDICT)}
    if run.done <= settled:
        return 0
    missing = [sample for sample in Stored(run).samples() if sample[0] in run.done - settled]
    for key, question, presented, completion in missing:
        run.put_score(key, scorers[question.dataset](question, presented, completion))
    run.flush()
    return len(missing)


def rescore(url: str) -> str:
    """Score every stored sample of the run again and put the new scores in the old ones' place, at once.

    Verdicts that a judge gave before are used again. Returns a line that says how many scores changed. Raises
    UsageError when `url` is no run, RunError when another process writes it.
    """
    total = changed = 0
    for reader in open_readers(url):
        with RunWriter.reopen(reader.folder.url) as run:
            old = {key: decode_score(record) for key, record in run.latest("scores").items()}
            new = list(_scores(run))
            run.replace_scores(new)
            total += len(new)
            changed += sum(old.get(key) != score for key, score in new)
    return f"{total} samples scored again, {changed} scores changed"


def _scores(run: RunWriter) -> Iterator[tuple[Key, Score]]:
    stored = Stored(run)
    judge = run.manifest.about.get("judge")
    cache = VerdictCache(run.logs["verdicts"]) if judge else None
    scorers: dict[str, TaskScorer] = {}
    for key, question, presented, completion in stored.samples():
        name = question.dataset
        if name not in scorers:
            scorers[name] = TaskScorer(get_task(name), stored.reading)
        score = scorers[name](question, presented, completion)
        if cache is not None and completion.finish is not Finish.ERROR:
            item = scorers[name].to_judge(question, completion, score)
            score = score if item is None else judged(score, stored_verdict(cache, str(judge), item))
        yield key, score
