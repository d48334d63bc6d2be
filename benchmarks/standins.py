"""A data folder in which every cell of the table can run: the upstream files, plus stand-ins for what cannot be had.

    python -m benchmarks.standins DATA OUT

GPQA rows are made up in its schema (the real ones may not be put online), and the hard negatives that no upstream
ships are made mechanically from the question's own words. They show that the pipeline runs; they measure nothing.
"""

import csv
import json
import random
import re
import sys
from pathlib import Path

from noisyjax.bench import BenchConfig, load_bench

MADE_FROM_FILES = ("sealqa", "aime25", "bbeh_mini", "gpqa_diamond", "self_awareness", "survival_instinct", "bbq")


def gpqa_rows(n: int = 40) -> list[dict[str, str]]:
    """Made-up rows of GPQA's schema: four numbers, one of them right."""
    rows = []
    for i in range(n):
        rng = random.Random(f"gpqa {i}")
        mass, speed = rng.randint(2, 60), rng.randint(3, 40)
        right = mass * speed
        wrong = rng.sample([right + d for d in (-mass, mass, speed, 2 * speed, -speed) if d], 3)
        rows.append(
            {
                "Record ID": f"made-up-{i}",
                "Question": f"A cart of mass {mass} kg moves at {speed} m/s. How large is its momentum?",
                "Correct Answer": f"{right} kg m/s",
                **{f"Incorrect Answer {j + 1}": f"{w} kg m/s" for j, w in enumerate(wrong)},
            }
        )
    return rows


def negative(text: str, seed: str) -> str:
    """A document that uses the question's longest words and answers nothing."""
    rng = random.Random(seed)
    words = sorted(set(re.findall(r"[A-Za-z]{5,}", text)), key=lambda w: (-len(w), w))[:12] or ["matter"]
    frames = (
        "Earlier surveys of {} were filed under {} and later moved.",
        "The archive keeps {} apart from {}, for reasons that nobody recorded.",
        "Two reviewers disagreed on {}; a third asked about {}.",
        "A note on {} mentions {} in passing.",
    )
    lines = [rng.choice(frames).format(rng.choice(words).lower(), rng.choice(words).lower()) for _ in range(14)]
    return " ".join(lines)


def main(data: Path, out: Path) -> None:
    """Fill `out` with links to `data` and the stand-ins."""
    out.mkdir(parents=True)
    for entry in data.iterdir():
        (out / entry.name).symlink_to(entry.resolve())
    (out / "gpqa_diamond").mkdir()
    rows = gpqa_rows()
    with (out / "gpqa_diamond" / "gpqa_diamond.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    bench = load_bench(BenchConfig(datasets=MADE_FROM_FILES, settings=("ND",), data=str(out)))
    with (out / "hard_negatives.jsonl").open("w", encoding="utf-8") as file:
        for name in bench.datasets:
            for question in bench[name].loaded.questions:
                key = f"{question.dataset}/{question.id}"
                row = {"dataset": question.dataset, "question_id": question.id, "text": negative(question.text, key)}
                file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(Path(sys.argv[1]), Path(sys.argv[2]))
