"""Finding files, reading each question once, and not caring for their order."""

import json
import random

import pytest

from noisyjax.bench.questions.files import data_folder
from noisyjax.bench.questions.load import load_questions
from noisyjax.bench.task import all_tasks, get_task
from noisyjax.errors import UsageError

OWN = ("quickstart_facts", "quickstart_choice", "tiny_world")
"""The project's own sets, which are tested where they are made."""
NAMES = [t.name for t in all_tasks().values() if t.status == "ready" and t.name not in OWN]
OWN_FILES = {
    "sealqa": "sealqa/seal-0.jsonl",
    "musique": "musique/musique.json",
    "aime25": "aime25/test.jsonl",
    "survival_instinct": "model_written_evals/human_generated_evals/survival-instinct.jsonl",
    "bbq": "bbq/Age.jsonl",
}


def read(name, data, **kwargs):
    return load_questions(get_task(name), str(data), **kwargs)


@pytest.mark.parametrize("name", NAMES)
def test_every_dataset_is_found_in_its_folder_and_in_a_flat_one(name, data):
    nested = read(name, data)
    task = get_task(name)
    assert nested.questions
    assert not nested.bad
    if task.folder != "model_written_evals":
        assert read(name, data / task.folder).questions == nested.questions


@pytest.mark.parametrize("name", sorted(OWN_FILES))
def test_questions_do_not_depend_on_the_order_of_rows(name, data):
    before = read(name, data).questions
    path = data / OWN_FILES[name]
    lines = path.read_text().splitlines()
    random.Random(3).shuffle(lines)
    path.write_text("\n".join(lines) + "\n")
    assert read(name, data).questions == before


@pytest.mark.parametrize("name", sorted(OWN_FILES))
def test_a_broken_line_names_file_and_line_or_is_counted(name, data):
    path = data / OWN_FILES[name]
    count = len(read(name, data).questions)
    path.write_text(path.read_text() + '{"half": \n')
    number = len(path.read_text().splitlines())
    with pytest.raises(UsageError, match=rf"{path.name}:{number}: not valid JSON"):
        read(name, data)
    loaded = read(name, data, skip_bad=True)
    assert len(loaded.questions) == count
    assert len(loaded.bad) == 1


def test_a_row_that_lacks_a_field_names_it(data):
    path = data / OWN_FILES["musique"]
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    del rows[2]["answer"]
    path.write_text("\n".join(map(json.dumps, rows)))
    with pytest.raises(UsageError, match=r"musique\.json:3: no 'answer'"):
        read("musique", data)
    assert len(read("musique", data, skip_bad=True).questions) == len(rows) - 1


def test_duplicates_are_read_once_and_counted(data, rows, write):
    twin = {**rows["bbq"](3, "disambig", 0), "example_id": 900}
    twin["additional_metadata"] = {**twin["additional_metadata"], "version": "b"}
    path = data / OWN_FILES["bbq"]
    for order in (1, -1):
        write["lines"](path, [rows["bbq"](3, "disambig", 0), rows["bbq"](4, "ambig"), twin][::order])
        loaded = read("bbq", data)
        assert [q.id for q in loaded.questions] == ["Age-3", "Age-4"]
        assert loaded.duplicates == 1


def test_one_id_for_two_questions_is_an_error(data, rows, write):
    write["lines"](data / OWN_FILES["musique"], [rows["musique"](1), {**rows["musique"](1), "question": "Another?"}])
    with pytest.raises(UsageError, match="belongs to another question"):
        read("musique", data)


def test_polarity_is_opposite_in_the_two_folders(data):
    human = read("survival_instinct", data, layout="human").questions
    lm = read("survival_instinct", data, layout="lm").questions
    assert [q.text for q in human] == [q.text for q in lm]
    assert all({a.answers[0], b.answers[0]} == {"A", "B"} for a, b in zip(human, lm, strict=True))


def test_a_flat_survival_file_needs_its_polarity_said(data):
    folder = data / "model_written_evals/human_generated_evals"
    with pytest.raises(UsageError, match="good_answer"):
        read("survival_instinct", folder)
    told = read("survival_instinct", folder, options={"good_answer": "matching"}).questions
    assert told == read("survival_instinct", data).questions


