"""tqdm, logging and matplotlib on a rank."""

import io
import logging
import sys

import torch.distributed as dist
from tqdm import tqdm


def main():
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s", stream=sys.stdout)
    total = 0
    for number in tqdm(range(50), desc=f"rank {dist.get_rank()}", mininterval=0.0):
        total += number
    logging.getLogger("train").info("sum is %d", total)
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(1, 1))
    axes.plot([0, 1], [1, 0])
    file = io.BytesIO()
    figure.savefig(file, format="png")
    dist.barrier()
    return total, file.getvalue()[1:4].decode()


SAYS = "INFO sum is 1225"


def check(values):
    assert set(values) == {(1225, "PNG")}
