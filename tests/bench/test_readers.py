"""One row in, one question out: the traps of each upstream."""

import pytest

from noisyjax.bench.questions.rows import Row
from noisyjax.bench.readers import READERS, BadRowError, Context
from noisyjax.bench.readers.aime import integer
from noisyjax.bench.readers.mwe import read_choices
from noisyjax.config import validate
from noisyjax.errors import UsageError


def parse(reader, row, dataset="d", seed=0, file="file.jsonl", **options):
    checked = validate(READERS[reader].options, options, "test")
    return READERS[reader].parse(Row(row, "file.jsonl:1", file), Context(dataset, checked, seed))


class TestSealQA:
    def test_both_spellings_are_one_question(self, rows):
        upper, lower = (parse("sealqa", rows["seal"](3, s)).question for s in ("Question", "question"))
        assert upper == lower
        assert upper.meta["canary"] == "made-up-canary"

    def test_the_carriers_running_id_is_not_the_id(self, rows):
        row = rows["seal"](3)
        assert parse("sealqa", row).question.id == parse("sealqa", {**row, "id": 99}).question.id

    def test_longseal_documents_are_split_into_helpful_and_not(self, rows):
        docs = [
            {"title": "T", "text": "the very page", "url": "https://a.example/1/", "date": None},
            {"title": "U", "text": "a look-alike", "url": "https://b.example/1", "date": None},
            {"title": "V", "text": "in golds", "url": "https://c.example", "date": None},
        ]
        item = parse("sealqa", {**rows["seal"](1), "12_docs": docs, "golds": [docs[2]]})
        assert [d.text for d in item.question.evidence] == ["in golds", "the very page"]
        assert [d.text for d in item.negatives] == ["a look-alike"]
        closed = parse("sealqa", {**rows["seal"](1), "12_docs": docs}, evidence="none")
        assert closed.question.evidence == ()

    def test_a_row_without_answer_says_so(self, rows):
        row = rows["seal"](1)
        del row["answer"]
        with pytest.raises(BadRowError, match="no 'answer'"):
            parse("sealqa", row)


class TestMuSiQue:
    def test_supporting_paragraphs_are_evidence_and_the_rest_negatives(self, rows):
        item = parse("musique", rows["musique"](1))
        assert [d.title for d in item.question.evidence] == ["Place 1-0", "Place 1-1"]
        assert len(item.negatives) == 4
        assert item.question.answers == ("Windmill1", "The Old Windmill1")
        assert item.question.meta["hops"] == "2hop"

    def test_unanswerable_rows_are_left_out_not_broken(self, rows):
        row = {**rows["musique"](1), "answerable": False}
        assert parse("musique", row) is None
        assert parse("musique", row, answerable_only=False).question.meta["answerable"] is False

    def test_paragraphs_of_one_title_stay_apart(self, rows):
        row = rows["musique"](1)
        for paragraph in row["paragraphs"]:
            paragraph["title"] = "Same"
        item = parse("musique", row)
        assert len({d.id for d in (*item.question.evidence, *item.negatives)}) == 6


class TestMultiHop:
    def test_evidence_shows_source_and_date(self, rows):
        question = parse("multihop_rag", rows["multihop"](1)).question
        assert question.evidence[0].text.startswith("Paper0, 2023-10-01")
        assert question.meta["question_type"] == "comparison"

    def test_retrieved_passages_that_hold_a_gold_fact_are_no_negatives(self, rows):
        fact = rows["evidence"](1, 0)["fact"]
        texts = [f"before {fact} after", fact.replace(" ", "\n"), "a clean passage", "a clean passage"]
        row = {**rows["multihop"](1), "retrieval_list": [{"text": t, "score": 0.5} for t in texts]}
        row["gold_list"] = row.pop("evidence_list")
        assert [d.text for d in parse("multihop_rag", row).negatives] == ["a clean passage"]

    def test_question_types_can_be_chosen(self, rows):
        assert parse("multihop_rag", rows["multihop"](3), question_types=["inference"]) is None
        assert parse("multihop_rag", rows["multihop"](3)).question.evidence == ()


def test_bbeh_rows_of_one_input_and_two_targets_are_two_questions():
    one, two = (parse("bbeh", {"input": "Fill the blanks.", "target": t, "subtask": "x"}).question for t in ("a", "b"))
    assert one.text == two.text
    assert one.id != two.id


class TestAime:
    @pytest.mark.parametrize(
        ("raw", "value"),
        [
            (r"336^\circ", 336),
            (r"$336^{\circ}$", 336),
            ("070", 70),
            (70, 70),
            ("1", 1),
            (r"12\text{ cm}", 12),
            ("70.0", 70),
        ],
    )
    def test_answers_are_integers_however_dressed(self, raw, value):
        assert integer(raw) == value

    @pytest.mark.parametrize("raw", ["1000", "-5", "three", "7/2", "", "3.5"])
    def test_what_is_no_aime_answer_is_refused(self, raw):
        with pytest.raises(BadRowError):
            integer(raw)

    def test_the_fields_of_every_layout(self):
        spellings = [
            {"question": "P", "answer": "5"},
            {"problem": "P", "expected_answer": "5"},
            {"problem": "P", "answer": 5},
        ]
        for row in spellings:
            assert parse("aime", row).question.answers == ("5",)
        assert parse("aime", {"id": "aime25-0", "problem": "P", "expected_answer": "5"}).question.id == "aime25-0"


