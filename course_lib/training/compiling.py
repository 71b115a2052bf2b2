"""`course train --compile`: what is not an LSTM layer is compiled. Those layers are one call of cuDNN's already."""

from __future__ import annotations

import torch

from course_lib.lstm.model import Recurrent, SequenceModel


def check_compiles(where: torch.device) -> None:
    """Refuse, before a run depends on it, a machine on which `torch.compile` finds no compiler that works."""
    try:
        torch.compile(lambda numbers: numbers * 2 + 1)(torch.ones(2, device=where))
    except Exception as error:  # of PyTorch, of Triton, of a C++ compiler, or of the system
        why = next(iter(str(error).splitlines()), "")
        raise ValueError(f"--compile: no compiler works here ({type(error).__name__}: {why}); leave it out") from error


def compile_blocks(model: SequenceModel) -> None:
    """Have the blocks' forward passes compiled, each when it is first called. Names and weights stay as they are."""
    for _, block in model.numbered():
        if not isinstance(block, Recurrent):
            block.forward = torch.compile(block.forward)
