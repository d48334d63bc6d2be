"""A sample is durable before it counts as done; nothing stored is ever harmed."""

import errno
import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from noisyjax.errors import RunError, UsageError
from noisyjax.records import Completion, Finish, Score, State
from noisyjax.store import Key, Manifest, RunReader, RunWriter, check_model, model_identity, open_readers
from noisyjax.store.folder import open_folder


def manifest(**config) -> Manifest:
    return Manifest(config={"name": "t", **config}, config_hash="h", model={"weights": "w"}, tasks={"aime25": 1})


def completion(i: int, text: str = "x", finish: Finish = Finish.STOP) -> Completion:
    return Completion("r", i, text, finish)


def fill(run: RunWriter, numbers) -> None:
    for i in numbers:
        run.put_sample(Key("c", f"q{i}", 0), "p", completion(i, f"text {i}"))


@pytest.fixture(params=["local", "memory"])
def url(request, tmp_path) -> str:
    """A fresh run address on each kind of storage."""
    if request.param == "local":
        return str(tmp_path / "run")
    return f"memory://{tmp_path.name}/run"


def test_resume_knows_what_is_done(url):
    with RunWriter.open(url, manifest(), "name: t\n") as run:
        fill(run, range(5))
    with RunWriter.open(url, manifest(), "") as run:
        assert run.done == {Key("c", f"q{i}", 0) for i in range(5)}
        fill(run, range(5, 150))
    texts = [r["text"] for r in RunReader(open_folder(url)).records("samples")]
    assert texts == [f"text {i}" for i in range(150)]
    assert open_folder(url).read("config.resolved.yaml") == b"name: t\n"


def test_a_failed_sample_is_not_done_and_never_hides_a_success(url):
    key = Key("c", "q", 0)
    with RunWriter.open(url, manifest(), "") as run:
        run.put_sample(key, "p", completion(0, "", Finish.ERROR))
    with RunWriter.open(url, manifest(), "") as run:
        assert key not in run.done
        run.put_sample(key, "p", completion(0, "good"))
        run.put_sample(key, "p", completion(0, "", Finish.ERROR))
    reader = RunReader(open_folder(url))
    assert reader.latest("samples")[key]["text"] == "good"


def test_another_config_is_refused_by_name(url):
    with RunWriter.open(url, manifest(temperature=0.0, engine={"dtype": "float32"}), ""):
        pass
    with pytest.raises(UsageError) as caught:
        RunWriter.open(url, manifest(temperature=0.6, engine={"dtype": "bfloat16"}), "")
    assert "engine.dtype: was 'float32', now 'bfloat16'" in str(caught.value)
    assert "temperature: was 0.0, now 0.6" in str(caught.value)
    # the refusal gave the lock back
    RunWriter.open(url, manifest(temperature=0.0, engine={"dtype": "float32"}), "").close()


def test_two_writers_do_not_mix(url):
    with RunWriter.open(url, manifest(), "") as run:
        with pytest.raises(RunError, match=f"process {os.getpid()}"):
            RunWriter.open(url, manifest(), "")
        RunReader(open_folder(url))  # reading is always allowed
        fill(run, [1])
    RunWriter.open(url, manifest(), "").close()


def test_stale_lock_is_taken_over_aloud(url):
    RunWriter.open(url, manifest(), "").close()
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    import socket

    folder = open_folder(url)
    holder = {"host": socket.gethostname(), "pid": gone.pid, "born": "1"}
    folder.write("lock.json", json.dumps(holder).encode())
    said: list[str] = []
    RunWriter.open(url, manifest(), "", said.append).close()
    assert f"process {gone.pid}" in said[0]
    # a living holder on another host is left alone
    folder.write("lock.json", json.dumps({**holder, "host": "elsewhere"}).encode())
    with pytest.raises(RunError, match="on elsewhere"):
        RunWriter.open(url, manifest(), "")


def test_lock_that_was_lost_stops_the_writer(url, monkeypatch):
    from noisyjax.store import lock

    monkeypatch.setattr(lock, "RENEW_SECONDS", 0.0)
    run = RunWriter.open(url, manifest(), "")
    fill(run, range(70))
    folder = open_folder(url)
    folder.write("lock.json", json.dumps({"host": "elsewhere", "pid": 7, "born": "1"}).encode())
    with pytest.raises(RunError, match="belongs to process 7 on elsewhere"):
        fill(run, range(70, 140))
    run.close(flush=False)
    assert folder.read("lock.json") is not None  # the other's lock is left alone


def test_many_at_once_leave_one_writer(tmp_path):
    code = (
        "import sys; sys.path.insert(0, sys.argv[2])\n"
        "from noisyjax.store import Manifest, RunWriter\n"
        "from noisyjax.errors import RunError\n"
        "m = Manifest(config={}, config_hash='h', model={}, tasks={})\n"
        "sys.stdin.readline()\n"
        "try:\n    run = RunWriter.open(sys.argv[1], m, '')\n    print('won', flush=True)\n    sys.stdin.readline()\n"
        "    run.close()\nexcept RunError:\n    print('lost', flush=True)\n"
    )
    repo = str(Path(__file__).resolve().parents[2])
    command = [sys.executable, "-c", code, str(tmp_path / "run"), repo]
    children = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    for process in children:
        process.stdin.write("go\n")
        process.stdin.flush()
    said = [process.stdout.readline().strip() for process in children]
    for process in children:
        process.communicate("end\n")
    assert sorted(said) == ["lost", "lost", "lost", "won"]


