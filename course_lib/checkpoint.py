"""Checkpoints, keyed by the whole model's names: saved by one strategy on some ranks, loaded by any on any number.

    DIR/update-00000050         complete: it got its name when every rank had written its part
    DIR/update-00000100.tmp     being written, or left behind by a crash: never loaded, removed by the next save

A rank writes what it has; of what several ranks have, one writes it. Beside the tensors lies `training.json`: what
model this is, how far the training is, and how it was split.

`torch.distributed.checkpoint` keeps its table of contents as a pickle, which can run code when it is read: load
checkpoints that you, or someone you trust, have saved. The tensors themselves are read with `weights_only=True`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor

from course_lib.checkpoint_folder import Checkpoint, CheckpointError, Position, complete, latest, make_room, read
from course_lib.machine import device
from course_lib.model import States
from course_lib.strategies import Strategy
from course_lib.strategies.strategy import NamedTensors

KEPT = 2
__all__ = ["Checkpoint", "CheckpointError", "Position", "latest", "load", "on_rank_0", "read", "save"]


def save(
    strategy: Strategy, folder: str | Path, position: Position, *, notes: dict[str, Any] | None = None, keep: int = KEPT
) -> Path:
    """Write a checkpoint into `folder`, remove all but the last `keep`, and return where it is; for all ranks to call.

    Until the last byte is written it has another name, so a crash at any moment leaves the previous one to go on from.
    """
    final = Path(folder) / f"update-{position.updates:08d}"
    aside = final.with_suffix(".tmp")
    layout, parameters = _layout_of(strategy), _parameters_of(strategy)
    facts = {"position": asdict(position), "layout": layout, "parameters": parameters, "notes": notes or {}}
    on_rank_0(lambda: make_room(final, aside))
    try:
        dcp.save(_tensors_of(strategy), storage_writer=dcp.FileSystemWriter(aside))
    except dcp.CheckpointException as error:  # every rank gets it, whichever failed
        rank, (cause, _) = next(iter(error.failures.items()))
        raise CheckpointError(f"rank {rank} cannot write its part of the checkpoint: {cause}") from error
    on_rank_0(lambda: complete(final, aside, facts, keep))
    return final


def load(strategy: Strategy, folder: str | Path) -> Checkpoint:
    """Give `strategy` what the latest checkpoint in `folder` holds, and return what it says of itself.

    On the layout that saved it, training then goes on to the last bit as if it had never stopped (on a GPU, as far as
    its kernels repeat themselves). Where torch's DDP joins three ranks or more, that takes one step *before* the load:
    DDP orders its messages after its first step, and with them the order in which three numbers are added.

    On another layout every rank keeps the random numbers that it has, and a carried state begins at zero. The learning
    rate is that of the new optimizer.
    """
    found = on_rank_0(lambda: latest(folder))
    if found is None:
        raise CheckpointError(f"there is no checkpoint in {folder}: give the folder that `save` was given")
    checkpoint = on_rank_0(lambda: read(found))
    _check_same_model(checkpoint, _parameters_of(strategy))
    same_layout = checkpoint.layout == _layout_of(strategy)
    saved = dcp.FileSystemReader(found).read_metadata().state_dict_metadata
    wanted = {f"model.{name}": parameter.detach() for name, parameter in strategy.model.named_parameters()}
    for key in saved:
        if _is_optimizers(key, strategy) or (same_layout and key.startswith(f"rank-{_rank()}.")):
            wanted[key] = torch.empty(saved[key].size, dtype=saved[key].properties.dtype)
    dcp.load(wanted, storage_reader=dcp.FileSystemReader(found))
    _restore_optimizer(strategy, wanted)
    _restore_rank(strategy, wanted, checkpoint, same_layout)
    return checkpoint


def _tensors_of(strategy: Strategy) -> NamedTensors:
    """All that this rank has, by a name that says whose it is."""
    tensors = {}
    for name, parameter in strategy.model.named_parameters():
        tensors[f"model.{name}"] = parameter.detach()
        for slot, value in strategy.optimizer.state.get(parameter, {}).items():
            if value is not None:
                tensors[f"optimizer.{name}.{slot}"] = torch.as_tensor(value)
    own = {f"random.{place}": state for place, state in _random_states().items()}
    own |= {f"state.{path}": tensor for path, tensor in _flat(strategy.states) if tensor.numel()}
    return tensors | {f"rank-{_rank()}.{name}": tensor for name, tensor in own.items()}


def _random_states() -> NamedTensors:
    here = device()
    return {"cpu": torch.get_rng_state()} | ({"cuda": torch.cuda.get_rng_state(here)} if here.type == "cuda" else {})


def _flat(states: Mapping[int, Any]) -> Iterator[tuple[str, Tensor]]:
    """The carried states, of one piece of the batch or of several, as (path, tensor): `1.h`, or `0.1.h`."""
    for place, value in states.items():
        inner = _flat(value) if isinstance(value, Mapping) else zip("hc", value, strict=True)
        yield from ((f"{place}.{path}", tensor) for path, tensor in inner)


def _nested(flat: NamedTensors, where: torch.device) -> dict[int, Any]:
    """The carried states again, as the strategy keeps them."""
    states: dict[int, Any] = {}
    for path in {path.rpartition(".")[0] for path in flat}:
        *pieces, place = map(int, path.split("."))
        of_piece: States = states.setdefault(pieces[0], {}) if pieces else states
        of_piece[place] = (flat[f"{path}.h"].to(where), flat[f"{path}.c"].to(where))
    return states


def _restore_optimizer(strategy: Strategy, loaded: NamedTensors) -> None:
    names = {parameter: name for name, parameter in strategy.model.named_parameters()}
    ordered = [parameter for group in strategy.optimizer.param_groups for parameter in group["params"]]
    slots: dict[str, NamedTensors] = {}
    for key, tensor in loaded.items():
        if key.startswith("optimizer."):
            name, _, slot = key.removeprefix("optimizer.").rpartition(".")
            slots.setdefault(name, {})[slot] = tensor
    state = {place: slots[names[parameter]] for place, parameter in enumerate(ordered) if names[parameter] in slots}
    now = strategy.optimizer.state_dict()
    strategy.optimizer.load_state_dict({"state": state, "param_groups": now["param_groups"]})


def _restore_rank(strategy: Strategy, loaded: NamedTensors, checkpoint: Checkpoint, same_layout: bool) -> None:
    """This rank's random numbers and carried states, if it has the same part of the same work as before."""
    own = {key.removeprefix(f"rank-{_rank()}."): tensor for key, tensor in loaded.items() if key.startswith("rank-")}
    if "random.cpu" in own:
        torch.set_rng_state(own["random.cpu"])
    if "random.cuda" in own and device().type == "cuda":
        torch.cuda.set_rng_state(own["random.cuda"], device())
    states = {key.removeprefix("state."): tensor for key, tensor in own.items() if key.startswith("state.")}
    strategy.states = _nested(states, device())
    if strategy.carry_state and not same_layout and _rank() == 0:
        warnings.warn(
            f"{checkpoint.path.name} was saved by {_in_words(checkpoint.layout)}, and is loaded by "
            f"{_in_words(_layout_of(strategy, of_all=False))}: the carried state begins at zero",
            stacklevel=3,
        )


