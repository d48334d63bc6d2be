"""Three formats, one set of records: round trips, broken rows, shards, fingerprints."""

import builtins
import json

import pytest
from array_record.python.array_record_module import ArrayRecordWriter
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from noisyjax.errors import UsageError
from noisyjax.instruct import ChatRecord, InstructRecord, open_files, parse_chat, parse_instruct, write_records
from noisyjax.instruct.shards import FORMATS, JsonLines, parse_json
from noisyjax.records import Unit

ROW = {"id": "a", "question": "q", "answers": ["x"], "domain": "d", "composition": "A|Q", "setting": "ND"}


def lines(path, *rows, end="\n"):
    """A JSON lines file; rows are dicts or raw bytes."""
    raw = [row if isinstance(row, bytes) else json.dumps(row).encode() for row in rows]
    path.write_bytes(b"\n".join(raw) + end.encode())
    return path


def load(*paths, **options):
    return open_files([str(path) for path in paths], parse_instruct, **options)


def attempt(*paths, **options):
    """(complaint, records): one of the two is empty."""
    try:
        return "", load(*paths, **options)
    except UsageError as error:
        return str(error), ()


@pytest.mark.parametrize("suffix", FORMATS)
class TestFormats:
    def test_records_come_back_as_they_were(self, tmp_path, records, suffix):
        path = tmp_path / f"set{suffix}"
        assert write_records(path, iter(records)) == len(records)
        read = load(path)
        assert list(read) == records
        assert read[2:4] == records[2:4]
        assert read.bad == ()
        assert [p.name for p in tmp_path.iterdir()] == [path.name], "nothing half-written stays behind"

    def test_chats_come_back_as_they_were(self, tmp_path, suffix):
        chats = [
            ChatRecord("c1", (("system", "Be brief."), ("user", "hi"), ("assistant", "hello"))),
            ChatRecord("c2", (("user", "a\u2028b"), ("assistant", "c")), {"source": "made up"}),
        ]
        path = tmp_path / f"chat{suffix}"
        write_records(path, chats)
        assert list(open_files([str(path)], parse_chat)) == chats

    @pytest.mark.parametrize("name", ["set-{n:05d}-of-00003{suffix}", "set{suffix}-{n:05d}-of-00003", "{n}{suffix}"])
    def test_shards_of_a_folder_are_read_in_order(self, tmp_path, make_record, suffix, name):
        for n in (1, 0, 2):
            file = tmp_path / name.format(n=n, suffix=suffix)
            write_records(file, [make_record(f"{n}/{i}") for i in range(3)])
        (tmp_path / "README.md").write_text("not data")
        read = load(tmp_path)
        assert [record.id for record in read] == [f"{n}/{i}" for n in range(3) for i in range(3)]
        names = [name.format(n=n, suffix=suffix) for n in range(3)]
        assert [read.where(i).split()[0].split(":")[0] for i in (0, 3, 8)] == names

    def test_a_broken_row_is_named_with_its_file_and_place(self, tmp_path, make_record, suffix):
        good = [make_record(f"r{i}") for i in range(3)]
        path = tmp_path / f"set{suffix}"
        write_records(path, [good[0], _Broken({**ROW, "id": "b", "setting": "RX"}), good[1], good[2]])
        place = "set.jsonl:2" if suffix == ".jsonl" else f"set{suffix} record 2"
        with pytest.raises(UsageError, match="1 of 4 records cannot be used") as raised:
            load(path)
        assert f"{place}: setting: unknown setting 'RX'" in str(raised.value)
        assert "skip_bad=true" in str(raised.value)
        read = load(path, skip_bad=True)
        assert list(read) == good
        assert len(read.bad) == 1
        assert read.bad[0].startswith(place)
        assert read.where(1).endswith("3"), "numbers are those of the file"

    def test_an_id_that_occurs_twice_is_a_broken_row(self, tmp_path, make_record, suffix):
        path = tmp_path / f"set{suffix}"
        write_records(path, [make_record("a"), make_record("b"), make_record("a", domain="other")])
        with pytest.raises(UsageError, match=r"3: the id 'a' is that of set.*1 too"):
            load(path)
        assert [record.id for record in load(path, skip_bad=True)] == ["a", "b"]

    def test_a_file_cut_short_never_passes_for_a_smaller_set(self, tmp_path, make_record, suffix):
        path = tmp_path / f"set{suffix}"
        whole = [make_record(f"r{i}") for i in range(5)]
        write_records(path, whole)
        raw = path.read_bytes()
        for cut in (0, 10, len(raw) // 2):
            path.write_bytes(raw[:cut])
            with pytest.raises(UsageError, match=f"set{suffix}"):
                load(path)
        path.write_bytes(raw[:-2])
        complaint, read = attempt(path)
        assert f"set{suffix}" in complaint or list(read) == whole, "ArrayRecord ends in padding"


class _Broken:
    """Writes itself as a row that no record would make."""

    def __init__(self, row):
        self._row = row

    def row(self):
        return self._row


def test_a_flipped_bit_in_array_record_names_the_record(tmp_path, make_record):
    path = tmp_path / "set.array_record"
    writer = ArrayRecordWriter(str(path), "group_size:1,uncompressed")
    for i in range(4):
        writer.write(json.dumps(make_record(f"unusual-{i}").row()).encode())
    writer.close()
    raw = bytearray(path.read_bytes())
    raw[raw.index(b"unusual-2")] ^= 0xFF
    path.write_bytes(bytes(raw))
    with pytest.raises(UsageError, match=r"set\.array_record record 3: damaged \("):
        load(path)
    assert [record.id for record in load(path, skip_bad=True)] == ["unusual-0", "unusual-1", "unusual-3"]


class TestJsonLines:
    def test_only_a_line_feed_ends_a_line(self, tmp_path):
        raw = json.dumps({**ROW, "question": "a\u2028b\u0085c\x0bd"}, ensure_ascii=False).encode()
        assert load(lines(tmp_path / "a.jsonl", raw))[0].question == "a\u2028b\u0085c\x0bd"

    @pytest.mark.parametrize("end", ["", "\n", "\n\n \n", "\r\n"])
    def test_ends_of_files(self, tmp_path, end):
        assert len(load(lines(tmp_path / "a.jsonl", ROW, end=end))) == 1

    def test_blank_lines_count_as_lines(self, tmp_path):
        rows = JsonLines(lines(tmp_path / "a.jsonl", b"", ROW, b"  \t" + b" " * 40, ROW, b" " * 40 + b"{}"))
        assert [rows.where(i) for i in range(len(rows))] == ["a.jsonl:2", "a.jsonl:4", "a.jsonl:5"]

    def test_a_byte_order_mark_is_no_fault(self, tmp_path):
        assert len(load(lines(tmp_path / "a.jsonl", b"\xef\xbb\xbf" + json.dumps(ROW).encode()))) == 1

    @pytest.mark.parametrize(
        ("line", "message"),
        [
            (b'{"id": "a"', "a.jsonl:2: not valid JSON"),
            (b'{"id": "\xff"}', "a.jsonl:2: not UTF-8 (byte 8)"),
            (b"[1]", "a.jsonl:2: an object was expected, found a list"),
            (b"null", "found a NoneType"),
            (b'{"meta": {"x": NaN}}', "NaN is not JSON"),
            (b"[" * 100_000, "not valid JSON"),
            (b'{"id": ' + b"9" * 10_000 + b"}", "not valid JSON"),
            ('{"id": "a"}'.encode("utf-16"), "not UTF-8"),
        ],
    )
    def test_broken_lines(self, tmp_path, line, message):
        path = lines(tmp_path / "a.jsonl", ROW, line)
        with pytest.raises(UsageError) as raised:
            load(path)
        assert message in str(raised.value)
        assert len(load(path, skip_bad=True)) == 1

    @settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(st.lists(st.one_of(st.binary(max_size=40), st.sampled_from([json.dumps(ROW).encode(), b"{}", b""]))))
    def test_any_bytes_give_records_or_a_readable_error(self, tmp_path, pieces):
        raw = b"\n".join(pieces)
        path = tmp_path / "any.jsonl"
        path.write_bytes(raw)
        complaint, read = attempt(path, skip_bad=True)
        if complaint:
            assert "any.jsonl" in complaint
            return
        sound = [piece for piece in raw.removeprefix(b"\xef\xbb\xbf").split(b"\n") if piece.strip()]
        assert len(read) + len(read.bad) == len(sound)
        assert [r.id for r in read] == ["a"]

    @settings(max_examples=150, deadline=None)
    @given(st.binary(max_size=60) | st.text(max_size=40).map(str.encode))
    def test_the_parser_raises_nothing_but_its_own_error(self, raw):
        try:
            value = parse_json(raw, "here")
        except UsageError as error:
            value = str(error)
        assert isinstance(value, dict) or value.startswith("here: ")


text = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20).filter(str.strip)
json_values = st.recursive(st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
                           | st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
                           lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
                           max_leaves=6)  # fmt: skip
