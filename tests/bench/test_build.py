"""The whole benchmark: pairing over settings, subsets, absent cells, budgets, and one readable error for each fault."""

import json
import random
from dataclasses import replace

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from noisyjax.bench import BenchConfig, list_tasks, load_bench, show, validate_bench
from noisyjax.bench.noise.budget import CUT
from noisyjax.chat import ChatTokenizer
from noisyjax.errors import UsageError
from noisyjax.records import LABELS, SETTINGS, Label

NINE = (
    "sealqa",
    "multihop_rag",
    "musique",
    "aime25",
    "bbeh_mini",
    "gpqa_diamond",
    "self_awareness",
    "survival_instinct",
    "bbq",
)


def config(data, datasets=NINE, **changes):
    pools = {"rd": {"pool": 100}, "rc": {"pool": 20}}
    return BenchConfig(datasets=datasets, data=str(data), **(pools | changes))


def words(text):
    return len(text.split())


def poison(data, dataset, answer):
    """Put `answer` into twelve of the 120 random documents, so that a block of 100 holds some and leaves some."""
    path = data / "hotpotqa/hotpot.json"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for row in rows:
        row["context"][0][1].append(f" Then {answer} came by.")
    path.write_text("\n".join(map(json.dumps, rows)))


def test_all_nine_datasets_and_the_absent_two(data):
    bench = load_bench(config(data, (*NINE, "tau_retail", "tau_airline")))
    assert tuple(bench.datasets) == NINE
    assert set(bench.absent) == {"tau_retail", "tau_airline"}
    for name, dataset in bench.datasets.items():
        for setting in ("ND", "RD", "RC"):
            prompts = list(dataset.prompts(setting))
            assert [p.question_id for p in prompts] == [q.id for q in dataset.questions], name
            assert all(p.setting == setting and p.dataset == name for p in prompts)


def test_hard_negatives_that_nobody_has_are_absent_never_made_up(data):
    bench = load_bench(config(data))
    missing = {name: bench[name].missing("HN") for name in NINE}
    assert {name for name, reason in missing.items() if reason is None} == {"multihop_rag", "musique"}
    assert "hn.files" in missing["bbq"]
    assert bench["bbq"].missing("RD") is None
    with pytest.raises(UsageError, match="HN cannot be made"):
        next(bench["bbq"].prompts("HN"))


def test_a_file_of_hard_negatives_serves_the_others(data, write):
    ids = [q.id for q in load_bench(config(data))["aime25"].questions]
    made = [{"dataset": "aime25", "question_id": i, "text": f"About {i}, a near miss."} for i in ids[:3]]
    write["lines"](data / "hard_negatives_mine.jsonl", made)
    dataset = load_bench(config(data))["aime25"]
    assert dataset.missing("HN") is None
    assert {q.id for q in dataset.questions} == set(ids[:3])
    assert {(d.question_id, d.reason) for d in dataset.dropped} == {(i, "no_negatives") for i in ids[3:]}
    prompt = next(dataset.prompts("HN"))
    assert f"About {prompt.question_id}, a near miss." in prompt.messages[0].content


def test_a_file_for_other_questions_leaves_the_cell_absent(data, write):
    write["lines"](data / "hard_negatives.jsonl", [{"dataset": "aime25", "question_id": "other", "text": "x"}])
    dataset = load_bench(config(data))["aime25"]
    assert "belong to other questions" in dataset.missing("HN")
    assert len(dataset.questions) == 5


def test_which_negatives_are_preferred(data, write):
    question = load_bench(config(data, ["musique"]))["musique"].questions[0]
    row = {"dataset": "musique", "question_id": question.id, "text": "From the file."}
    write["lines"](data / "hard_negatives.jsonl", [row])
    for prefer, expected in (("builtin", False), ("file", True)):
        dataset = load_bench(config(data, ["musique"], hn={"prefer": prefer}))["musique"]
        (prompt,) = dataset.only([question.id]).prompts("HN")
        assert ("From the file." in prompt.messages[0].content) == expected


@pytest.mark.parametrize("settings", [["ND"], ["RC"], list(SETTINGS)])
def test_a_contaminated_question_is_in_no_setting(data, settings):
    poison(data, "musique", "Windmill4")
    dataset = load_bench(config(data, ["musique"], settings=settings))["musique"]
    assert len(dataset.questions) == 9
    (dropped,) = dataset.dropped
    assert dropped.question_id == "2hop__4_5"
    assert (dropped.reason, dropped.kinds) == ("contaminated", ("RD",))
    assert "'windmill4'" in dropped.detail
    asked = {s: [p.question_id for p in dataset.prompts(s)] for s in SETTINGS}
    assert len({tuple(ids) for ids in asked.values()}) == 1


