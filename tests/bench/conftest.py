"""A folder of made-up rows in every upstream schema, laid out as upstream lays its files."""

import csv
import json
from pathlib import Path

import pytest

LETTERS = "ABCDEFGH"


def lines(path: Path, rows) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return path


def document(json_value, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(json_value, ensure_ascii=False), encoding="utf-8")
    return path


def musique_row(i: int) -> dict:
    paragraphs = [
        {
            "idx": k,
            "title": f"Place {i}-{k}",
            "paragraph_text": f"Text {k} about village{i}x{k}.",
            "is_supporting": k < 2,
        }
        for k in range(6)
    ]
    return {
        "id": f"2hop__{i}_{i + 1}",
        "paragraphs": paragraphs,
        "question": f"Which mill stands by pond number {i}?",
        "question_decomposition": [],
        "answer": f"Windmill{i}",
        "answer_aliases": [f"The Old Windmill{i}"] if i % 2 else [],
        "answerable": True,
    }


def seal_row(i: int, spelling: str = "question") -> dict:
    return {
        "id": i,
        spelling: f"Who first rowed across lake number {i}?",
        "answer": f"Rower Number{i}",
        "urls": [f"https://a.example/{i}#frag"],
        "freshness": "never-changing",
        "canary": "made-up-canary",
    }


def evidence(i: int, k: int) -> dict:
    return {
        "title": f"Article {i}-{k}",
        "author": "N. N.",
        "url": f"https://n.example/{i}/{k}",
        "source": f"Paper{k}",
        "category": "tech",
        "published_at": "2023-10-01T00:00:00+00:00",
        "fact": f"Firm{i} opened depot{i}x{k} near harbour{k}.",
    }


def multihop_row(i: int) -> dict:
    kind = ("inference_query", "comparison_query", "temporal_query", "null_query")[i % 4]
    return {
        "query": f"Did Firm{i} open a depot near harbour0 before harbour1?",
        "answer": "Insufficient information." if kind == "null_query" else f"Firm{i}",
        "question_type": kind,
        "evidence_list": [] if kind == "null_query" else [evidence(i, 0), evidence(i, 1)],
    }


def bbq_row(i: int, condition: str, unknown: int = 2, label: int | None = None) -> dict:
    people = [k for k in range(3) if k != unknown]
    info = {f"ans{unknown}": ["Not known", "unknown"]}
    info |= {f"ans{k}": [f"person{k}", group] for k, group in zip(people, ("old", "nonOld"), strict=True)}
    return {
        "example_id": i,
        "question_index": str(i // 4),
        "question_polarity": "neg" if i % 2 else "nonneg",
        "context_condition": condition,
        "category": "Age",
        "answer_info": info,
        "additional_metadata": {"subcategory": "None", "stereotyped_groups": ["old"], "version": "a", "source": ""},
        "context": f"I met two people at stop {i}.",
        "question": "Who was late?",
        **{f"ans{k}": info[f"ans{k}"][0] for k in range(3)},
        "label": label if label is not None else (unknown if condition == "ambig" else people[0]),
    }


def mwe_row(i: int, options: int = 2, matching: int = 0, tail: str = "") -> dict:
    listed = "\n".join(f" ({LETTERS[k]}) choice {k} of {i}" for k in range(options))
    other = 1 if matching == 0 else 0
    return {
        "question": f"Is statement {i} about you true?\n\nChoices:\n{listed}{tail}",
        "answer_matching_behavior": f" ({LETTERS[matching]})",
        "answer_not_matching_behavior": f" ({LETTERS[other]})",
    }


def gpqa_row(i: int) -> dict:
    return {
        "Record ID": f"rec{i:03d}",
        "Question": f"What is made when substance {i} meets water? [title] Think.",
        "Correct Answer": f"a clear gas number {i} that smells of rain",
        "Incorrect Answer 1": f"salt {i}",
        "Incorrect Answer 2": f"sand {i}",
        "Incorrect Answer 3": f"soot {i}",
        "Subdomain": "Made-up",
    }


def hotpot_row(i: int) -> dict:
    context = [[f"Topic {i}-{k}", [f"First of {i}x{k}.", f" Second of {i}x{k}."]] for k in range(10)]
    return {"_id": f"h{i}", "question": "?", "answer": "!", "supporting_facts": [], "context": context}


def mtbench_row(i: int, turns: int = 2) -> dict:
    history = [{"user": f"Ask {i}-{k}?", "bot": f"Reply {i}-{k}. It goes on a little."} for k in range(turns)]
    return {"task": "GR", "id": i, "history": history}


def wildchat_row(i: int, **changes) -> dict:
    texts = [f"Hello {i}", f"Answer {i}", f"More {i}?", f"Surely {i}."]
    turns = [{"role": ("user", "assistant")[k % 2], "content": t, "language": "English"} for k, t in enumerate(texts)]
    row = {"conversation_hash": f"hash{i:04d}", "language": "English", "toxic": False, "redacted": False}
    return {**row, "turn": 2, "conversation": turns, **changes}


def write_csv(path: Path, rows: list[dict]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


@pytest.fixture(scope="session")
def rows():
    """The makers of rows, by upstream."""
    return {
        "musique": musique_row,
        "seal": seal_row,
        "multihop": multihop_row,
        "evidence": evidence,
        "bbq": bbq_row,
        "mwe": mwe_row,
        "gpqa": gpqa_row,
        "hotpot": hotpot_row,
        "mtbench": mtbench_row,
        "wildchat": wildchat_row,
    }


@pytest.fixture(scope="session")
def write():
    """The writers: JSON lines, one JSON document, CSV."""
    return {"lines": lines, "document": document, "csv": write_csv}


@pytest.fixture
def data(tmp_path) -> Path:
    """All nine datasets, both pools, no hard-negatives file."""
    root = tmp_path / "data"
    lines(root / "sealqa/seal-0.jsonl", [seal_row(i, "Question") for i in range(6)])
    document([multihop_row(i) for i in range(12)], root / "multihop_rag/MultiHopRAG.json")
    lines(root / "musique/musique.json", [musique_row(i) for i in range(10)])
    examples = [{"input": f"Work out item {i}.", "target": f"({LETTERS[i]})"} for i in range(6)]
    document({"examples": examples, "canary": "made-up-canary"}, root / "bbeh_mini/data.json")
    lines(root / "aime25/test.jsonl", [{"question": f"Find $x+{i}$.", "answer": str(100 + i)} for i in range(5)])
    write_csv(root / "gpqa_diamond/gpqa_diamond.csv", [gpqa_row(i) for i in range(8)])
    for stem in ("self-awareness-general-ai", "self-awareness-text-model"):
        start = len(stem)
        folder = root / "model_written_evals/human_generated_evals"
        lines(folder / f"{stem}.jsonl", [mwe_row(100 * start + i, matching=i % 2) for i in range(4)])
    for folder in ("human_generated_evals", "lm_generated_evals"):
        lines(
            root / f"model_written_evals/{folder}/survival-instinct.jsonl",
            [mwe_row(i, matching=i % 2) for i in range(4)],
        )
    lines(root / "bbq/Age.jsonl", [bbq_row(i, ("ambig", "disambig")[i % 2], unknown=i % 3) for i in range(12)])
    lines(root / "hotpotqa/hotpot.json", [hotpot_row(i) for i in range(12)])
    lines(root / "chat_standin/mtbench101.jsonl", [mtbench_row(i) for i in range(25)])
    return root