turns = st.lists(text, min_size=2, max_size=2).map(lambda t: (("user", t[0]), ("assistant", t[1])))


@st.composite
def any_record(draw):
    kind = draw(st.sampled_from(["ND", "RD", "RC", "HN"]))
    ids = draw(st.lists(text, unique=True, min_size=1, max_size=3)) if kind != "ND" else []
    said = [draw(turns) if kind == "RC" and draw(st.booleans()) else () for _ in ids]
    hint = draw(st.none() | text)
    shows = hint is not None and draw(st.booleans())
    return InstructRecord(
        id=draw(text),
        question=draw(text),
        answers=tuple(draw(st.lists(text, min_size=1, max_size=3))),
        hint=hint,
        distractors=tuple(Unit(i, kind, draw(text), t) for i, t in zip(ids, said, strict=True)),
        domain=draw(text),
        composition="A|Q" + (",D" if ids else "") + (",H" if shows else ""),
        setting=kind,
        meta=draw(st.dictionaries(text, json_values, max_size=3)),
    )


@pytest.mark.parametrize("suffix", FORMATS)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(made=st.lists(any_record(), min_size=1, max_size=4, unique_by=lambda record: record.id))
def test_any_record_survives_any_format(tmp_path, suffix, made):
    path = tmp_path / f"set{suffix}"
    write_records(path, made)
    assert list(load(path)) == made


