r"""math-verify behind killable workers: verdicts, deadlines, threads, dead workers, and the table of known slips."""

import os
import subprocess
import sys
import threading
import time

import pytest

from noisyjax.scoring.math import MathPool, too_costly

SLOW = r"\left(9^{99999}\right)^{99999}"
"""Passes the cheap checks and then keeps a worker busy for hours."""


@pytest.fixture(scope="module")
def pool():
    with MathPool(deadline=20) as pool:
        yield pool


@pytest.mark.parametrize(
    ("gold", "answer", "value"),
    [
        (r"\frac{1}{2}", "0.5", True),
        (r"\frac{2}{3}", "2/3", True),
        ("1,000", "1000", True),
        ("x^2+1", "1+x^2", True),
        ("(1,2)", "(1,2)", True),
        ("(1,2)", "(1,3)", False),
        (r"\{1,2\}", "2,1", True),
        ("204", "204, 205", False),
        (r"\pm 2021", "2021", False),
        (r"336^\circ", "336", True),
        # False positives of the bare library, removed here.
        ("1/2004!", "1/2006!", False),
        (r"\frac{1}{2^{99}}", r"\frac{1}{2^{98}}", False),
        ("3*x-y+13=0", "3x+4y+14=0", False),
        # False positives that remain.
        (r"10\%", "10", True),
        (r"10\%", "0.1", True),
        ("5", "x=5", True),
        ("204", r"\{204\}", True),
        (r"\frac{1}{3}", "0.333333", True),
        # False negatives that remain: a judge may overturn them.
        ("3", "three", False),
        (r"\frac{100}{3}", "33.3", False),
        ("[1,2)", r"1 \le x < 2", False),
        (r"1 \le x < 2", "[1,2)", True),  # not symmetric: gold first
    ],
)
def test_verdicts(pool, gold, answer, value):
    assert pool.verify(gold=gold, answer=answer).value is value


def test_undecided_carries_a_reason(pool):
    verdict = pool.verify(gold="", answer="5")
    assert verdict.value is None
    assert "gold" in verdict.reason
    assert pool.verify(gold="5", answer="").value is False


@pytest.mark.parametrize(
    "tower",
    [
        "9^9^9^9",
        "9^{9^{9}}",
        "9**9**9",
        "10^(10^8)",
        "(2^10^6)!",
        "10^{100000000}",
        "1000000!",
        "(9!)!",
        "9!!",
        "1" * 5000,
    ],
)
def test_costly_expressions_are_not_even_tried(tower):
    assert too_costly(tower)
    verdict = MathPool().verify(gold="5", answer=tower)  # no worker is started for it
    assert verdict.value is None
    assert "not tried" in verdict.reason


@pytest.mark.parametrize(
    "fine", ["2^{2024}", "2^{2^{3}}", "e^{x^2}", "10^{100}", r"\frac{1}{2004!}", "x^{n^2}", "n!", "12345678"]
)
def test_ordinary_expressions_are_tried(fine):
    assert too_costly(fine) is None


def test_equal_texts_need_no_worker():
    assert MathPool().verify(gold="$9^9^9^9$", answer=" 9^9^9^9 ").value is True


def test_a_hanging_comparison_ends_at_the_deadline_and_the_next_one_works():
    with MathPool(deadline=2) as pool:
        assert pool.verify(gold="1/2", answer="0.5").value is True
        begun = time.monotonic()
        verdict = pool.verify(gold="5", answer=SLOW)
        assert time.monotonic() - begun < 6
        assert verdict.value is None
        assert "within 2 s" in verdict.reason
        assert pool.verify(gold="1/2", answer="0.5").value is True
        process = idle_worker(pool).process
    assert process.poll() is not None


def test_from_threads_sharing_one_worker(pool):
    """math-verify's own time-outs would raise in a thread and count everything as wrong."""
    verdicts = {}

    def ask(i):
        verdicts[i] = pool.verify(gold=f"{i}/2", answer=f"{i / 2}").value

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(1, 7)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert verdicts == dict.fromkeys(range(1, 7), True)


def idle_worker(pool):
    worker = pool._idle.get()
    pool._idle.put(worker)
    return worker


def test_a_worker_killed_from_outside_is_replaced(pool):
    assert pool.verify(gold="1/2", answer="0.5").value is True
    before = idle_worker(pool)
    before.process.kill()
    before.process.wait()
    assert pool.verify(gold="1/2", answer="0.5").value is True
    assert idle_worker(pool).process.pid != before.process.pid


@pytest.mark.slow
def test_a_worker_killed_during_its_task_costs_one_retry():
    with MathPool(deadline=3) as pool:
        assert pool.verify(gold="1/2", answer="0.5").value is True
        worker = idle_worker(pool)
        threading.Timer(0.5, worker.process.kill).start()
        verdict = pool.verify(gold="5", answer=SLOW)
        assert verdict.reason == "no verdict within 3 s"  # of the second worker


def test_workers_are_recycled():
    with MathPool(recycle=2) as pool:
        assert pool.verify(gold="1/2", answer="0.5").value is True
        process = idle_worker(pool).process
        assert pool.verify(gold="1/3", answer="2/6").value is True
        assert idle_worker(pool) is None
        assert process.poll() is not None


def test_a_worker_that_cannot_start_is_a_reason(tmp_path, monkeypatch):
    broken = tmp_path / "worker.py"
    broken.write_text("raise SystemExit(3)\n")
    monkeypatch.setattr("noisyjax.scoring.math._WORKER", broken)
    verdict = MathPool().verify(gold="1/2", answer="0.5")
    assert verdict.value is None
    assert "did not start" in verdict.reason


def test_the_shared_pool_does_not_outlive_an_unguarded_script(tmp_path):
    """No `if __name__ == "__main__"` guard: workers must not run the script again, nor keep it from ending."""
    script = tmp_path / "script.py"
    script.write_text(
        "from noisyjax.scoring.math import shared_pool\n"
        "print('once')\n"
        "print(shared_pool().verify(gold='1/2', answer='0.5').value)\n"
    )
    path = os.pathsep.join(sys.path)
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=120, env=environment)
    assert done.stdout.split() == ["once", "True"]
    assert done.stderr == ""
