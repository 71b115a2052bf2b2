"""The exercises of lesson 02, data parallelism, and the models that they share."""

from __future__ import annotations

from torch import Tensor, nn


def nested(weights: dict[str, Tensor]) -> nn.Module:
    """Return a model whose parameters have these names, such as "0.weight". They are in submodules, so the last part of
    a name may occur more than once, as in most models.
    """
    model = nn.Module()
    for name, values in weights.items():
        *path, short = name.split(".")
        owner = model
        for step in path:
            if not hasattr(owner, step):
                owner.register_module(step, nn.Module())
            owner = getattr(owner, step)
        owner.register_parameter(short, nn.Parameter(values.clone()))
    return model
