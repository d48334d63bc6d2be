"""The global order: every record once an epoch, whatever the processes, the batches and the interruptions."""

import builtins
import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from noisyjax.errors import UsageError
from noisyjax.instruct import DataConfig, Kept, Left, RecordStream, open_files, parse_instruct, write_records

N = 23


@pytest.fixture(scope="module")
def opened(tmp_path_factory, make_record):
    path = tmp_path_factory.mktemp("data") / "set.jsonl"
    write_records(path, [make_record(f"r{i}", meta={"i": i}) for i in range(N)])
    return open_files([str(path)], parse_instruct)


def keep_all(record):
    return Kept(record.id, ("even",) if record.meta["i"] % 2 == 0 else ())


def keep_some(record):
    return Left("seventh") if record.meta["i"] % 7 == 0 else keep_all(record)


def stream(opened, prepare=keep_all, *, process=(0, 1), seed=0, **config):
    config = DataConfig(**{"threads": 0, **config})
    return RecordStream(opened, prepare, config, seed=seed, process_index=process[0], process_count=process[1])


def everything(opened, *args, n=4, **kwargs):
    return [id for batch in stream(opened, *args, **kwargs).batches(n) for id in batch.items]


class TestOrder:
    def test_every_record_once_an_epoch_in_another_order_each(self, opened):
        order = everything(opened, epochs=3)
        epochs = [order[i * N : (i + 1) * N] for i in range(3)]
        for epoch in epochs:
            assert sorted(epoch) == sorted(f"r{i}" for i in range(N))
        assert len({tuple(epoch) for epoch in epochs}) == 3
        assert epochs[0] != [f"r{i}" for i in range(N)]

    def test_it_is_a_function_of_the_seed(self, opened):
        assert everything(opened, epochs=1) == everything(opened, epochs=1)
        assert everything(opened, epochs=1) != everything(opened, epochs=1, seed=1)
        assert everything(opened, epochs=1, seed=-5) != everything(opened, epochs=1, seed=2**40)

    def test_epochs_of_one_seed_are_not_those_of_the_next(self, opened):
        """grain alone draws epoch e by seed + e: run 0's second epoch would be run 1's first."""
        second = everything(opened, epochs=2)[N:]
        assert all(everything(opened, epochs=1, seed=seed) != second for seed in range(1, 4))

    def test_the_size_of_batches_and_threads_change_nothing(self, opened):
        one = everything(opened, keep_some, epochs=2, n=1)
        assert one == everything(opened, keep_some, epochs=2, n=5)
        assert one == everything(opened, keep_some, epochs=2, n=100)
        assert one == everything(opened, keep_some, epochs=2, n=5, threads=3, ahead=7)

    def test_without_shuffle_the_files_order(self, opened):
        assert everything(opened, epochs=1, shuffle=False) == [f"r{i}" for i in range(N)]

    def test_one_record(self, tmp_path, make_record):
        write_records(tmp_path / "one.jsonl", [make_record("only", meta={"i": 1})])
        one = open_files([str(tmp_path / "one.jsonl")], parse_instruct)
        assert everything(one, epochs=3) == ["only"] * 3
        assert stream(one).take(2).items == ("only", "only")


class TestShares:
    @pytest.mark.parametrize("count", [1, 2, 3, 5])
    def test_shares_side_by_side_are_the_batch(self, opened, count):
        whole = list(stream(opened, keep_some, epochs=2).batches(6))
        shares = [list(stream(opened, keep_some, epochs=2, process=(i, count)).batches(6)) for i in range(count)]
        for step, batch in enumerate(whole):
            parts = [share[step] for share in shares]
            assert sum((part.items for part in parts), ()) == batch.items
            assert {part.total for part in parts} == {len(batch.items)}
            assert [part.first for part in parts] == [sum(len(p.items) for p in parts[:i]) for i in range(count)]
            assert max(len(p.items) for p in parts) - min(len(p.items) for p in parts) <= 1
            assert all(part.state == batch.state for part in parts)
        assert {len(share) for share in shares} == {len(whole)}, "no process waits for another at the end"

    def test_processes_that_cannot_be(self, opened):
        for process in ((1, 1), (-1, 2), (0, 0)):
            with pytest.raises(UsageError, match="cannot be"):
                stream(opened, process=process)