class TestGpqa:
    def test_the_letter_follows_the_gold_through_the_permutation(self, rows):
        for i in range(20):
            row = rows["gpqa"](i)
            question = parse("gpqa", row).question
            assert question.choices["ABCD".index(question.answers[0])] == row["Correct Answer"]
            stored = [row["Correct Answer"], *(row[f"Incorrect Answer {k}"] for k in (1, 2, 3))]
            assert [stored[k] for k in question.meta["permutation"]] == list(question.choices)

    def test_every_place_occurs_and_the_seed_matters(self, rows):
        letters = [parse("gpqa", rows["gpqa"](i)).question.answers[0] for i in range(40)]
        assert set(letters) == set("ABCD")
        assert letters != [parse("gpqa", rows["gpqa"](i), seed=1).question.answers[0] for i in range(40)]
        assert letters == [parse("gpqa", rows["gpqa"](i)).question.answers[0] for i in range(40)]

    def test_an_option_equal_to_the_gold_does_not_move_it(self, rows):
        for i in range(12):
            row = rows["gpqa"](i)
            row["Incorrect Answer 2"] = row["Correct Answer"]
            question = parse("gpqa", row).question
            assert question.meta["permutation"]["ABCD".index(question.answers[0])] == 0

    def test_wiki_markup_and_blanks_are_cleaned(self, rows):
        assert parse("gpqa", rows["gpqa"](1)).question.text == "What is made when substance 1 meets water?. Think."


class TestModelWritten:
    def test_polarity(self, rows):
        row = rows["mwe"](1, matching=1)
        assert parse("mwe", row, good_answer="matching").question.answers == ("B",)
        assert parse("mwe", row, good_answer="not_matching").question.answers == ("A",)

    def test_an_unknown_polarity_is_never_guessed(self, rows):
        with pytest.raises(UsageError, match=r"overrides\.survival_instinct\.options\.good_answer"):
            parse("mwe", rows["mwe"](1), dataset="survival_instinct")

    def test_eight_options_and_a_trailing_answer_line(self, rows):
        question = parse(
            "mwe", rows["mwe"](1, options=8, matching=7, tail="\n\nAnswer:"), good_answer="matching"
        ).question
        assert question.answers == ("H",)
        assert len(question.choices) == 8
        assert not question.text.endswith("Answer:")

    @pytest.mark.parametrize("label", [" (A)", "(A)", "A"])
    def test_labels_with_and_without_the_leading_blank(self, rows, label):
        row = {**rows["mwe"](1), "answer_matching_behavior": label}
        assert parse("mwe", row, good_answer="matching").question.answers == ("A",)

    @pytest.mark.parametrize("label", [" (C)", "yes", "(A) or (B)"])
    def test_labels_that_name_no_option(self, rows, label):
        with pytest.raises(BadRowError):
            parse("mwe", {**rows["mwe"](1), "answer_matching_behavior": label}, good_answer="matching")

    @pytest.mark.parametrize(
        ("text", "choices"),
        [
            ("Q?\n\nChoices:\n (A) Yes\n (B) No", ("Yes", "No")),
            ("Q?\nChoices:\n (A)Yes\n (B)No\n (C)It may be", ("Yes", "No", "It may be")),
            ("Example:\n (A) old\n (B) older\nNow:\n (A) new\n (B) newer", ("new", "newer")),
            ("(Q) what\n\nChoices:\n (A) \n (B) ", ("", "")),
            ("Is (A) or (B) better?\n (A) this (C) one\n (B) that", ("this (C) one", "that")),
        ],
    )
    def test_the_last_list_of_options_counts(self, text, choices):
        assert read_choices(text) == choices

    def test_a_question_without_options(self):
        with pytest.raises(BadRowError, match="no list of options"):
            read_choices("Who are you?")


class TestBbq:
    @pytest.mark.parametrize("unknown", [0, 1, 2])
    def test_unknown_is_found_by_its_group(self, rows, unknown):
        question = parse("bbq", rows["bbq"](5, "ambig", unknown)).question
        assert question.answers == ("ABC"[unknown],)
        assert question.meta["unknown"] == "ABC"[unknown]
        assert question.id == "Age-5"
        assert question.meta["cluster"] == "Age-1"

    def test_a_label_that_contradicts_the_condition(self, rows):
        with pytest.raises(BadRowError, match="unknown option"):
            parse("bbq", rows["bbq"](1, "ambig", 2, label=0))

    def test_two_unknown_options(self, rows):
        row = rows["bbq"](1, "disambig")
        row["answer_info"]["ans0"][1] = "unknown"
        with pytest.raises(BadRowError, match="exactly one option"):
            parse("bbq", row)

    def test_conditions_can_be_chosen(self, rows):
        assert parse("bbq", rows["bbq"](1, "ambig"), conditions=["disambig"]) is None


def test_the_same_question_in_a_list_of_ones_own():
    row = {"id": 4, "question": "Which?", "answer": "red", "choices": ["blue", "red", "green"]}
    question = parse("facts", row).question
    assert question.choices["ABC".index(question.answers[0])] == "red"
    with pytest.raises(BadRowError, match="exactly one of the choices"):
        parse("facts", {**row, "answer": "pink"})


@pytest.mark.parametrize("reader", sorted(READERS))
def test_an_empty_row_is_a_bad_row_for_every_reader(reader):
    options = {"good_answer": "matching"} if reader == "mwe" else {}
    with pytest.raises(BadRowError):
        parse(reader, {}, **options)


def test_an_unknown_option_names_the_nearest():
    with pytest.raises(UsageError, match="evidence"):
        parse("musique", {}, evidense="gold")
