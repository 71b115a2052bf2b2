"""Blocks that a learner might write: some the same in pieces, some not."""

from __future__ import annotations

import torch
from torch import nn


class Gated(nn.Module):
    """A GRU, whose state is carried as (h, and a second part that stays as it is)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gru, self.width = nn.GRU(width, width), width

    def forward(self, inputs, state=None):
        zeros = inputs.new_zeros(1, inputs.shape[1], self.width)
        h, c = state or (zeros, zeros)
        outputs, h = self.gru(inputs, h)
        return outputs, (h, c)


class Forgetful(Gated):
    """The gradient stops at the beginning of whatever it is given."""

    def forward(self, inputs, state=None):
        return super().forward(inputs, state and (state[0].detach(), state[1]))


class Both(nn.Module):
    """Reads a sequence from both ends."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.lstm, self.width = nn.LSTM(width, width // 2, bidirectional=True), width

    def forward(self, inputs, state=None):
        return self.lstm(inputs)[0], None


class Attention(nn.Module):
    """Every step looks at all steps of its sequence."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.attention, self.width = nn.MultiheadAttention(width, 1), width

    def forward(self, inputs, state=None):
        return inputs + self.attention(inputs, inputs, inputs, need_weights=False)[0], None


class AmongSequences(Attention):
    """Every sequence looks at all sequences of its batch."""

    def forward(self, inputs, state=None):
        return super().forward(inputs.transpose(0, 1))[0].transpose(0, 1), None


class Normed(nn.Module):
    """BatchNorm over steps and sequences."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.width = nn.BatchNorm1d(width), width

    def forward(self, inputs, state=None):
        return self.norm(inputs.flatten(0, 1)).view_as(inputs), None


class LayerNormed(nn.Module):
    """LayerNorm, dropout, and a buffer that counts its calls in training."""

    def __init__(self, width: int, drop: float = 0.0) -> None:
        super().__init__()
        self.norm, self.drop, self.width = nn.LayerNorm(width), nn.Dropout(drop), width
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, inputs, state=None):
        if self.training:
            self.calls += 1
        return self.drop(self.norm(inputs)), None


class Noisy(nn.Module):
    """Adds noise of its own."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale, self.width = nn.Parameter(torch.ones(width)), width

    def forward(self, inputs, state=None):
        return inputs * self.scale + torch.randn_like(inputs), None
