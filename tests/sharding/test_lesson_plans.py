"""What lesson 07 prints about plans, from the block times that come with the course."""

from __future__ import annotations

import pytest

from course_lib.core.memory import BatchSize, lstm_size
from course_lib.messages.link import Link
from course_lib.model_parallel.placement import CannotPlace
from course_lib.model_parallel.work import Work
from course_lib.one_device.block_times import h200_block_times
from course_lib.sharding.choose_plan import best_of_each_way, plans
from course_lib.sharding.network import Network
from course_lib.sharding.plan import Plan
from course_lib.sharding.what_if import sensitivity as sensitivity_of

# Nodes of eight H100s: NVLink 4 and 400 Gb/s each, at the peaks of the data sheets, and NCCL's latency of a ring's step
H100S = Network(Link(3.4e-6, 450e9), Link(9.6e-6, 50e9), per_node=8)
H100_MEMORY = 80 * 10**9
NODES = Network(Link(5e-6, 300e9), Link(15e-6, 50e9), per_node=8)
FLAT, FAST = (Network.flat(Link(20e-6, bandwidth)) for bandwidth in (25e9, 300e9))
SMALL = {"micro_batches": (1, 2, 4), "chunks": (2, 4), "gather_ahead": False, "overhead": 0.003}
FOUR = {"micro_batches": (1, 2, 4), "chunks": (2, 4, 8), "overhead": 500e-6}
GRID = {"micro_batches": (1, 2, 4), "chunks": (4, 16), "overhead": 500e-6}


def work(hidden: int, layers: int, sequences: int, **given) -> Work:
    return Work.of(lstm_size(50_000, hidden, layers), BatchSize(128, sequences), h200_block_times(), **given)


def ranking(made: list[Plan]) -> list[tuple[str, int]]:
    return [(plan.name, round(1000 * plan.seconds)) for plan in best_of_each_way(made)]


def test_a_large_model_on_four_ranks():
    made = plans(work(4096, 6, 64, optimizer="SGD"), 4, FLAT, **SMALL)
    assert len(made) == 144
    assert ranking(made) == [
        ("1 x 4", 512), ("2 x 2 ZeRO-1 over 2", 536), ("2 x 2", 537), ("4 x 1 ZeRO-1 over 4", 627), ("4 x 1", 630),
        ("2 x 2 sharded", 920), ("1 x 4 sharded", 961),
    ]  # fmt: skip
    assert min(made, key=lambda plan: plan.bytes).mesh == "1 x 4"


def test_stages_win_with_few_sequences_and_shards_with_many():
    slow = ranking(plans(work(4096, 6, 64), 4, FLAT, **FOUR))
    assert slow[:4] == [("1 x 4", 431), ("2 x 2 ZeRO-1 over 2", 502), ("2 x 2", 504), ("1 x 4 sharded", 627)]
    in_tf32 = ranking(plans(work(4096, 6, 64, precision="tf32"), 4, FLAT, **FOUR))
    assert in_tf32[:2] == [("1 x 4", 265), ("2 x 2 ZeRO-1 over 2", 272)]
    few, many = (ranking(plans(work(4096, 6, n, precision="bfloat16"), 4, FAST, **FOUR)) for n in (64, 1024))
    assert few[:4] == [("1 x 4", 83), ("2 x 2 ZeRO-1 over 2", 94), ("2 x 2", 100), ("1 x 4 sharded", 105)]
    assert many == [
        ("1 x 4 sharded", 398), ("4 x 1 ZeRO-1 over 4", 400), ("2 x 2 sharded", 404), ("4 x 1", 416),
        ("2 x 2 ZeRO-1 over 2", 459), ("2 x 2", 465), ("1 x 4", 531),
    ]  # fmt: skip


def test_with_less_memory_it_moves_blocks_then_recomputes_and_then_gives_up():
    job, found, only = work(4096, 6, 64, optimizer="SGD"), [], {**SMALL, "schedules": ["1f1b", "wavefront"]}
    for gib in (8, 4, 3):
        plan = plans(job, 4, FLAT, memory=gib * 2**30, **only)[0]
        found.append((round(1000 * plan.seconds), plan.placement.stage_of, plan.pieces.recompute))
    assert found == [
        (555, (0, 0, 0, 1, 1, 2, 2, 3), False),
        (590, (0, 0, 1, 1, 2, 2, 3, 3), False),
        (722, (0, 0, 1, 1, 2, 2, 3, 3), True),
    ]
    with pytest.raises(CannotPlace, match="the smallest needs 2,813,467,264 bytes"):
        plans(job, 4, FLAT, memory=2 * 2**30, **SMALL)


@pytest.fixture(scope="module")
def a_thousand() -> tuple[Work, list[Plan]]:
    job = work(8192, 16, 4096, precision="bfloat16")
    return job, plans(job, 1024, H100S, **GRID)


@pytest.mark.slow
def test_nine_billion_parameters_on_a_thousand_gpus(a_thousand):
    first = ranking([plan for plan in a_thousand[1] if plan.bytes <= H100_MEMORY])
    assert first[:3] == [
        ("128 x 8 ZeRO-1 over 128", 429),
        ("256 x 4 ZeRO-1 over 256", 434),
        ("128 x 8 ZeRO-1 over 8", 440),
    ]
    assert next(name for name, _ in first if "ZeRO" not in name) == "128 x 8"


@pytest.mark.slow
def test_what_would_have_to_change_for_another_mesh_to_win(a_thousand):
    job, made = a_thousand
    told = sensitivity_of(made, job, H100S, memory=H100_MEMORY)
    found = [(each.quantity, f"{each.factor:.2g}", each.winner.mesh, each.winner.inside) for each in told.changes]
    assert found == [
        ("bandwidth inside a node", "2.6", "256 x 4", "replicas"),
        ("bandwidth inside a node", "0.11", "128 x 8", "stages"),
        ("bandwidth between nodes", "9", "128 x 8", "stages"),
        ("bandwidth between nodes", "0.26", "64 x 16", "replicas"),
        ("speed of a device", "13", "64 x 16", "replicas"),
        ("sequences per update", "1.1", "256 x 4", "replicas"),
    ]