class TestNames:
    def test_what_is_not_there_names_the_nearest(self, tmp_path):
        lines(tmp_path / "train.jsonl", ROW)
        with pytest.raises(UsageError, match=r"no such file or folder\. did you mean 'train.jsonl'"):
            load(tmp_path / "trian.jsonl")

    def test_folders_that_cannot_be_read(self, tmp_path):
        with pytest.raises(UsageError, match="no file that can be read"):
            load(tmp_path)
        lines(tmp_path / "a.jsonl", ROW)
        (tmp_path / "a.parquet").write_bytes(b"x")
        with pytest.raises(UsageError, match=r"both \.jsonl and \.parquet"):
            load(tmp_path)

    def test_a_missing_shard_is_named(self, tmp_path):
        for n in (0, 2):
            lines(tmp_path / f"set-{n:05d}-of-00003.jsonl", {**ROW, "id": f"r{n}"})
        with pytest.raises(UsageError, match=r"1 of 3 shards are missing \(set-00001-of-00003\.jsonl\)"):
            load(tmp_path)

    @pytest.mark.parametrize("name", ["x.csv", "x.json", "x"])
    def test_unknown_formats(self, tmp_path, name, make_record):
        (tmp_path / name).write_text("{}")
        with pytest.raises(UsageError, match="unknown format"):
            load(tmp_path / name)
        with pytest.raises(UsageError, match="unknown format"):
            write_records(tmp_path / name, [make_record()])

    def test_other_complaints(self, tmp_path):
        path = lines(tmp_path / "a.jsonl", ROW)
        with pytest.raises(UsageError, match="named twice"):
            load(path, path)
        with pytest.raises(UsageError, match="copy it to a local disk"):
            load("gs://bucket/x.jsonl")
        with pytest.raises(UsageError, match="no training data"):
            load()
        with pytest.raises(UsageError, match="needs check=true"):
            load(path, skip_bad=True, check=False)
        with pytest.raises(UsageError, match="no record can be used"):
            load(lines(tmp_path / "b.jsonl", {}, {}), skip_bad=True)
        with pytest.raises(UsageError, match="no record to write"):
            write_records(tmp_path / "none.jsonl", [])
        assert not (tmp_path / "none.jsonl").exists()


def test_without_the_first_reading_a_broken_row_is_met_when_it_is_read(tmp_path):
    read = load(lines(tmp_path / "a.jsonl", ROW, {"id": "b"}), check=False)
    assert read[0].id == "a"
    with pytest.raises(UsageError, match=r"a\.jsonl:2"):
        read[1]


def test_a_write_that_fails_leaves_the_old_file(tmp_path, make_record):
    path = tmp_path / "set.jsonl"
    write_records(path, [make_record("old")])

    def failing():
        yield make_record("new")
        raise RuntimeError("the source broke")

    with pytest.raises(RuntimeError, match="the source broke"):
        write_records(path, failing())
    assert [record.id for record in load(path)] == ["old"]
    assert [p.name for p in tmp_path.iterdir()] == ["set.jsonl"]


class TestFingerprint:
    def test_it_follows_the_bytes_and_not_the_place(self, tmp_path, make_record):
        here, there = tmp_path / "here", tmp_path / "there"
        for folder in (here, there):
            write_records(folder / "set.jsonl", [make_record("a"), make_record("b")])
        assert load(here).fingerprint == load(there / "set.jsonl").fingerprint

    def test_any_change_shows(self, tmp_path):
        seen = {
            load(lines(tmp_path / "a.jsonl", *rows), skip_bad=skip).fingerprint
            for rows, skip in [
                ([ROW, {**ROW, "id": "b"}], False),
                ([{**ROW, "id": "b"}, ROW], False),
                ([ROW, {**ROW, "id": "c"}], False),
                ([ROW, {**ROW, "id": "b", "meta": {"x": 1}}], False),
                ([ROW, {**ROW, "id": "b"}, {}], True),
            ]
        }
        assert len(seen) == 5

    def test_rows_left_out_move_the_order_and_so_count(self, tmp_path):
        path = lines(tmp_path / "a.jsonl", ROW, {}, {**ROW, "id": "b"})
        assert load(path, skip_bad=True).fingerprint != load(path, check=False).fingerprint


@pytest.mark.parametrize(
    ("module", "suffix"), [("pyarrow", ".parquet"), ("grain", ".array_record"), ("array_record", ".array_record")]
)
def test_a_missing_extra_is_one_line(monkeypatch, tmp_path, make_record, module, suffix):
    path = tmp_path / f"set{suffix}"
    write_records(path, [make_record()])
    real = builtins.__import__

    def without(name, *args, **kwargs):
        if name.split(".")[0] == module:
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(UsageError, match=r"needs the extra: pip install 'noisyjax\[train\]'"):
        load(path) if module != "array_record" else write_records(path, [make_record()])
