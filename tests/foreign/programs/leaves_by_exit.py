"""A script's habit: parse the command line, work, and leave by sys.exit(0)."""

import argparse
import sys

import torch
import torch.distributed as dist


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float, required=True)
    options = parser.parse_args()
    total = torch.full((1,), options.lr)
    dist.all_reduce(total)
    print(f"sum {total.item():g} from {len(sys.argv)} words")
    sys.exit(0)


ARGUMENTS = ["--lr", "3"]
SAYS = "words"


def check(values):
    assert values == [None] * len(values)
