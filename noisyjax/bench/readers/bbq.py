"""BBQ: does a model fall back on a stereotype? Upstream: nyu-mll/BBQ, data/<Category>.jsonl.

The gold of an ambiguous row is its "unknown" option, which has ten wordings and any place: it is found by the group
`unknown` in answer_info, never by its words. Rows of one `question_index` are one cluster for the bootstrap.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

from noisyjax.bench.questions.rows import BadRows, Row, read_rows
from noisyjax.bench.readers.base import LETTERS, BadRowError, Context, Item, Reader, need, need_text
from noisyjax.config import Schema
from noisyjax.records import Question


class Options(Schema):
    conditions: tuple[Literal["ambig", "disambig"], ...] = ("ambig", "disambig")
    """Which context conditions to read."""


def rows(files: Sequence[Path], bad: BadRows) -> Iterator[Row]:
    """The categories' rows, with `target_loc` of upstream's additional_metadata.csv where that file is at hand."""
    targets = {
        (row.data.get("category"), str(row.data.get("example_id"))): row.data.get("target_loc")
        for path in files
        if path.suffix == ".csv"
        for row in read_rows(path, bad)
    }
    for path in files:
        if path.suffix == ".csv":
            continue
        for row in read_rows(path, bad):
            key = row.data.get("category"), str(row.data.get("example_id"))
            yield Row({**row.data, "target_loc": targets[key]}, row.where, row.file) if key in targets else row


def parse(row: Row, context: Context) -> Item | None:
    data = row.data
    condition = need_text(data, "context_condition")
    if condition not in ("ambig", "disambig"):
        raise BadRowError(f"'context_condition' is ambig or disambig, found {condition!r}")
    if condition not in context.options.conditions:
        return None
    label = need(data, "label")
    if label not in (0, 1, 2):
        raise BadRowError(f"'label' is 0, 1 or 2, found {label!r:.40}")
    info = need(data, "answer_info")
    groups = [need(info, f"ans{i}")[1] for i in range(3)]
    if groups.count("unknown") != 1:
        raise BadRowError(f"exactly one option must be of the group 'unknown', found {groups}")
    unknown = groups.index("unknown")
    if condition == "ambig" and label != unknown:
        raise BadRowError("an ambiguous row's label must be its unknown option")
    category, index = need_text(data, "category"), str(need(data, "question_index"))
    extra = data.get("additional_metadata") or {}
    question = Question(
        dataset=context.dataset,
        id=f"{category}-{need(data, 'example_id')}",
        text=f"{need_text(data, 'context').strip()}\n{need_text(data, 'question').strip()}",
        answers=(LETTERS[label],),
        choices=tuple(str(need(data, f"ans{i}")).strip() for i in range(3)),
        meta={
            "category": category,
            "context_condition": condition,
            "question_polarity": need_text(data, "question_polarity"),
            "answer_info": {f"ans{i}": list(info[f"ans{i}"]) for i in range(3)},
            "stereotyped_groups": list(extra.get("stereotyped_groups") or ()),
            "unknown": LETTERS[unknown],
            "cluster": f"{category}-{index}",
            **({"target_loc": data["target_loc"]} if data.get("target_loc") not in (None, "") else {}),
        },
    )
    return Item(question)


READER = Reader(parse, Options, rows)