def test_same_pid_again_is_another_process(url):
    RunWriter.open(url, manifest(), "").close()
    import socket

    holder = {"host": socket.gethostname(), "pid": os.getpid(), "born": "long ago"}
    open_folder(url).write("lock.json", json.dumps(holder).encode())
    RunWriter.open(url, manifest(), "", lambda _: None).close()


@pytest.mark.parametrize("cut", [1, 5, 30])
def test_half_written_last_line_is_redone(tmp_path, cut):
    with RunWriter.open(tmp_path, manifest(), "") as run:
        fill(run, range(3))
    path = tmp_path / "samples.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole[:-cut])
    assert len(list(RunReader(open_folder(tmp_path)).records("samples"))) == 2
    with RunWriter.open(tmp_path, manifest(), "") as run:
        assert Key("c", "q2", 0) not in run.done
        fill(run, [2])
    assert path.read_bytes() == whole


@pytest.mark.parametrize("line", [b"{garbage", b"\xff\x00", b"[]", b'{"cell": "c"}'])
def test_broken_line_in_the_middle_is_named(tmp_path, line):
    with RunWriter.open(tmp_path, manifest(), "") as run:
        fill(run, range(3))
    path = tmp_path / "samples.jsonl"
    lines = path.read_bytes().split(b"\n")
    lines[1] = line
    path.write_bytes(b"\n".join(lines))
    with pytest.raises(RunError, match="line 2 of the log 'samples'"):
        list(RunReader(open_folder(tmp_path)).records("samples"))


def test_odd_line_ends_inside_texts(url):
    text = "a\u2028b\x85c\r\nd\x0be"
    with RunWriter.open(url, manifest(), "") as run:
        run.put_sample(Key("c", "q", 0), "p", completion(0, text))
    assert next(RunReader(open_folder(url)).records("samples"))["text"] == text


def test_full_disk_harms_nothing(tmp_path, monkeypatch):
    real = os.write
    budget = 700

    def small_disk(fd, data):
        nonlocal budget
        if budget <= 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        done = real(fd, bytes(data)[:budget])
        budget -= done
        return done

    def run_until_full():
        with RunWriter.open(tmp_path, manifest(), "") as run:
            monkeypatch.setattr(os, "write", small_disk)
            fill(run, range(100))

    with pytest.raises(RunError) as caught:
        run_until_full()
    assert caught.value.exit_code == 1
    assert "No space left on device" in str(caught.value)
    assert "run the same command again" in str(caught.value)
    monkeypatch.setattr(os, "write", real)
    stored = [r["text"] for r in RunReader(open_folder(tmp_path)).records("samples")]
    assert 0 < len(stored) < 100
    with RunWriter.open(tmp_path, manifest(), "") as run:
        assert len(run.done) == len(stored)
        fill(run, range(len(stored), 100))
    assert [r["text"] for r in RunReader(open_folder(tmp_path)).records("samples")] == [f"text {i}" for i in range(100)]


_CHILD = """
import resource, sys
sys.path.insert(0, {repo!r})
from noisyjax.store import Key, Manifest, RunWriter
from noisyjax.records import Completion, Finish
limit = int(sys.argv[2])
manifest = Manifest(config={{"name": "t"}}, config_hash="h", model={{"weights": "w"}}, tasks={{"aime25": 1}})
run = RunWriter.open(sys.argv[1], manifest, "")
if limit:
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
i = len(run.done)
while True:
    run.put_sample(Key("c", f"q{{i}}", 0), "p", Completion("r", i, f"text {{i}}", Finish.STOP))
    print(i, flush=True)
    i += 1
"""


def child(tmp_path: Path, limit: int = 0) -> subprocess.Popen:
    repo = str(Path(__file__).resolve().parents[2])
    code = textwrap.dedent(_CHILD.format(repo=repo))
    pipe = subprocess.PIPE
    return subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path), str(limit)], stdout=pipe, stderr=pipe, text=True
    )


def test_kill_9_keeps_everything_that_was_reported(tmp_path):
    said: list[str] = []
    for round in (1, 2):
        process = child(tmp_path)
        assert process.stdout is not None
        reported = [int(process.stdout.readline()) for _ in range(20)][-1]
        process.kill()
        process.communicate()
        with RunWriter.open(tmp_path, manifest(), "", said.append) as run:
            assert {Key("c", f"q{i}", 0) for i in range(reported + 1)} <= run.done
            assert len(said) == round  # the dead writer's lock was taken over
    stored = [r["text"] for r in RunReader(open_folder(tmp_path)).records("samples")]
    assert stored == [f"text {i}" for i in range(len(stored))]


