"""Buckets that refuse: one line that says what to do, whatever the client library calls it."""

import sys

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from noisyjax.errors import RunError, UsageError
from noisyjax.records import Completion, Finish
from noisyjax.store import Key, Manifest, RunReader, RunWriter
from noisyjax.store.folder import open_folder


class HttpError(Exception):
    """As a client library may have it: no OSError."""


class Refusing(MemoryFileSystem):
    """A memory store that reads, and answers with `failure` what is to be written once `left` is used up."""

    protocol = "refusing"
    failure: Exception = PermissionError()
    left = 0

    def pipe_file(self, path, value, mode="overwrite", **kwargs):
        if Refusing.left == 0:
            raise Refusing.failure
        Refusing.left -= 1
        super().pipe_file(path, value, mode, **kwargs)


@pytest.fixture
def url(tmp_path):
    fsspec.register_implementation("refusing", Refusing, clobber=True)
    return f"refusing://{tmp_path.name}/run"


def manifest() -> Manifest:
    return Manifest(config={"name": "t"}, config_hash="h", model={"weights": "w"}, tasks={"aime25": 1})


@pytest.mark.parametrize(
    ("failure", "says"),
    [
        (OSError("Forbidden: https://storage/b/acme-runs/o\nno storage.objects.create access"), "give this account"),
        (PermissionError(13, "Permission denied"), "give this account the right to read and write there"),
        (HttpError("Anonymous caller does not have credentials"), "give this account"),
        (FileNotFoundError("b/acme-runs"), "make the bucket"),
        (HttpError("connection reset"), "bring the connection back"),
    ],
)
def test_a_bucket_that_refuses(failure, says, url, monkeypatch):
    monkeypatch.setattr(Refusing, "failure", failure)
    monkeypatch.setattr(Refusing, "left", 0)
    with pytest.raises(RunError, match=says) as told, RunWriter.open(url, manifest(), ""):
        pass
    assert url in str(told.value)
    assert "run the same command again" in str(told.value)


def test_rights_that_are_lost_on_the_way(url, monkeypatch):
    """What was stored before is there, and the run goes on when they are back."""

    def run(name, left):
        monkeypatch.setattr(Refusing, "left", 1000)
        with RunWriter.open(url, manifest(), "") as run:
            monkeypatch.setattr(Refusing, "left", left)
            run.put_sample(Key("c", name, 0), "p", Completion("r", 0, f"text {name}", Finish.STOP))

    monkeypatch.setattr(Refusing, "failure", PermissionError(13, "Permission denied"))
    run("a", 1000)
    with pytest.raises(RunError, match="the right to read and write there"):
        run("b", 0)
    assert [r["text"] for r in RunReader(open_folder(url)).records("samples")] == ["text a"]
    run("c", 1000)
    assert [r["text"] for r in RunReader(open_folder(url)).records("samples")] == ["text a", "text c"]


def test_a_bucket_without_its_package_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "gcsfs", None)  # an import of it fails, as where it is not installed
    with pytest.raises(UsageError, match=r"gs://acme/run: .* pip install 'noisyjax\[gcs\]'"):
        open_folder("gs://acme/run")
    with pytest.raises(UsageError, match="nosuch://acme/run: this kind of storage cannot be opened"):
        open_folder("nosuch://acme/run")


def test_a_bucket_that_cannot_be_read_is_not_said_to_be_written(url, monkeypatch):
    def refused(*_, **__):
        raise HttpError("Anonymous caller does not have credentials")

    folder = open_folder(url)
    for name in ("cat_file", "ls"):
        monkeypatch.setattr(Refusing, name, refused)
    for read in (lambda: folder.read("manifest.json"), folder.children):
        with pytest.raises(RunError, match=r"could not read refusing://.*: Anonymous .* the right to read there"):
            read()