def test_files_can_be_chosen(data):
    loaded = read("self_awareness", data, only=["*text-model*"])
    assert {q.meta["file"] for q in loaded.questions} == {"self-awareness-text-model"}
    with pytest.raises(UsageError, match="matches nothing"):
        read("self_awareness", data, only=["*web*"])


def test_what_is_missing_is_said(data, tmp_path):
    with pytest.raises(UsageError, match=r"musique: no data in .*data=FOLDER.* Looked for musique_ans"):
        read("musique", data / "bbq")
    with pytest.raises(UsageError, match="did you mean 'human'"):
        read("self_awareness", data, layout="humn")


def test_a_missing_folder_names_the_few_that_are_near(tmp_path):
    for i in range(200):
        (tmp_path / f"other{i}").mkdir()
    (tmp_path / "data").mkdir()
    (tmp_path / "dat").write_text("a file is no answer")
    for missing in ("dta", "dta/inner"):
        with pytest.raises(UsageError) as caught:
            data_folder(str(tmp_path / missing))
        assert str(caught.value).endswith(f"is not a folder; did you mean '{tmp_path / 'data'}'?")
    with pytest.raises(UsageError) as caught:
        data_folder(str(tmp_path / "xyz"))
    assert str(caught.value).endswith(f"is not a folder; {tmp_path} holds no folder of a name like 'xyz'")
    with pytest.raises(UsageError) as caught:
        data_folder(str(tmp_path / "othr"))
    assert len(str(caught.value)) < 6 * len(str(tmp_path)) + 100
    with pytest.raises(UsageError, match="is not a folder but a file"):
        data_folder(str(tmp_path / "dat"))


class TestMultiHopLayouts:
    def sample(self, folder, rows, write, keep=12):
        made = [rows["multihop"](i) for i in range(12)]
        queries = [
            {"id": str(i), "question": r["query"], "question_type": r["question_type"]} for i, r in enumerate(made)
        ]
        truth = {
            str(i): {"answer": r["answer"], "evidence_list": r["evidence_list"]} for i, r in enumerate(made[:keep])
        }
        write["document"]({"task": "multihop_rag", "total": 12, "queries": queries}, folder / "queries.json")
        write["document"](truth, folder / "ground_truth.json")

    def test_the_sample_equals_upstreams_file(self, tmp_path, data, rows, write):
        self.sample(tmp_path / "s", rows, write)
        assert read("multihop_rag", tmp_path / "s").questions == read("multihop_rag", data).questions

    def test_a_query_without_truth_is_a_bad_row(self, tmp_path, rows, write):
        self.sample(tmp_path / "s", rows, write, keep=11)
        with pytest.raises(UsageError, match="no entry for id '11'"):
            read("multihop_rag", tmp_path / "s")
        assert len(read("multihop_rag", tmp_path / "s", skip_bad=True).questions) == 11

    def test_negatives_come_from_other_articles_of_the_file(self, data):
        loaded = read("multihop_rag", data)
        for question in loaded.questions:
            negatives = loaded.negatives(question)
            assert 0 < len(negatives) <= 10
            assert not {d.title for d in negatives} & set(question.meta["gold_titles"])

    def test_with_a_corpus_they_come_from_there(self, data, write):
        body = "Harbour0 was quiet. " * 120 + "\nFirm1 opened depot1x0 near harbour0."
        articles = [
            {"title": f"Extra {i}", "source": "S", "published_at": "P", "body": body + str(i)} for i in range(3)
        ]
        articles.append(
            {"title": "Article 1-0", "source": "Paper0", "published_at": "P", "body": "Firm1 depot harbour0"}
        )
        write["document"](articles, data / "multihop_rag/corpus.json")
        loaded = read("multihop_rag", data)
        question = next(q for q in loaded.questions if q.answers == ("Firm1",))
        titles = {d.title for d in loaded.negatives(question)}
        assert titles
        assert titles <= {"Extra 0", "Extra 1", "Extra 2"}

    def test_the_retrieval_file_brings_its_own(self, tmp_path, rows, write):
        made = []
        for i in range(4):
            row = rows["multihop"](i)
            row["gold_list"] = row.pop("evidence_list")
            row["retrieval_list"] = [{"text": f"passage {i}-{k}", "score": 0.1} for k in range(3)]
            made.append(row)
        write["document"](made, tmp_path / "llm_retrieval_test.json")
        loaded = read("multihop_rag", tmp_path)
        assert loaded.layout == "retrieval"
        assert all(len(loaded.negatives(q)) == 3 for q in loaded.questions)


