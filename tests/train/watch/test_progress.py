"""The line that is seen while a model trains."""

from noisyjax.train.watch.progress import TrainProgress

FIGURES = {"loss": 0.25, "reward/total": None, "length/mean": 12.4, "sample/truncated": 0.5, "unknown": 1.0}


def test_plain_lines_say_step_figures_and_time_left(capsys):
    now = [0.0]
    with TrainProgress("mine", total=10, done=4, clock=lambda: now[0]) as progress:
        for number in range(5, 9):
            with progress.stage("update"):
                now[0] += 10.0
            progress.step(number, FIGURES)
    said = capsys.readouterr().err.splitlines()
    figures = "loss 0.2500, 12 tokens, 50% cut"
    assert said == [
        "mine: step 4 of 10",
        f"mine: step 6/10, {figures}, about 40 s left",
        f"mine: step 8/10, {figures}, about 20 s left",
        f"mine: step 8/10, {figures}, about 20 s left",  # the end, whatever was said before
    ]


def test_the_first_step_which_compiles_is_not_the_pace(capsys):
    now = [0.0]
    with TrainProgress("mine", total=100, done=0, clock=lambda: now[0]) as progress:
        for number, seconds in ((1, 200.0), (2, 20.0), (3, 10.0)):
            now[0] += seconds
            progress.step(number, FIGURES)
    said = capsys.readouterr().err.splitlines()
    assert "left" not in said[1]  # nothing is known yet
    assert said[2].endswith("about 32 min 40 s left")  # 98 steps of 20 s
    assert said[3].endswith("about 24 min 15 s left")  # 97 steps of 15 s


def test_live_line_on_a_terminal(monkeypatch, capsys):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "120")
    with TrainProgress("mine [x]", total=2, done=0) as progress:
        with progress.stage("rollout"):
            progress.say("reward_fn failed: \x1b]0;title\x07 [not markup]")
        progress.step(1, FIGURES)
    err = capsys.readouterr().err
    for words in ("mine [x]", "␛]0;title␇ [not markup]", "1/2", "loss 0.2500"):
        assert words in err, words


def test_an_error_is_not_followed_by_a_line_of_success(capsys):
    try:
        with TrainProgress("mine", total=2, done=0) as progress:
            progress.step(1, FIGURES)
            raise OSError
    except OSError:
        pass
    assert capsys.readouterr().err.splitlines() == ["mine: step 0 of 2"]