def test_swapping_keeps_the_question_and_its_noise_clean(data):
    poison(data, "musique", "Windmill4")
    dataset = load_bench(config(data, ["musique"], contamination="swap_unit"))["musique"]
    assert len(dataset.questions) == 10
    (prompt,) = dataset.only(["2hop__4_5"]).prompts("RD")
    noise = [part for part in prompt.messages[0].parts if part.label is Label.DISTRACTOR]
    assert len(noise) == 100
    assert not any("Windmill4" in part.text for part in noise)


def test_a_subset_fills_up_past_dropped_questions(data):
    poison(data, "musique", "Windmill4")
    full = load_bench(config(data, ["musique"]))["musique"]
    for n in range(1, 10):
        some = load_bench(config(data, ["musique"], questions=n))["musique"]
        assert some.questions == full.questions[:n]


def test_subsets_differ_by_seed_and_may_differ_by_dataset(data):
    first = load_bench(config(data, ["musique", "bbq"], questions=4, overrides={"bbq": {"questions": 2}}))
    assert [len(d.questions) for d in first.datasets.values()] == [4, 2]
    other = load_bench(config(data, ["musique"], questions=4, seed=5))
    assert other["musique"].questions != first["musique"].questions


def test_nothing_depends_on_the_order_of_any_file(data):
    made = config(data, ["musique", "bbq"], questions=5, rd={"assignment": "per_question", "count": 3})
    before = {n: [list(d.prompts(s)) for s in ("ND", "RD", "RC")] for n, d in load_bench(made).datasets.items()}
    for path in ("musique/musique.json", "bbq/Age.jsonl", "hotpotqa/hotpot.json", "chat_standin/mtbench101.jsonl"):
        lines = (data / path).read_text().splitlines()
        random.Random(1).shuffle(lines)
        (data / path).write_text("\n".join(lines))
    after = load_bench(made)
    for name, prompts in before.items():
        for setting, expected in zip(("ND", "RD", "RC"), prompts, strict=True):
            got = list(after[name].prompts(setting))
            assert [(p.question_id, p.messages, p.units) for p in got] == [
                (p.question_id, p.messages, p.units) for p in expected
            ]


def test_blocks_are_shared_and_depend_on_the_block_seed_alone(data):
    def blocks(**changes):
        bench = load_bench(config(data, ["musique", "bbq"], **changes))
        return {p.units for d in bench.datasets.values() for p in d.prompts("RD")}

    assert len(blocks()) == 1
    assert blocks() == blocks(seed=3)
    assert blocks() != blocks(block_seed=3)


def test_the_token_cap_drops_from_the_end_of_the_block(data):
    full = load_bench(config(data, ["musique"]))["musique"]
    capped = replace(full, config=full.config.model_copy(update={"distractor_tokens": 60}))
    whole, cut = (next(d.prompts("RD", count=words)) for d in (full, capped))
    assert 0 < len(cut.units) < 100
    assert whole.units[: len(cut.units)] == cut.units
    assert set(cut.dropped) == set(whole.units) - set(cut.units)


def test_a_cap_below_the_first_unit_cuts_it_and_says_so(data):
    dataset = load_bench(config(data, ["musique"], distractor_tokens=6))["musique"]
    prompt = next(dataset.prompts("RD", count=words))
    assert len(prompt.units) == 1
    assert prompt.units[0].endswith(CUT)


@pytest.mark.parametrize("setting", ["RD+RC", "RD+HN", "RC+HN", "RD+RC+HN"])
def test_mixtures_hold_every_kind_at_one_total(data, setting):
    made = config(data, ["musique"], settings=["RD", setting], distractor_tokens=80)
    dataset = load_bench(made)["musique"]
    for prompt in dataset.prompts(setting, count=words):
        noise = [p for m in prompt.messages for p in m.parts if p.label is Label.DISTRACTOR]
        assert 60 < sum(words(p.text) for p in noise) <= 80
        kinds = {"RD" if p.unit.startswith("rd") else "RC" if p.unit.startswith("rc") else "HN" for p in noise}
        assert kinds == set(setting.split("+"))


def test_counts_from_none_to_ten(data):
    for count in (0, 1, 4):
        dataset = load_bench(config(data, ["musique"], hn={"count": count}))["musique"]
        assert {len(p.units) for p in dataset.prompts("HN")} == {count}
    with pytest.raises(UsageError, match="no question is left \\(10 no_negatives\\)"):
        load_bench(config(data, ["musique"], hn={"count": 5}))


@pytest.fixture
def tokenizer(tmp_path):
    """A byte-level tokenizer with a chat template."""
    backend = Tokenizer(
        models.BPE(vocab={c: i for i, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}, merges=[])
    )
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    fast = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|end|>")
    fast.add_special_tokens({"additional_special_tokens": ["<|start|>"]})
    fast.chat_template = (
        "{% for m in messages %}<|start|>{{ m.role }}\n{{ m.content }}<|end|>{% endfor %}"
        "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
    )
    fast.save_pretrained(tmp_path / "tok")
    return ChatTokenizer.load(tmp_path / "tok")


