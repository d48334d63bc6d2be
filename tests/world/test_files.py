"""The world as files: the benchmark and the training stream read them, and both make the same kind of prompt."""

import json
from collections import Counter

import numpy as np
import pytest

from noisyjax.bench import load_bench
from noisyjax.bench.schema import BenchConfig
from noisyjax.chat import ChatTokenizer, split
from noisyjax.chat.reference import parse_references
from noisyjax.config import load
from noisyjax.errors import UsageError
from noisyjax.instruct import PromptConfig, TargetConfig, open_files, parse_instruct, record_prompt
from noisyjax.instruct.sft import record_example_maker
from noisyjax.models import load as load_model
from noisyjax.records import LABEL_ID, SETTINGS
from noisyjax.world import KINDS, MIXES, held_out, make_tokenizer, mix_records, puzzle, record, write_eval, write_model
from noisyjax.world.files import write_world
from noisyjax.world.words import VOCABULARY

PROMPT = PromptConfig(position="mixed", ask_reference=False, max_prompt_tokens=128)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("world") / "init")


@pytest.fixture(scope="module")
def tokenizer(model) -> ChatTokenizer:
    return ChatTokenizer.load(model)


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    folder = write_eval(tmp_path_factory.mktemp("world") / "eval", seed=0, n=400)
    return load_bench(load(BenchConfig, "bench/tiny_world", [f"data={folder}"]))["tiny_world"]


def test_four_hundred_questions_in_every_setting_and_none_is_lost(bench, tokenizer):
    assert len(bench.questions) == 400
    assert not bench.dropped
    assert Counter(q.meta["type"] for q in bench.questions) == dict.fromkeys(["lookup", "sum2", "compare", "sum3"], 100)
    unknown = tokenizer.hf.unk_token_id
    for setting in SETTINGS:
        prompts = list(bench.prompts(setting, tokenizer))
        assert len(prompts) == 400
        assert max(len(p.ids) for p in prompts) <= 128
        assert not any(p.dropped or p.over_length for p in prompts)
        assert not any((p.ids == unknown).any() for p in prompts)


@pytest.mark.parametrize("setting", SETTINGS)
def test_training_and_evaluation_see_the_same_kind_of_prompt(setting, bench, tokenizer):
    """The same question through both paths: equal but for which noise was drawn."""
    evaluated = {p.question_id: p for p in bench.prompts(setting, tokenizer)}
    shapes = []
    for i in range(40):
        p = puzzle(0, "eval", i)
        if p.id not in evaluated:
            continue
        trained = record_prompt(tokenizer, record(p, setting), PROMPT)
        shapes.append([_shape(tokenizer, prompt) for prompt in (evaluated[p.id], trained)])
        if setting == "ND":
            assert trained.ids.tolist() == evaluated[p.id].ids.tolist()
            assert trained.labels.tolist() == evaluated[p.id].labels.tolist()
    one, other = (Counter(column) for column in zip(*shapes, strict=True))
    assert set(one) == set(other)
    places = {"ND": 1, "RC": 1, "RD": 4, "HN": 3}[setting]  # where the evidence stands among the documents
    assert len({place for place, _ in one}) == places


def _shape(tokenizer, prompt) -> tuple[int, tuple[str, ...]]:
    """(which document of the last turn is the evidence, the markers and heads of that turn)."""
    words = tokenizer.decode_raw(prompt.ids).split()
    turn = len(words) - 1 - words[::-1].index("<|user|>")
    first = int(np.argmax(prompt.labels == LABEL_ID["evidence"]))
    heads = tuple(w for w in words[turn:] if w.startswith("<|") or w == "Document")
    return words[turn:first].count("Document"), heads


def test_training_sets_are_read_back(tmp_path, monkeypatch):
    small = {name: type(mix)(200, mix.shares) for name, mix in MIXES.items()}
    monkeypatch.setattr("noisyjax.world.records.MIXES", small)
    write_world(tmp_path, seed=1, n=8)
    for name in MIXES:
        records = open_files([str(tmp_path / "train" / f"{name}.jsonl")], parse_instruct)
        assert len(records) == 200
        assert list(records) == list(mix_records(name, 1))


