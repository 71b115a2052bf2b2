"""A program written for GPUs that asks for NCCL where there is none: it runs over what there is, and is told."""

import warnings

import torch
import torch.distributed as dist


def main():
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        dist.init_process_group("nccl")
    total = torch.ones(1, device="cuda" if torch.cuda.is_available() else "cpu")
    dist.all_reduce(total)
    dist.destroy_process_group()
    return total.item(), [str(warning.message) for warning in said]


def check(values):
    for total, said in values:
        assert total == len(values)
        assert torch.cuda.is_available() or "the group that is already up is used" in said[0]