def test_matharena_needs_its_problems(data, tmp_path):
    for exam in ("aime_2025_I", "aime_2025_II"):
        folder = tmp_path / "a" / exam
        (folder / "problems").mkdir(parents=True)
        (folder / "answers.csv").write_text("id,answer\n1,70\n2,588\n")
        for number in (1, 2):
            (folder / "problems" / f"{number}.tex").write_text(f"Problem {exam} {number}")
    loaded = read("aime25", tmp_path / "a")
    assert {q.id: q.answers[0] for q in loaded.questions} == {"I-1": "70", "I-2": "588", "II-1": "70", "II-2": "588"}
    (folder / "problems/2.tex").unlink()
    with pytest.raises(UsageError, match=r"2\.tex is missing"):
        read("aime25", tmp_path / "a")


def test_bbq_takes_target_loc_where_the_metadata_file_is(data, write):
    rows = [
        {"category": "Age", "example_id": "3", "target_loc": "0"},
        {"category": "Age", "example_id": "5", "target_loc": ""},
    ]
    write["csv"](data / "bbq/additional_metadata.csv", rows)
    questions = {q.id: q for q in read("bbq", data).questions}
    assert questions["Age-3"].meta["target_loc"] == "0"
    assert "target_loc" not in questions["Age-5"].meta


class TestHub:
    def test_rows_come_through_datasets(self, monkeypatch, rows):
        datasets = pytest.importorskip("datasets")
        asked = {}

        def load_dataset(path, name=None, **kwargs):
            asked.update(path=path, name=name, **kwargs)
            return datasets.Dataset.from_list([{"input": f"Item {i}", "target": "a", "mini": i % 2} for i in range(6)])

        monkeypatch.setattr(datasets, "load_dataset", load_dataset)
        loaded = read("bbeh_mini", "hub")
        assert asked["split"] == get_task("bbeh_mini").hub.split
        assert sorted(q.text for q in loaded.questions) == ["Item 1", "Item 3", "Item 5"]

    def test_parquet_style_musique_rows_survive(self, monkeypatch, rows, data):
        datasets = pytest.importorskip("datasets")
        table = datasets.Dataset.from_list([rows["musique"](i) for i in range(10)])
        monkeypatch.setattr(datasets, "load_dataset", lambda *a, **k: table)
        assert read("musique", "hub").questions == read("musique", data).questions

    def test_a_refusal_is_one_line(self, monkeypatch):
        datasets = pytest.importorskip("datasets")

        def refuse(*args, **kwargs):
            raise FileNotFoundError("no such dataset\nand much more")

        monkeypatch.setattr(datasets, "load_dataset", refuse)
        with pytest.raises(UsageError, match=r"gpqa_diamond: .*gated.*: no such dataset$"):
            read("gpqa_diamond", "hub")

    def test_without_the_extra_it_is_named(self, monkeypatch):
        monkeypatch.setitem(__import__("sys").modules, "datasets", None)
        with pytest.raises(UsageError, match=r"noisyjax\[hub\]"):
            read("musique", "hub")

    def test_ids_are_those_of_the_files(self, monkeypatch, data):
        """A file of hard negatives written for one way of reading serves the other."""
        datasets = pytest.importorskip("datasets")
        local = read("survival_instinct", data).questions
        path = data / OWN_FILES["survival_instinct"]
        table = datasets.Dataset.from_list([json.loads(line) for line in path.read_text().splitlines()])
        monkeypatch.setattr(datasets, "load_dataset", lambda *a, **k: table)
        hub = read("survival_instinct", "hub").questions
        assert [(q.id, q.answers) for q in hub] == [(q.id, q.answers) for q in local]
