"""The model we train: an LSTM as a list of blocks, its losses, and its memory; and a GPT, to compare it with."""

from course_lib.lstm.gpt import GPTBlock, gpt_model
from course_lib.lstm.memory import BatchSize, Memory, Savings, predict_block_memory, predict_memory, predict_with
from course_lib.lstm.model import (
    Loss,
    SequenceModel,
    State,
    States,
    cross_entropy,
    detach_states,
    lstm_model,
    squared_error,
)
from course_lib.lstm.pacing import OneNode, pace_blocks, pace_layers
from course_lib.meter import most_alive, saved_for_backward

__all__ = [
    "BatchSize", "GPTBlock", "Loss", "Memory", "OneNode", "Savings", "SequenceModel", "State", "States",
    "cross_entropy", "detach_states", "gpt_model", "lstm_model", "most_alive", "pace_blocks", "pace_layers",
    "predict_block_memory", "predict_memory", "predict_with", "saved_for_backward", "squared_error",
]  # fmt: skip
