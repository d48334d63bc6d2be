"""The metric log: absent is null, a resumed run's later steps are gone, and no text ends a run."""

from noisyjax.train.watch.log import LogConfig, MetricLog, read_metrics, read_samples

QUIET = LogConfig(tensorboard=False)


def test_what_is_no_number_is_null(tmp_path):
    with MetricLog(tmp_path, QUIET, None, {}) as log:
        log.write(1, {"a": 1.5, "b": None, "c": float("nan"), "d": float("inf")})
    assert read_metrics(tmp_path) == [{"step": 1, "a": 1.5, "b": None, "c": None, "d": None}]


def test_half_a_character_does_not_end_a_run(tmp_path):
    with MetricLog(tmp_path, QUIET, None, {}) as log:
        log.samples(1, [{"completion": "half \ud800 a character", "whole": "größer 文"}])
    (row,) = read_samples(tmp_path)
    assert row == {"step": 1, "completion": "half ? a character", "whole": "größer 文"}


def test_going_on_from_a_step_drops_the_later_lines(tmp_path):
    with MetricLog(tmp_path, QUIET, None, {}) as log:
        for step in (1, 2, 3):
            log.write(step, {"a": float(step)})
            log.samples(step, [{"completion": str(step)}])
    with MetricLog(tmp_path, QUIET, 1, {}) as log:
        log.write(2, {"a": 20.0})
    assert [line["a"] for line in read_metrics(tmp_path)] == [1.0, 20.0]
    assert [row["completion"] for row in read_samples(tmp_path)] == ["1"]
