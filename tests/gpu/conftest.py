"""Every test here needs a GPU, and runs over gloo and over NCCL.

With fewer GPUs than ranks, NCCL needs a newer version and MPS:
`python -m course_lib.launcher.jobs.shared_gpu pytest tests/gpu`.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from course_lib.runtime import machine


def pytest_collection_modifyitems(items) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.gpu)
            item.add_marker(pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU on this machine"))


@pytest.fixture(params=["gloo", "nccl"])
def backend(request, monkeypatch) -> str:
    """What CUDA tensors travel over in this test's launches."""
    if request.param == "nccl" and (trouble := machine.why_not_nccl(8)):
        pytest.skip(trouble)
    monkeypatch.setenv(machine.BACKEND, request.param)
    return request.param


@pytest.fixture
def over_nccl(monkeypatch) -> None:
    """For what is about NCCL alone."""
    if trouble := machine.why_not_nccl(8):
        pytest.skip(trouble)
    monkeypatch.setenv(machine.BACKEND, "nccl")
