"""What to train on: the data, the order in which it is read, a model that fits it, and the loss.

`course train --data` and `--model` also take your own, named as `file.py:function` or `module:function`.

    def blocks(vocabulary, hidden, layers):       # it may take any of the sizes that the data implies
        return [Embed(vocabulary, hidden), *(Recurrent(hidden) for _ in range(layers)), Project(hidden, vocabulary)]

A model is a list of blocks, so that every strategy can cut it. A block is called with (steps, sequences, ...) and its
state, and returns outputs of (steps, sequences, `width`) and its new state: (h, c), or None if it has none.

    def data():
        return AddingProblem(10_000, (100, 120))  # or a Corpus

Data has a length, and `batch(indices)`, which makes a `Batch` of those examples; tokens also have a `vocabulary`.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from course_lib.core.adding import AddingProblem
from course_lib.core.batch import Batch
from course_lib.core.model import Loss, SequenceModel, cross_entropy, lstm_model, squared_error, untouched
from course_lib.core.samplers import Batches, ShardedBatches
from course_lib.core.strategy import on_rank_0
from course_lib.core.text import Corpus, CorpusError, Streams
from course_lib.launcher.jobs.target import BadJob, call_yours, find_yours, names_a_function
from course_lib.launcher.rank.lifetime import seed_generators
from course_lib.padding.buckets import BucketedBatches
from course_lib.train.settings import BadSettings, Settings
from course_lib.train.token_files import TokenFile, open_tokens

MODELS = {"gpt": "course_lib.transformer.gpt:gpt_model"}  # the course's models that `--model` accepts by name
WINDOW = 32  # steps of a stream before the gradient stops
MOST_COMMON = 4_000  # the number of words in a text's vocabulary
SAMPLED = 8  # batches in a fingerprint, spread over an epoch


@dataclass(frozen=True)
class TrainingTask:
    """A dataset that makes batches from indices, a sampler that chooses them, a model factory, and a loss."""

    dataset: Any
    sampler: Batches
    model: Callable[[], SequenceModel]
    loss: Loss


@dataclass(frozen=True)
class Windows:
    """Streams as a dataset: batch `[i]` is window i."""

    streams: Streams

    def batch(self, indices: Sequence[int]) -> Batch:
        (index,) = indices
        return self.streams[index]


def make_task(settings: Settings) -> TrainingTask:
    """Return the dataset, its sampler, and a function that makes the model. Every rank must call this."""
    if settings.data == "adding":
        data: Any = AddingProblem(20_000, (5, 20), seed=settings.seed)
    elif settings.data == "text":
        data = Corpus.from_python_docs(most_common=MOST_COMMON)
    elif names_a_function(settings.data):
        data = user_data(settings.data)
    else:  # rank 0 tokenizes the text if needed; the others find the result if they see the same folder
        on_rank_0(partial(prepare_data, settings))
        data = open_tokens(settings.data, MOST_COMMON)
    is_text, carries = isinstance(data, Corpus | TokenFile), settings.options.get("carry_state")
    if carries and not is_text:
        raise BadSettings(f"carry_state=True: examples of {settings.data} have nothing to carry; return a Corpus there")
    sizes = sizes_of(data, settings.data, has_model=settings.model is not None)
    sizes |= {"hidden": settings.hidden, "layers": settings.layers}
    loss = squared_error if data.batch([0]).targets.is_floating_point() else cross_entropy
    if carries:
        data = Windows(Streams(data.tokens, streams=max(1, settings.tokens // WINDOW), window=WINDOW))
        sampler: Batches = ShardedBatches(len(data.streams), 1, shuffle=False)
    elif is_text:
        sampler = BucketedBatches(data.lengths, settings.tokens, seed=settings.seed)
    else:
        sampler = ShardedBatches(len(data), settings.batch, seed=settings.seed)
    if settings.model is None:
        return TrainingTask(data, sampler, partial(lstm_model, **sizes), loss)
    if settings.model == "gpt" and settings.options.get("chunks", 1) > 1:
        sizes["cache"] = True  # a chunk of time looks back at the chunks before it
    return TrainingTask(data, sampler, partial(user_model, settings.model, sizes), loss)


def prepare_data(settings: Settings) -> None:
    """Tokenize a text file, if that is the data and its tokens are not there yet."""
    if settings.data not in ("adding", "text") and not names_a_function(settings.data):
        try:
            open_tokens(settings.data, MOST_COMMON)
        except CorpusError as error:
            raise BadSettings(str(error)) from error


def sizes_of(data: Any, target: str, has_model: bool) -> dict[str, Any]:
    """Return what a model must know about the data: the vocabulary (tokens) or features (numbers), and the outputs."""
    batch: Batch = data.batch([0])
    vocabulary = getattr(data, "vocabulary", None)
    sizes = {}
    if batch.inputs.dim() == 3:
        sizes["features"] = batch.inputs.shape[2]
        if batch.targets.is_floating_point():
            sizes["outputs"] = 1
    elif vocabulary is not None:
        sizes["vocabulary"] = vocabulary if isinstance(vocabulary, int) else len(vocabulary)
    if not has_model and not sizes.keys() & {"outputs", "vocabulary"}:
        raise BadJob(
            f"--data {target} does not say how many classes there are: give tokens a `vocabulary`, a list or a number, "
            "or give --model"
        )
    return sizes


def user_data(target: str) -> Any:
    """Return the data from the user's function, after checking that it has a length and batches."""
    option = f"--data {target}"
    data = call_yours(option, find_yours("--data", target))
    length, batch = call_yours(option, lambda: (len(data), data.batch([0])))
    if not length or not isinstance(batch, Batch):
        raise BadJob(
            f"{option}: batch([0]) of its {length} examples is {batch!r:.40}: return a course_lib.core.batch.Batch"
        )
    return data