def _is_optimizers(key: str, strategy: Strategy) -> bool:
    """Whether it belongs to the optimizer, for a parameter that this rank has."""
    mine = {name for name, _ in strategy.model.named_parameters()}
    return key.startswith("optimizer.") and key.removeprefix("optimizer.").rpartition(".")[0] in mine


def _parameters_of(strategy: Strategy) -> dict[str, list]:
    """Shape and dtype of the whole model's parameters: every rank knows all of them, and all decide alike."""
    own = {name: [list(p.shape), str(p.dtype)] for name, p in strategy.model.named_parameters()}
    return dict(sorted((name, facts) for part in _of_all_ranks(own) for name, facts in part.items()))


def _layout_of(strategy: Strategy, of_all: bool = True) -> dict[str, Any]:
    """Who has what. On the same layout a rank finds its own random numbers and carried states again."""
    own = [name for name, _ in strategy.model.named_parameters()]
    layout = {"strategy": type(strategy).__name__, "ranks": dist.get_world_size() if dist.is_initialized() else 1}
    pieces = {"micro_batches": getattr(strategy, "micro_batches", 1)}
    return layout | pieces | ({"parts": _of_all_ranks(own)} if of_all else {})


def _in_words(layout: Mapping[str, Any]) -> str:
    ranks = "1 rank" if layout["ranks"] == 1 else f"{layout['ranks']} ranks"
    pieces = f" in {layout['micro_batches']} micro-batches" if layout["micro_batches"] > 1 else ""
    return f"{layout['strategy']} on {ranks}{pieces}"


def _check_same_model(checkpoint: Checkpoint, ours: dict[str, list]) -> None:
    theirs = checkpoint.parameters
    for name in sorted(theirs.keys() | ours.keys()):
        if theirs.get(name) != ours.get(name):
            raise CheckpointError(
                f"{checkpoint.path} is of another model: it has {_described(name, theirs)}, and this one has "
                f"{_described(name, ours)}. Give the hidden, layers and data that it was trained with"
            )


def _described(name: str, parameters: dict[str, list]) -> str:
    if name not in parameters:
        return f"no {name}"
    shape, dtype = parameters[name]
    return f"{name} of shape {tuple(shape)} in {dtype.removeprefix('torch.')}"


def _rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0


def _of_all_ranks(value: Any) -> list[Any]:
    if not dist.is_initialized():
        return [value]
    values = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


def on_rank_0(act: Callable[[], Any]) -> Any:
    """What `act` returns on rank 0, on every rank. If it raises there, every rank raises.

    Ranks on several machines may see a shared folder in different states: one of them looks, for all.
    """
    answer: list[Any] = [None]
    if _rank() == 0:
        try:
            answer = [act()]
        except OSError as error:
            answer = [CheckpointError(f"the checkpoint cannot be written: {error}")]
        except CheckpointError as error:
            answer = [error]
    if dist.is_initialized():
        dist.broadcast_object_list(answer)
    if isinstance(answer[0], CheckpointError):
        raise answer[0]
    return answer[0]
