"""Collectives read from programs written by hand, in each of the forms that the TPU's compiler writes."""

import pytest

from noisyjax.tpu.planning.hlo import Collective, collectives

PROGRAM = """HloModule jit_f, is_scheduled=true

%add (x.1: f32[], y.1: f32[]) -> f32[] {
  ROOT %sum = f32[]{:T(128)} add(%x.1, %y.1)
}

%cond (p.1: (s32[], bf16[256,1024])) -> pred[] {
  %constant.5 = s32[]{:T(128)} constant(36)
  %p.1 = (s32[], bf16[256,1024]) parameter(0)
  %i = s32[]{:T(128)} get-tuple-element(%p.1), index=0
  ROOT %lt.1 = pred[]{:T(512)} compare(%i, %constant.5), direction=LT
}

%until_done (p.2: (s32[], pred[8])) -> pred[] {
  ROOT %any = pred[] fusion(%p.2), kind=kLoop, calls=%add
}

%all-reduce-scatter.1 (input.1: bf16[256,1024]) -> bf16[256,512] {
  %all-reduce.8 = bf16[256,1024]{1,0:T(8,128)(2,1)} all-reduce(%input.1), channel_id=9, replica_groups={{0,1},{2,3}}, to_apply=%add
  ROOT %slice.1 = bf16[256,512]{1,0} dynamic-slice(%all-reduce.8, %zero), dynamic_slice_sizes={256,512}
}

%begin (p.3: bf16[1,512,512]) -> (bf16[1,512,512], bf16[1,1024,512]) {
  %all-gather.1 = bf16[1,1024,512]{2,1,0:T(8,128)(2,1)} all-gather(%p.3), channel_id=18, replica_groups=[2,2]<=[2,2]T(1,0), dimensions={1}
  ROOT %start = (bf16[1,512,512], bf16[1,1024,512]) custom-call(%all-gather.1), custom_call_target="AsyncCollectiveStart"
}

%finish (p.4: bf16[1,512,512]) -> bf16[1,1024,512] {
  %all-gather.2 = bf16[1,1024,512]{2,1,0:T(8,128)(2,1)} all-gather(%p.4), channel_id=18, replica_groups=[2,2]<=[2,2]T(1,0), dimensions={1}
  ROOT %done = bf16[1,1024,512] custom-call(%all-gather.2), custom_call_target="AsyncCollectiveDone"
}

%body (p.5: (s32[], bf16[256,1024])) -> (s32[], bf16[256,1024]) {
  %a = (bf16[1,512,512], bf16[1,1024,512]) fusion(%x), kind=kCustom, calls=%begin
  %b = bf16[1,1024,512] fusion(%a), kind=kCustom, calls=%finish
  %c = bf16[256,512] fusion(%b), kind=kCustom, calls=%all-reduce-scatter.1
}

%outer (p.6: (s32[], pred[8])) -> (s32[], pred[8]) {
  %while.1 = (s32[], bf16[256,1024]) while(%t), condition=%cond, body=%body
  %permuted = (f32[8]{0}, f32[8]{0}, u32[], u32[]) collective-permute-start(%q), channel_id=30, source_target_pairs={{0,1},{1,0}}
}

ENTRY %main (p.7: f32[4]) -> f32[] {
  %all-reduce.9 = f32[]{:T(128)} all-reduce(%p.7), channel_id=16, replica_groups=mesh['data'=1,'fsdp'=2,'tensor'=4] {'fsdp','tensor'}, to_apply=%add
  ROOT %while.2 = (s32[], pred[8]) while(%t.2), condition=%until_done, body=%outer
}
"""  # noqa: E501


def test_every_form_is_read_once_with_the_turns_of_its_loops() -> None:
    found = collectives(PROGRAM, turns=3)
    assert found == [
        Collective("all-reduce", 4, 8, ()),
        Collective("all-gather", 1024 * 512 * 2, 2, (3, 36)),
        Collective("reduce-scatter", 256 * 1024 * 2, 2, (3, 36)),
        Collective("collective-permute", 32, 2, (3,)),
    ]


@pytest.mark.parametrize(
    ("kind", "sent"),
    [("all-gather", 75), ("reduce-scatter", 75), ("all-to-all", 75), ("all-reduce", 150), ("collective-permute", 100)],
)
def test_what_a_ring_sends(kind: str, sent: float) -> None:
    assert Collective(kind, 100, 4).sent == sent
    assert Collective(kind, 100, 4, (36, 2)).sent == 72 * sent


def test_a_noted_trip_count_is_believed() -> None:
    noted = PROGRAM.replace("body=%outer", 'body=%outer, backend_config={"known_trip_count":{"n":"7"}}')
    assert {c.trips[0] for c in collectives(noted, turns=3) if c.trips} == {7}


def test_a_program_for_one_device_sends_nothing() -> None:
    assert collectives("HloModule f\n\nENTRY %main (p: f32[]) -> f32[] {\n  ROOT %p = f32[] parameter(0)\n}\n") == []
