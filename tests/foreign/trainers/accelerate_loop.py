"""A loop as Hugging Face Accelerate's guide writes it: `torchrun --nproc-per-node 2 accelerate_loop.py RESULT`."""

import sys

import torch
from accelerate import Accelerator
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader

from course_lib.core.adding import AddingProblem
from course_lib.core.model import lstm_model


def main() -> None:
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    accelerator = Accelerator(cpu=True)
    model = lstm_model(features=2, hidden=6, layers=1, outputs=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(AddingProblem(32, lengths=(6, 6), dtype=torch.float64), batch_size=4)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for inputs, answers in loader:
        optimizer.zero_grad()
        outputs, _ = model(inputs.transpose(0, 1))
        accelerator.backward(mse_loss(outputs[-1].squeeze(-1), answers))
        optimizer.step()
    accelerator.save(accelerator.unwrap_model(model).state_dict(), sys.argv[1])
    accelerator.end_training()


if __name__ == "__main__":
    main()
