"""torch.distributed.pipelining: one stage per rank, GPipe and 1F1B."""

import os

import torch
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe


def main():
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    device = torch.device("cpu")
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(8, 8), nn.ReLU()) for _ in range(world_size)]
    x, y = torch.randn(8, 8), torch.randn(8, 8)
    whole = nn.functional.mse_loss(nn.Sequential(*layers)(x), y)
    losses = []
    for schedule_class in (ScheduleGPipe, Schedule1F1B):
        stage = PipelineStage(layers[rank], rank, world_size, device)
        schedule = schedule_class(stage, n_microbatches=4, loss_fn=nn.functional.mse_loss)
        collected = []
        if rank == 0:
            schedule.step(x)
        elif rank == world_size - 1:
            schedule.step(target=y, losses=collected)
            losses.append(torch.stack(collected).mean().item())
        else:
            schedule.step()
    return whole.item(), losses


def check(values):
    whole, losses = values[-1]
    assert len(losses) == 2
    assert all(abs(loss - whole) < 1e-5 for loss in losses)
