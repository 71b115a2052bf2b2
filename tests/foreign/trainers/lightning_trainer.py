"""A LightningModule as Lightning's guide writes it: `torchrun --nproc-per-node 2 lightning_trainer.py RESULT`."""

import os
import sys

import lightning
import torch
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader, DistributedSampler

from course_lib.core.adding import AddingProblem
from course_lib.core.model import lstm_model


class Adding(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.model = lstm_model(features=2, hidden=6, layers=1, outputs=1)

    def training_step(self, batch, _):
        inputs, answers = batch
        outputs, _ = self.model(inputs.transpose(0, 1))
        return mse_loss(outputs[-1].squeeze(-1), answers)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def main() -> None:
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    module = Adding()
    data = AddingProblem(32, lengths=(6, 6), dtype=torch.float64)
    # Lightning keeps a DistributedSampler. It would replace any other sampler by one that shuffles.
    sampler = DistributedSampler(data, int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"]), shuffle=False)
    loader = DataLoader(data, batch_size=4, sampler=sampler)
    quiet = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    trainer = lightning.Trainer(accelerator="cpu", devices=2, strategy="ddp", max_epochs=1, **quiet)
    trainer.fit(module, loader)
    if trainer.is_global_zero:
        torch.save(module.model.state_dict(), sys.argv[1])


if __name__ == "__main__":
    main()
