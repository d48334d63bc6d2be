"""Files as they come: JSON lines under any name, lists, objects, CSV, Parquet; and broken ones."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from noisyjax.bench.questions.rows import BadRows, read_object, read_rows
from noisyjax.errors import UsageError

RECORDS = [{"id": "a", "text": "one"}, {"id": "b", "text": "two lines\u2028in one"}]


def read(path, skip=False, inside=None):
    bad = BadRows(skip)
    return [dict(row.data) for row in read_rows(path, bad, inside)], bad.found


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.json", "rows.txt"])
def test_json_lines_are_seen_whatever_the_name(tmp_path, write, name):
    assert read(write["lines"](tmp_path / name, RECORDS))[0] == RECORDS


def test_a_list_and_an_object_that_holds_one(tmp_path, write):
    assert read(write["document"](RECORDS, tmp_path / "a.json"))[0] == RECORDS
    assert (
        read(write["document"]({"examples": RECORDS, "canary": "c"}, tmp_path / "b.json"), inside="examples")[0]
        == RECORDS
    )


def test_a_pretty_printed_object_is_not_json_lines(tmp_path):
    path = tmp_path / "a.json"
    path.write_text(json.dumps({"examples": RECORDS}, indent=2))
    assert read(path, inside="examples")[0] == RECORDS


def test_csv_with_line_breaks_in_fields(tmp_path, write):
    rows = [{"Question": "first,\nsecond", "Answer": 'a "b"'}]
    assert read(write["csv"](tmp_path / "a.csv", rows))[0] == rows


def test_parquet(tmp_path):
    arrow = pytest.importorskip("pyarrow")
    import pyarrow.parquet as parquet

    parquet.write_table(arrow.Table.from_pylist(RECORDS), tmp_path / "a.parquet")
    assert read(tmp_path / "a.parquet")[0] == RECORDS


@pytest.mark.parametrize("bad_line", [0, 1, 2])
@pytest.mark.parametrize("broken", ['{"id": "x", "te', "[1, 2]", "7", "\udcff"])
def test_a_broken_line_is_named_or_skipped_and_counted(tmp_path, bad_line, broken):
    text = [json.dumps(r) for r in (*RECORDS, {"id": "c", "text": "three"})]
    text[bad_line] = broken
    path = tmp_path / "rows.jsonl"
    path.write_bytes("\n".join(text).encode("utf-8", errors="surrogateescape"))
    with pytest.raises(UsageError, match=rf"rows\.jsonl:{bad_line + 1}: .*skip_bad=true"):
        read(path)
    good, found = read(path, skip=True)
    assert len(good) == 2
    assert len(found) == 1
    assert found[0].startswith(f"rows.jsonl:{bad_line + 1}:")


def test_blank_lines_and_a_byte_order_mark_do_not_matter(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + b"\n\n".join(json.dumps(r).encode() for r in RECORDS) + b"\n\n")
    assert read(path)[0] == RECORDS


def test_a_broken_list_cannot_be_skipped(tmp_path):
    path = tmp_path / "a.json"
    path.write_text('[{"a": 1}, {"a":')
    with pytest.raises(UsageError, match="not valid JSON"):
        read(path, skip=True)


def test_a_csv_row_of_the_wrong_width(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("a,b\n1,2\n3\n4,5,6\n")
    with pytest.raises(UsageError, match=r"a\.csv:3: a row of 2 fields"):
        read(path)
    assert read(path, skip=True)[0] == [{"a": "1", "b": "2"}]


def test_a_missing_file_is_one_readable_line(tmp_path):
    with pytest.raises(UsageError, match="cannot be read"):
        read(tmp_path / "none.jsonl")
    with pytest.raises(UsageError, match="a JSON object was expected"):
        read_object_of_list(tmp_path)


def read_object_of_list(folder):
    (folder / "l.json").write_text("[]")
    return read_object(folder / "l.json")


@given(st.lists(st.dictionaries(st.text(min_size=1), st.text() | st.integers() | st.none()), min_size=2, max_size=5))
def test_lines_and_list_read_alike(tmp_path_factory, records):
    folder = tmp_path_factory.mktemp("rows")
    (folder / "a.jsonl").write_text("\n".join(json.dumps(r) for r in records))
    (folder / "b.json").write_text(json.dumps(records))
    assert read(folder / "a.jsonl")[0] == read(folder / "b.json")[0] == records
