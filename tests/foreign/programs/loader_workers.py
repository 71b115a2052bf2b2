"""DataLoader workers by every start method, persistent ones too, over a dataset class of the program's own."""

import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Squares(Dataset):
    def __len__(self):
        return 12

    def __getitem__(self, index):
        return Pair(index, index**2)


class Pair:
    def __init__(self, x, y):
        self.x, self.y = x, y


def collate(pairs):
    return torch.tensor([[pair.x, pair.y] for pair in pairs])


def as_they_are(pairs):
    return pairs


def main():
    seen = {}
    for method, persistent in (("fork", False), ("fork", True), ("forkserver", False), ("spawn", False)):
        sampler = DistributedSampler(Squares(), shuffle=False)
        loader = DataLoader(
            Squares(),
            batch_size=3,
            sampler=sampler,
            num_workers=1,
            collate_fn=collate,
            multiprocessing_context=method,
            persistent_workers=persistent,
        )
        for _ in range(2 if persistent else 1):
            seen[f"{method} {persistent}"] = sum(batch[:, 1].sum().item() for batch in loader)
    loader = DataLoader(Squares(), num_workers=1, collate_fn=as_they_are, multiprocessing_context="spawn")
    seen["instances come back"] = sum(pair.y for pairs in loader for pair in pairs) - 506
    return seen


def check(values):
    for name in values[0]:
        expected = 0 if name == "instances come back" else sum(i**2 for i in range(12))
        assert sum(value[name] for value in values) == expected, name