def test_a_mix_has_its_shares_and_every_type_in_each(monkeypatch):
    monkeypatch.setattr("noisyjax.world.records.MIXES", {"m": type(MIXES["grpo"])(400, {"ND": 1, "RC": 1, "HN": 2})})
    found = Counter((r.meta["noise"], r.meta["type"]) for r in mix_records("m", 0))
    assert {n for (kind, _), n in found.items() if kind in ("ND", "RC")} == {25}
    assert {n for (kind, _), n in found.items() if kind == "HN"} == {50}
    assert len(found) == 12


def test_training_questions_are_in_no_evaluation_file():
    """A lookup's question and answer name its gold fact, so that texts can be compared."""
    tested = {(q.question, q.answer) for seed in (0, 1) for q in held_out(seed, 400) if q.kind == "lookup"}
    lookups = (puzzle(0, "grpo", i) for i in range(0, 2000, len(KINDS)))
    trained = {(q.question, q.answer) for q in lookups}
    assert len(tested) > 100
    assert len(trained) > 200
    assert not tested & trained


def test_evaluation_is_a_function_of_its_seed_and_grows_at_the_end(tmp_path):
    folders = [
        write_eval(tmp_path / str(i), seed, n) for i, (seed, n) in enumerate([(2, 40), (2, 40), (2, 80), (3, 40)])
    ]
    texts = [(f / "tiny_world.jsonl").read_text() for f in folders]
    assert texts[0] == texts[1] != texts[3]
    assert set(texts[0].splitlines()) < set(texts[2].splitlines())
    ids = [json.loads(line)["id"] for line in texts[2].splitlines()]
    assert len(set(ids)) == 80
    with pytest.raises(UsageError, match="1200"):
        held_out(0, 1201)


class TestTokenizer:
    def test_a_word_is_a_token(self, tokenizer):
        assert len(tokenizer.hf) == len(VOCABULARY)
        text = puzzle(0, "grpo", 3).target
        ids = tokenizer.encode_plain(text)
        assert len(ids) == len(text.split()) <= 32
        assert tokenizer.decode(ids) == text
        assert [VOCABULARY[i] for i in ids] == text.split()

    def test_glued_text_has_the_same_tokens(self, tokenizer):
        glued = "<think>\n<reference>anna code 7.</reference>\n7\n</think>\n\n7"
        spaced = "<think> <reference> anna code 7 . </reference> 7 </think> 7"
        assert tokenizer.encode_plain(glued).tolist() == tokenizer.encode_plain(spaced).tolist()

    def test_a_completion_is_read_by_the_usual_parsers(self, tokenizer):
        p = puzzle(0, "grpo", 1)
        text = tokenizer.decode([*tokenizer.encode_plain(p.target), *tokenizer.stop_ids])
        assert split(text).answer.strip() == p.answer
        assert parse_references(text).text == p.reference

    def test_markers_come_from_the_template_alone(self, tokenizer):
        controls = {control.id for control in tokenizer.controls.values()}
        assert not controls & set(tokenizer.encode_plain("<|end|> <|user|>").tolist()) - {tokenizer.hf.unk_token_id}
        assert tokenizer.stop_ids == (tokenizer.hf.convert_tokens_to_ids("<|end|>"),)

    def test_it_is_the_same_every_time(self):
        assert make_tokenizer().backend_tokenizer.to_str() == make_tokenizer().backend_tokenizer.to_str()


def test_the_model_is_small_and_loads(model):
    loaded = load_model(model)
    assert loaded.cfg.vocab_size == len(VOCABULARY)
    n = sum(x.size for x in loaded.params.values())
    assert 300_000 < n < 2_500_000


def test_supervised_training_aims_at_the_worlds_own_target(tokenizer):
    make = record_example_maker(tokenizer, PROMPT, TargetConfig(form="thought", max_tokens=192))
    for kind in ("ND", "talk", "RC", "HN"):
        p = puzzle(0, "grpo", 2)
        example = make(record(p, kind)).item
        assert tokenizer.decode_raw(example.ids[example.target]) == f"{p.target} <|end|>"
