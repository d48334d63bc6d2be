"""`noisyjax eval` with as few words as it takes."""

import pytest

from noisyjax.cli import main
from noisyjax.evaluate import run as room


def test_a_config_needs_no_overrides(tmp_path, monkeypatch):
    file = tmp_path / "mine.yaml"
    file.write_text("name: mine\nengine: {kind: local, model: somewhere}\n")
    ran = []
    monkeypatch.setattr(room, "evaluate", ran.append)
    with pytest.raises(SystemExit) as ended:
        main(["eval", str(file), "--no-table"])
    assert ended.value.code == 0
    assert [config.name for config in ran] == ["mine"]


def test_an_empty_config_says_what_is_missing(tmp_path, capsys):
    file = tmp_path / "empty.yaml"
    file.write_text("")
    with pytest.raises(SystemExit) as ended:
        main(["eval", str(file)])
    assert ended.value.code == 2
    assert "engine: required, but missing" in capsys.readouterr().err