def test_real_file_size_limit(tmp_path):
    process = child(tmp_path, limit=4000)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "RunError" in err
    assert "File too large" in err
    stored = [r["text"] for r in RunReader(open_folder(tmp_path)).records("samples")]
    assert stored == [f"text {i}" for i in range(len(stored))]
    assert (tmp_path / "samples.jsonl").read_bytes().endswith(b"\n")


def test_scores_are_replaced_at_once(url):
    key = Key("c", "q", 0)
    with RunWriter.open(url, manifest(), "") as run:
        run.put_sample(key, "p", completion(0))
        run.put_score(key, Score(State.SCORED, 0.0))
    with RunWriter.reopen(url) as run:
        run.replace_scores([(key, Score(State.SCORED, 1.0))])
        run.put_score(Key("c", "q2", 0), Score(State.SCORED, 0.5))
    with RunWriter.reopen(url) as run:
        run.replace_scores([(key, Score(State.SCORED, 0.25))])
    reader = RunReader(open_folder(url))
    assert [r["value"] for r in reader.records("scores")] == [0.25]
    assert len(list(reader.records("samples"))) == 1


def test_texts_and_prompts_are_stored_once(url):
    for _ in range(2):
        with RunWriter.open(url, manifest(), "") as run:
            run.put_once("texts", {"id": "t", "text": "long text"})
            run.put_once("prompts", {"id": "p", "messages": [["user", [["t", "question", None]]]]})
    reader = RunReader(open_folder(url))
    assert len(list(reader.records("texts"))) == len(list(reader.records("prompts"))) == 1


def test_segment_of_a_writer_that_died_before_listing_it(tmp_path):
    url = f"memory://{tmp_path.name}/run"
    with RunWriter.open(url, manifest(), "") as run:
        fill(run, range(3))
    folder = open_folder(url)
    first = folder.read("samples/g0-000001.jsonl")
    folder.write("samples/g0-000002.jsonl", first.replace(b'"q', b'"k').replace(b'"kuestion', b'"question'))
    with RunWriter.open(url, manifest(), "") as run:
        assert len(run.done) == 6
        fill(run, [9])
    assert len(list(RunReader(folder).records("samples"))) == 7
    folder.delete("samples/g0-000001.jsonl")
    with pytest.raises(RunError, match=r"g0-000001\.jsonl should be \d+ bytes, but is missing"):
        list(RunReader(folder).records("samples"))


def test_lost_connection_to_an_object_store(tmp_path, monkeypatch):
    url = f"memory://{tmp_path.name}/run"
    from fsspec.implementations.memory import MemoryFileSystem

    class ServerDisconnectedError(Exception):
        """As aiohttp raises it: no OSError."""

    def gone(*_, **__):
        raise ServerDisconnectedError("connection reset")

    run = RunWriter.open(url, manifest(), "")
    fill(run, range(70))  # one full segment, six waiting
    monkeypatch.setattr(MemoryFileSystem, "pipe_file", gone)
    with pytest.raises(RunError, match="connection reset"):
        run.flush()
    monkeypatch.undo()
    run.close(flush=False)
    with RunWriter.open(url, manifest(), "") as again:
        assert len(again.done) == 64


def test_not_a_run_names_the_nearest(tmp_path):
    RunWriter.open(tmp_path / "smollm", manifest(), "").close()
    with pytest.raises(UsageError, match="did you mean 'smollm'"):
        open_readers(tmp_path / "smolm")
    with pytest.raises(UsageError, match="is not a run"):
        RunWriter.reopen(tmp_path / "x")
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="a file is in the way"):
        RunWriter.open(tmp_path / "file", manifest(), "")


def test_shards_are_read_as_one(tmp_path):
    for shard in ("shard-1-of-2", "shard-2-of-2"):
        with RunWriter.open(tmp_path / shard, manifest(), "") as run:
            fill(run, [1])
    assert len(open_readers(tmp_path)) == 2


def test_a_model_that_is_not_there_is_told_by_its_key(tmp_path):
    (tmp_path / "Qwen3-4B").mkdir()
    (tmp_path / "Qwen3-4B" / "config.json").write_text("{}")
    check_model("model", tmp_path / "Qwen3-4B")
    with pytest.raises(UsageError, match=r"^reference=.*4b is not a model folder: .*; did you mean 'Qwen3-4B'\?$"):
        check_model("reference", tmp_path / "Qwen3-4b")


def test_model_identity_changes_with_what_matters(tmp_path):
    with pytest.raises(UsageError, match=r"no config\.json"):
        model_identity(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"123")
    first = model_identity(tmp_path)
    assert first == model_identity(tmp_path)
    assert str(tmp_path) not in json.dumps(first)
    (tmp_path / "model.safetensors").write_bytes(b"1234")
    second = model_identity(tmp_path)
    assert first["weights"] != second["weights"]
    assert first["config"] == second["config"]
    (tmp_path / "chat_template.jinja").write_text("x")
    assert model_identity(tmp_path)["tokenizer"] != second["tokenizer"]
