"""The settings of `course train`. Each is defined once, here: its default, its limits, its help."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

from course_lib.launcher.jobs.target import names_a_function
from course_lib.runtime.machine import MAX_SEED

MAX_COUNT = 1_000_000_000
MAX_TIME = 2_000_000  # seconds
MOST_LAYERS = 10_000  # building more takes minutes, even if they are small


class BadSettings(ValueError):
    """A run that cannot start. The message says what to change."""


def setting(default: Any, description: str, least: float | None = None, most: float = MAX_COUNT, **more: Any) -> Any:
    """Return a field that is also an option of `course train`. `more` goes to argparse."""
    limits = None if least is None else (least, most)
    return field(default=default, metadata={"help": description, "limits": limits, "more": more})


@dataclass(frozen=True)
class Settings:
    """What to train, how, and what to save. Raises BadSettings if the settings contradict each other."""

    strategy: str = "single"  # or ddp, pipeline ..., or module:Class
    options: dict[str, Any] = field(default_factory=dict)  # for the strategy
    data: str = setting(
        "adding",
        "default: the adding problem; your own function returns data with a length and batch(indices); a text "
        "FILE is tokenized once, and its tokens are cached next to it, in FILE.tokens-...",
        metavar="adding|text|FILE|FILE.py:FUNCTION",
    )
    model: str | None = setting(
        None,
        "a model other than the LSTM: the small GPT of lesson 12, or your own function that returns a list of blocks",
        metavar="gpt|FILE.py:FUNCTION",
    )
    updates: int = setting(300, "how many optimizer steps", 1)
    batch: int = setting(64, "global batch size: sequences of the adding problem per update, over all ranks", 1)
    tokens: int = setting(4096, "global batch size for text: tokens per update, over all ranks", 1)
    hidden: int = setting(64, "the hidden size of a layer", 1)
    layers: int = setting(2, "how many layers", 1, MOST_LAYERS)
    seed: int = setting(0, "the seed of the weights and the data order", 0, MAX_SEED)
    every: int = setting(50, "updates between checkpoints", 1)
    learning_rate: float = setting(0.01, "Adam's learning rate", 1e-12, 1000)
    precision: str = setting(
        "fp32",
        "the precision of the forward pass; weights stay in fp32, and fp16 scales the loss",
        choices=("fp32", "bf16", "fp16"),
    )
    checkpoint: str | None = setting(None, "save checkpoints in this folder, and keep the last two", metavar="FOLDER")
    async_checkpoint: bool = setting(
        False, "write checkpoints in the background, from a copy in memory, while training continues"
    )
    resume: bool = setting(False, "continue from the folder's last checkpoint")
    time_limit: float | None = setting(
        None,
        "after this time, save a checkpoint and stop; continue with --resume",
        1e-6,
        MAX_TIME,
        metavar="SECONDS|H:MM:SS",
    )
    log: str | None = setting(
        None,
        "write a line of JSON per update, for `course plot`; under torchrun, use --log-file, because torchrun has an "
        "option that begins with --log",
        metavar="FILE",
    )
    compile: bool = setting(False, "compile every block except LSTM layers with torch.compile")
    profile: bool = False  # a few updates, for a trace of all ranks

    def __post_init__(self) -> None:
        for option in fields(self):
            value, limits = getattr(self, option.name), option.metadata.get("limits")
            if limits and value is not None and not limits[0] <= value <= limits[1]:
                raise BadSettings(f"{option.name}={value}: give a number from {limits[0]} to {limits[1]}")
        if self.time_limit is not None and self.checkpoint is None:
            raise BadSettings("--time-limit saves a checkpoint when the time is up: give --checkpoint and a folder")
        if self.resume and self.checkpoint is None:
            raise BadSettings("--resume needs a folder to resume from: give --checkpoint")
        if self.options.get("carry_state") and self.model == "gpt":
            raise BadSettings("carry_state=True: a GPT has no state to carry; leave it out, or train an LSTM")
        if self.options.get("carry_state") and self.data == "adding":
            raise BadSettings(
                "carry_state=True: sequences of the adding problem have nothing to carry; give --data text"
            )

    @property
    def order(self) -> dict[str, Any]:
        """The settings that decide the order of batches: a run can resume only with the same ones."""
        size: dict[str, Any] = {"batch": self.batch} if self.data == "adding" else {"tokens": self.tokens}
        if self.data not in ("adding", "text") and names_a_function(self.data):
            size["batch"] = self.batch
        return {"data": self.data, "seed": self.seed, "carry_state": self.options.get("carry_state", False)} | size
