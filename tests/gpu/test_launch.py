"""Launching on a GPU: over NCCL, or over gloo."""

from __future__ import annotations

import time

import pytest
import torch
import torch.distributed as dist

from course_lib import RankFailed, device, launch, trace
from course_lib.runtime import machine


@pytest.fixture(scope="module", autouse=True)
def cuda_in_the_parent():
    """The notebook has used the GPU before it launches: the case in which a fork would be lost."""
    x = torch.ones(1000, 1000, device="cuda")
    return (x @ x).sum().item()


def all_reduce_on_device():
    total = torch.full((4,), float(dist.get_rank() + 1), device=device())
    dist.all_reduce(total)
    return str(total.device), dist.get_backend(), total.tolist()


def test_one_rank_has_the_gpu_to_itself_over_nccl():
    place, backend, total = launch(all_reduce_on_device, ranks=1)[0]
    assert place == "cuda:0"
    assert "nccl" in backend
    assert total == [1.0] * 4


def test_cpu_tensors_still_travel_beside_nccl():
    def work():
        total = torch.ones(2)
        dist.all_reduce(total)
        return total.tolist()

    assert launch(work, ranks=torch.cuda.device_count())[0] == [float(torch.cuda.device_count())] * 2


@pytest.mark.parametrize("times", [2, 4, 8])
def test_ranks_that_share_a_gpu_talk_over_either(backend, times):
    ranks = times * torch.cuda.device_count()
    run = launch(all_reduce_on_device, ranks=ranks)
    places, backends, totals = zip(*run, strict=True)
    assert set(backends) == {"gloo" if backend == "gloo" else "cpu:gloo,cuda:nccl"}
    assert set(places) == {f"cuda:{i}" for i in range(torch.cuda.device_count())}
    assert totals == ([ranks * (ranks + 1) / 2] * 4,) * ranks


def test_a_wish_that_cannot_be_had_is_refused_with_the_way_to_it(monkeypatch):
    monkeypatch.setenv("COURSE_LIB_BACKEND", "nccl")
    if machine.why_not_nccl(64 * torch.cuda.device_count()):
        with pytest.raises(RankFailed, match=r"COURSE_LIB_BACKEND=nccl: .* course_lib\.launcher\.jobs\.nccl"):
            launch(all_reduce_on_device, ranks=2 * torch.cuda.device_count())


def test_cuda_tensors_travel_both_ways(backend):
    x = torch.arange(3.0, device="cuda", requires_grad=True)
    run = launch(lambda y: (str(y.device), y.requires_grad, y * 2), x, ranks=2)
    assert [value[:2] for value in run] == [("cuda:0", True)] * 2
    assert run[1][2].device.type == "cpu"
    assert run[1][2].tolist() == [0.0, 2.0, 4.0]


def test_a_model_on_the_gpu_comes_back_on_the_cpu():
    model = launch(lambda: torch.nn.LSTM(2, 3).to(device()), ranks=1)[0]
    assert next(model.parameters()).device.type == "cpu"


def test_a_span_times_its_kernels_and_does_not_wait_for_them():
    def work():
        x = torch.randn(4096, 4096, device=device())
        x @ x
        torch.cuda.synchronize()
        began = time.monotonic()
        with trace.span("forward"):
            for _ in range(50):
                x @ x
        with trace.span("after"):
            pass
        return time.monotonic() - began

    run = launch(work, ranks=1)
    forward, after = run.spans
    assert forward.seconds > 10 * after.seconds
    assert run[0] < forward.seconds / 2, "the rank has waited for its GPU"
    assert after.start >= forward.end


def test_a_failure_on_a_shared_gpu_names_its_rank(backend):
    def work():
        if dist.get_rank() == 1:
            torch.ones(3, device=device()) @ torch.ones(4, device=device())
        dist.all_reduce(torch.ones(1, device=device()))

    with pytest.raises(RankFailed) as caught:
        launch(work, ranks=2)
    assert caught.value.rank == 1