def test_with_a_tokenizer_prompts_are_labelled_ids_within_the_limit(data, tokenizer):
    dataset = load_bench(config(data, ["musique"], questions=3, max_prompt_tokens=2000))["musique"]
    for prompt in dataset.prompts("RD", tokenizer, limit=3000):
        assert 0 < len(prompt.ids) <= 2000
        assert not prompt.over_length
        assert prompt.units
        assert prompt.dropped
        names = {LABELS[i] for i in prompt.labels}
        assert names == {Label.TEMPLATE, Label.DISTRACTOR, Label.EVIDENCE, Label.QUESTION}
    (short,) = list(
        load_bench(config(data, ["musique"], questions=1, max_prompt_tokens=50))["musique"].prompts("RD", tokenizer)
    )
    assert short.over_length
    assert short.units == ()


def test_show_finds_a_question_and_says_why_one_is_gone(data, tokenizer):
    poison(data, "musique", "Windmill4")
    bench = load_bench(config(data, ["musique", "tau_retail"]))
    shown = show(bench, "musique", "HN", "2hop__3_4", tokenizer)
    assert shown.question.id == shown.prompt.question_id == "2hop__3_4"
    assert shown.label_tokens["distractor"] > 0
    assert sum(shown.label_tokens.values()) == len(shown.prompt.ids)
    assert show(bench, "musique", "ND").label_tokens == {}
    with pytest.raises(UsageError, match="it was dropped \\(contaminated: RD"):
        show(bench, "musique", "ND", "2hop__4_5")
    with pytest.raises(UsageError, match="did you mean '2hop__3_4'"):
        show(bench, "musique", "ND", "2hop__3_44")
    with pytest.raises(UsageError, match="did you mean 'musique'"):
        show(bench, "musiqe", "ND")
    with pytest.raises(UsageError, match="tool use"):
        show(bench, "tau_retail", "ND")


def test_ls_tells_what_lies_in_a_folder(data, tmp_path):
    lines = {row.task.name: row for row in list_tasks(str(data))}
    assert lines["self_awareness"].layout == "human"
    assert len(lines["self_awareness"].files) == 2
    assert lines["tau_retail"].note.startswith("absent")
    (tmp_path / "empty").mkdir()
    bare = {row.task.name: row for row in list_tasks(str(tmp_path / "empty"))}
    assert "no data" in bare["musique"].note
    assert "bench.data=quickstart" in lines["quickstart_facts"].note
    assert {row.task.name for row in list_tasks()} == set(lines)
    assert all(row.note for row in list_tasks("hub"))


def test_validate_counts_everything_and_stops_at_nothing(data, write):
    poison(data, "musique", "Windmill4")
    with (data / "musique/musique.json").open("a") as file:
        file.write("\n{broken\n")
    with (data / "hotpotqa/hotpot.json").open("a") as file:
        file.write("\n[1]\n")
    write["lines"](
        data / "hard_negatives.jsonl", [{"dataset": "bbq", "question_id": "Age-99", "text": "x"}, {"text": "y"}]
    )
    (data / "aime25/test.jsonl").unlink()
    found = validate_bench(config(data, questions=2, overrides={"bbq": {"questions": 1}}))
    reports = {report.name: report for report in found.datasets}
    musique = reports["musique"]
    assert (musique.questions, musique.kept, len(musique.bad)) == (10, 9, 1)
    assert musique.contaminated == {"RD": 1, "RC": 0, "HN": 0}
    assert reports["aime25"].error.startswith("aime25: no data")
    assert reports["bbq"].orphans == ("Age-99",)
    assert reports["bbq"].kept == reports["bbq"].questions == 12
    assert set(reports["bbq"].missing) == {"HN"}
    assert len(found.bad) == 2
    assert not found.sound
    assert {(p.kind, p.groups, p.size) for p in found.pools} == {("RD", 120, 100), ("RC", 25, 20)}


@pytest.mark.parametrize("remove", ["hotpotqa/hotpot.json", "chat_standin/mtbench101.jsonl"])
def test_a_pool_that_a_setting_needs_must_be_there(data, remove):
    (data / remove).unlink()
    kind = "rd" if "hotpot" in remove else "rc"
    with pytest.raises(UsageError, match=rf"{kind}\.files"):
        load_bench(config(data, ["musique"]))
    dataset = load_bench(config(data, ["musique"], settings=["ND", "HN"]))["musique"]
    assert f"{kind}.files" in dataset.missing(kind.upper())
    assert len(list(dataset.prompts("HN"))) == 10


def test_a_broken_pool_line_is_named_or_counted(data):
    path = data / "chat_standin/mtbench101.jsonl"
    path.write_text(path.read_text() + "{\n")
    with pytest.raises(UsageError, match=r"mtbench101\.jsonl:26"):
        load_bench(config(data, ["musique"]))
    assert len(load_bench(config(data, ["musique"], skip_bad=True))["musique"].sources.bad) == 1
