"""Layers that take a fixed time, so that several ranks on few cores overlap as on devices of their own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from course_lib import trace
from course_lib.lstm.model import Recurrent, SequenceModel


def pace_layers(model: SequenceModel, forward: float, backward: float) -> SequenceModel:
    """The same model, each LSTM layer of which takes so many seconds more, forward and backward: asleep.

    Layers should be so small that the sleep is nearly all of their time. The sleeps are recorded as `forward` and
    `backward`, each with the layer's place in the model as its label.
    """
    layers = [place for place, block in model.numbered() if isinstance(block, Recurrent)]
    return pace_blocks(model, dict.fromkeys(layers, (forward, backward)))


def pace_blocks(model: SequenceModel, seconds: Mapping[int, tuple[float, float]]) -> SequenceModel:
    """The same, with seconds (forward, backward) of its own for each block, by its place in the model."""
    for place, block in model.numbered():
        if place in seconds:
            block.register_forward_hook(_pause_after(str(place), *seconds[place]))
    return model


def _pause_after(place: str, forward: float, backward: float) -> Any:
    def pause(name: str, seconds: float) -> None:
        with trace.span(name, at_least=seconds, label=place):
            pass

    def after_forward(block: nn.Module, inputs: tuple, outputs: tuple[Tensor, Any]) -> None:
        pause("forward", forward)
        if outputs[0].requires_grad:  # its gradient comes just before the layer's backward pass begins
            outputs[0].register_hook(lambda gradient: pause("backward", backward))

    return after_forward
