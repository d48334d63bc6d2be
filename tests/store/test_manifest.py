"""Where a run may begin, and what becomes of one whose manifest is not what it was."""

import json
import os

import pytest

from noisyjax.errors import UsageError
from noisyjax.records import Completion, Finish
from noisyjax.store import Key, Manifest, RunReader, RunWriter, open_readers
from noisyjax.store.folder import open_folder


def manifest() -> Manifest:
    return Manifest(config={"name": "t"}, config_hash="h", model={"weights": "w"}, tasks={"aime25": 1})


def put_one(run: RunWriter) -> None:
    run.put_sample(Key("c", "q", 0), "p", Completion("r", 0, "x", Finish.STOP))


@pytest.fixture(params=["local", "memory"])
def url(request, tmp_path) -> str:
    """A fresh run address on each kind of storage."""
    return str(tmp_path / "run") if request.param == "local" else f"memory://{tmp_path.name}/run"


def test_a_folder_that_is_no_run_is_left_alone(url):
    folder = open_folder(url)
    for i in range(5):
        folder.write(f"notes{i}.txt", b"mine")
    with pytest.raises(
        UsageError, match=r"not empty and holds no run \(notes0.txt, notes1.txt, notes2.txt and 2 more\)"
    ):
        RunWriter.open(url, manifest(), "")
    assert folder.names() == [f"notes{i}.txt" for i in range(5)]


def test_a_run_that_has_lost_its_manifest_is_not_begun_again(url):
    with RunWriter.open(url, manifest(), "") as run:
        put_one(run)
    folder = open_folder(url)
    folder.delete("manifest.json")
    with pytest.raises(UsageError, match=r"samples of a run whose manifest\.json is lost: restore that file"):
        RunWriter.open(url, manifest(), "")


def test_what_a_killed_beginning_leaves_is_no_obstacle(url):
    """Killed before the manifest was written: the lock, the resolved config, a hidden half-written file."""
    folder = open_folder(url)
    for name in ("config.resolved.yaml", ".manifest.json.new"):
        folder.write(name, b"x")
    folder.write("lock.json", json.dumps({"host": os.uname().nodename, "pid": 2**22 + 1, "born": "1"}).encode())
    with RunWriter.open(url, manifest(), "", lambda _: None) as run:
        put_one(run)
        folder.write("report.html", b"beside a run anything may lie")
    RunWriter.open(url, manifest(), "").close()


REST = '"config": {}, "config_hash": "", "tasks": {}, "about": {}'
BROKEN = {
    "": "is empty",
    "{": r"is not valid JSON \(.*line 1",
    "[1, 2]": r"holds no JSON object but \[1, 2\]",
    "null": "holds no JSON object but null",
    "{}": "lacks 'format', 'config', 'config_hash', 'model', 'tasks', 'about'",
    f'{{{REST}, "format": "one", "model": []}}': "lacks 'format', 'model'",
    f'{{{REST}, "format": 1, "model": {{}}, "x": 1}}': "no manifest has: 'x'",
}


@pytest.mark.parametrize("text", BROKEN)
def test_a_broken_manifest_says_what_is_wrong_and_what_to_do(tmp_path, text):
    with RunWriter.open(tmp_path, manifest(), "") as run:
        put_one(run)
    (tmp_path / "manifest.json").write_text(text)
    for action in (lambda: open_readers(tmp_path), lambda: RunWriter.open(tmp_path, manifest(), "")):
        with pytest.raises(UsageError, match=f"{BROKEN[text]}.*restore this one file from a copy, or evaluate again"):
            action()
    assert (tmp_path / "manifest.json").read_text() == text
    assert not (tmp_path / "lock.json").exists()


def test_newer_format_is_refused(tmp_path):
    RunWriter.open(tmp_path, manifest(), "").close()
    path = tmp_path / "manifest.json"
    path.write_text(path.read_text().replace('"format": 1', '"format": 2'))
    with pytest.raises(UsageError, match="newer"):
        RunReader(open_folder(tmp_path))
