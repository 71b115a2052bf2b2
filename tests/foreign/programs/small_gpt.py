"""A small transformer with a Trainer of its own: config object, callbacks, DistributedSampler, AdamW, DDP."""

import os
from collections import defaultdict
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler


@dataclass
class TrainConfig:
    max_iters: int = 6
    batch_size: int = 4
    learning_rate: float = 1e-2


class SortDataset(Dataset):
    def __len__(self):
        return 96

    def __getitem__(self, index):
        numbers = torch.randint(5, (6,), generator=torch.Generator().manual_seed(index))
        whole = torch.cat([numbers, numbers.sort().values])
        return whole[:-1], whole[1:]


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(width), nn.MultiheadAttention(width, 2, batch_first=True)
        self.mlp = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x):
        mask = torch.full((x.size(1), x.size(1)), float("-inf")).triu(1)
        h = self.norm(x)
        x = x + self.attention(h, h, h, attn_mask=mask, need_weights=False)[0]
        return x + self.mlp(x)


class GPT(nn.Module):
    def __init__(self, vocabulary=5, width=16, layers=2, length=12):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks, self.head = nn.Sequential(*[Block(width) for _ in range(layers)]), nn.Linear(width, vocabulary)

    def forward(self, tokens, targets):
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.size(1)))
        logits = self.head(self.blocks(x))
        return logits, nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


class Trainer:
    def __init__(self, config, model, dataset):
        self.config, self.callbacks = config, defaultdict(list)
        self.model = DistributedDataParallel(model)
        self.loader = DataLoader(dataset, sampler=DistributedSampler(dataset), batch_size=config.batch_size)

    def run(self):
        optimizer = torch.optim.AdamW(self.model.parameters(), lr=self.config.learning_rate)
        batches = iter(self.loader)
        for _ in range(self.config.max_iters):
            x, y = next(batches)
            _, self.loss = self.model(x, y)
            self.model.zero_grad(set_to_none=True)
            self.loss.backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            optimizer.step()
            for callback in self.callbacks["on_batch_end"]:
                callback(self)


def main():
    dist.init_process_group(backend="gloo", init_method="env://")
    torch.manual_seed(3407 + int(os.environ["LOCAL_RANK"]))
    losses = []
    trainer = Trainer(TrainConfig(), GPT(), SortDataset())
    trainer.callbacks["on_batch_end"].append(lambda t: losses.append(t.loss.item()))
    trainer.run()
    weight = sum(p.sum().item() for p in trainer.model.parameters())
    dist.destroy_process_group()
    return losses, round(weight, 5)


def check(values):
    assert len({weight for _, weight in values}) == 1
    assert all(len(losses) == 6 for losses, _ in values)
