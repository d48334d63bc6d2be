"""Single files: whole or not at all, and one readable error."""

import os
from pathlib import Path

import pytest

from noisyjax.errors import RunError
from noisyjax.store import open_folder, write_text


def test_a_text_makes_its_folder_and_replaces_the_old_one(tmp_path):
    out = tmp_path / "new" / "page.html"
    assert write_text(out, "ä\n") == out
    write_text(out, "cut \ud83d here\n")  # half a surrogate pair, as models give them
    assert out.read_bytes() == b"cut ? here\n"
    assert list(out.parent.iterdir()) == [out]


def test_a_text_that_cannot_be_written_leaves_the_old_one(tmp_path, monkeypatch):
    out = tmp_path / "page.html"
    write_text(out, "old")

    def full(fd):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RunError, match=r"could not write .*page\.html: No space left on device"):
        write_text(out, "new")
    assert out.read_text() == "old"
    assert list(tmp_path.iterdir()) == [out]
    with pytest.raises(RunError, match="could not write"):
        write_text(out / "inside.html", "new")


def test_what_is_no_file_stays_what_it_is(tmp_path):
    target, link, pipe = tmp_path / "target", tmp_path / "link", tmp_path / "pipe"
    link.symlink_to(target)
    assert write_text(link, "new") == link
    assert link.is_symlink()
    assert target.read_text() == "new"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_text(pipe, "new")
        assert os.read(reader, 9) == b"new"
    finally:
        os.close(reader)
    assert pipe.is_fifo()
    with pytest.raises(RunError, match=r"could not write .*: Is a directory"):
        write_text(tmp_path, "new")


def test_what_cannot_be_read_is_told_in_one_line(tmp_path, monkeypatch):
    (tmp_path / "manifest.json").mkdir()
    folder = open_folder(tmp_path)
    assert folder.read("manifest.json") is None  # a folder of that name is no such file
    (tmp_path / "link").symlink_to("link")
    with pytest.raises(RunError, match=r"could not read .*link: Too many levels of symbolic links"):
        folder.read("link")
    assert folder.children() == ["manifest.json"]

    def locked(path):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "iterdir", locked)
    for listed in (folder.names, folder.children):
        with pytest.raises(RunError, match=r"could not read .*: Permission denied"):
            listed()