class TestCursor:
    def test_it_is_json_and_holds_four_things(self, opened):
        source = stream(opened, seed=3)
        source.take(5)
        state = source.state()
        assert json.loads(json.dumps(state)) == state
        assert state == {"epoch": 0, "cursor": 5, "seed": 3, "fingerprint": opened.fingerprint}
        source.take(N)
        assert (source.state()["epoch"], source.state()["cursor"]) == (1, 5)

    @settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(
        legs=st.lists(st.tuples(st.integers(1, 3), st.integers(0, 3), st.integers(1, 7)), min_size=1, max_size=4),
        threads=st.sampled_from([0, 2]),
    )
    def test_no_gap_and_no_repeat_over_runs_on_1_2_and_3_processes(self, opened, legs, threads):
        """Each leg: so many processes take so many batches of such a size, and go on from the last leg's cursor."""
        taken, state = [], None
        for count, steps, n in legs:
            streams = [stream(opened, keep_some, process=(i, count), threads=threads, ahead=5) for i in range(count)]
            for each in streams:
                if state is not None:
                    each.restore(json.loads(json.dumps(state)))
            for _ in range(steps):
                parts = [each.take(n) for each in streams]
                taken += [id for part in parts for id in part.items]
                state = parts[0].state
                assert all(part.state == state for part in parts)
            for each in streams:
                each.close()
        straight = stream(opened, keep_some).take(len(taken)).items if taken else ()
        assert tuple(taken) == straight

    def test_what_was_prepared_ahead_is_not_lost(self, opened):
        """A batch carries the cursor behind itself, so that taking ahead of training skips nothing."""
        source = stream(opened, threads=2, ahead=16)
        first, second = source.take(3), source.take(3)
        again = stream(opened)
        again.restore(first.state)
        assert again.take(3).items == second.items

    def test_restoring_a_stream_that_has_run(self, opened):
        source = stream(opened, threads=2, ahead=8)
        begin = source.state()
        first = source.take(9).items
        source.restore(begin)
        assert source.take(9).items == first

    def test_at_the_end_of_the_last_epoch(self, opened):
        source = stream(opened, epochs=2)
        assert source.take(2 * N - 1).total == 2 * N - 1
        last = source.take(4)
        assert last.total == 1
        assert source.take(4).total == 0
        again = stream(opened, epochs=2)
        again.restore(last.state)
        assert again.take(4).total == 0
        longer = stream(opened, epochs=3)
        longer.restore(last.state)
        assert longer.take(4).total == 4, "a run may be given more epochs"
        with pytest.raises(UsageError, match="behind the data's end"):
            stream(opened, epochs=1).restore(last.state)

    def test_changed_data_is_refused(self, tmp_path, opened, make_record):
        state = stream(opened).state()
        path = tmp_path / "set.jsonl"
        write_records(path, [make_record(f"r{i}", meta={"i": i}) for i in range(N)])
        same = open_files([str(path)], parse_instruct)
        stream(same).restore(state)
        with path.open("a") as file:
            file.write(json.dumps(make_record("more").row()) + "\n")
        with pytest.raises(UsageError, match=f"the training data has changed.*{opened.fingerprint}"):
            stream(open_files([str(path)], parse_instruct)).restore(state)

    def test_another_order_is_refused(self, opened):
        state = stream(opened, seed=1).state()
        with pytest.raises(UsageError, match="seed is 1, this run's is 2"):
            stream(opened, seed=2).restore(state)
        with pytest.raises(UsageError, match="this run's is None"):
            stream(opened, seed=1, shuffle=False).restore(state)

    @pytest.mark.parametrize(
        "change", [{"epoch": -1}, {"cursor": "x"}, {"cursor": ...}, {"host": 1}, {"cursor": N}, {"seed": "a"}]
    )
    def test_a_broken_cursor_is_refused(self, opened, change):
        source = stream(opened)
        state = {k: v for k, v in {**source.state(), **change}.items() if v is not ...}
        with pytest.raises(UsageError, match="data cursor of the checkpoint"):
            source.restore(state)


class TestLeftOut:
    def test_what_is_left_out_is_counted(self, opened):
        source = stream(opened, keep_some, epochs=1)
        assert source.counts.kept_share is None
        kept = [id for batch in source.batches(3) for id in batch.items]
        counts = source.counts
        assert (counts.seen, counts.kept, dict(counts.left)) == (N, len(kept), {"seventh": 4})
        assert counts.kept_share == pytest.approx(19 / 23)
        assert dict(counts.notes) == {"even": sum(1 for id in kept if int(id[1:]) % 2 == 0)}

    def test_every_process_counts_alike(self, opened):
        counts = []
        for i in range(3):
            source = stream(opened, keep_some, process=(i, 3))
            source.take(10)
            counts.append(source.counts)
        assert counts[0] == counts[1] == counts[2]

    def test_a_pass_without_one_to_keep_ends_the_run(self, opened):
        with pytest.raises(UsageError, match=rf"none of the {N} records can be used \({N} over_length\)"):
            stream(opened, lambda record: Left("over_length")).take(1)

    def test_a_record_that_cannot_be_used_is_named(self, opened):
        def refuse(record):
            if record.meta["i"] == 4:
                raise UsageError("the template refuses this")
            return Kept(record.id)

        for threads in (0, 2):
            with pytest.raises(UsageError, match=r"set\.jsonl:5 \(r4\): the template refuses this"):
                stream(opened, refuse, threads=threads).take(N)

    def test_an_empty_batch_is_no_batch(self, opened):
        with pytest.raises(ValueError, match="at least one"):
            stream(opened).take(0)


def test_a_missing_extra_is_one_line(monkeypatch, opened):
    real = builtins.__import__

    def without(name, *args, **kwargs):
        if name == "grain":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(UsageError, match=r"needs the extra: pip install 'noisyjax\[train\]'"):
        stream(opened)