def user_model(target: str, sizes: Mapping[str, Any]) -> SequenceModel:
    """Return a model of the blocks that the user's function returns. Its parameters name the sizes that it gets."""
    option = f"--model {target}"
    function = find_yours("--model", MODELS.get(target, target))
    names = call_yours(option, inspect.signature, function).parameters
    blocks = call_yours(option, function, **{size: value for size, value in sizes.items() if size in names})
    if isinstance(blocks, torch.nn.ModuleList | torch.nn.Sequential | list | tuple) and len(blocks):
        blocks = call_yours(option, SequenceModel, dict(enumerate(blocks)))
    if not isinstance(blocks, SequenceModel):
        raise BadJob(f"{option} returned {blocks!r:.40}: return a list of blocks, the input block first")
    for place, block in blocks.numbered():
        if not any(parameter.requires_grad for parameter in block.parameters()):
            raise BadJob(
                f"{option}: block {place} ({type(block).__name__}) has no trainable parameters: move its work into the "
                "block before or after it"
            )
    return blocks


@torch.no_grad()
def check_runs(model: SequenceModel, target: str, batch: Batch) -> None:
    """Run one sequence through the blocks, one by one, and refuse outputs that strategies would train on in silence."""
    sample = batch.rows([0])
    outputs, width = sample.inputs, 0
    with untouched(model):
        for place, block in model.numbered():
            option = f"--model {target}: block {place} ({type(block).__name__})"
            width = call_yours(option, getattr, block, "width")  # the size of its outputs' last dimension
            returned = call_yours(option, block, outputs, None)
            is_a_pair = isinstance(returned, tuple) and len(returned) == 2
            outputs = returned[0] if is_a_pair else None
            shape = tuple(outputs.shape) if isinstance(outputs, torch.Tensor) else type(returned).__name__
            if shape != (sample.steps, 1, width):
                raise BadJob(
                    f"{option} returned {shape} for {sample.steps} steps of one sequence: return (outputs, state), with"
                    f" outputs of (steps, sequences, width), here {(sample.steps, 1, width)}"
                )
    # PyTorch would broadcast outputs that don't fit the targets.
    is_number = batch.targets.is_floating_point()
    if (is_number and width != 1) or (not is_number and width <= int(batch.targets.max())):
        wanted = "a target is one number: give it width 1"
        if not is_number:
            wanted = f"there is a class {int(batch.targets.max())}: make it wider"
        raise BadJob(f"--model {target}: the last block has width {width}, and {wanted}")


def fingerprint(task: TrainingTask, name: str) -> dict[str, Any]:
    """Return the number of batches in an epoch, and a hash of some of them. Every rank must call this.

    A run resumes with the same data, or not at all. Refuses data that is not the same on every rank, or whose batches
    depend on the random numbers of the rank that reads them.
    """
    task.sampler.set_epoch(0)
    batches, hashes = task.sampler.global_batches(), []
    places = sorted({place * (len(batches) - 1) // max(1, SAMPLED - 1) for place in range(SAMPLED)})
    for seed in (1, 2):
        seed_generators(seed)
        digest = hashlib.sha256()
        for place in places:
            batch = task.dataset.batch(batches[place])
            tensors = [each.detach().cpu() for each in (batch.inputs, batch.targets, batch.lengths, batch.mask)]
            digest.update(b"".join(repr(tuple(tensor.shape)).encode() for tensor in tensors))
            digest.update(b"".join(tensor.reshape(-1).view(torch.uint8).numpy().tobytes() for tensor in tensors))
        hashes.append(digest.hexdigest()[:16])
    if hashes[0] != hashes[1]:
        raise BadJob(
            f"--data {name} draws random numbers when a batch is read, so each rank would read a different batch: draw "
            "them when the data is created, or from a generator seeded with the examples' indices"
        )
    found = {"batches": len(batches), "sample": hashes[0]}
    if on_rank_0(lambda: found) != found:
        raise BadJob(
            f"--data {name} gives this rank different examples than rank 0: make them the same on every rank, from a "
            "fixed seed or a file"
        )
    return found
