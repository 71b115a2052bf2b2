"""Lesson 10's arrays are compared by the worst pair among them, and its ranks meet through TensorFlow or JAX."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import socket
import sys

import numpy as np
import pytest
import torch.distributed as dist

from course_lib import launch
from course_lib.frameworks import other_frameworks
from course_lib.frameworks.other_frameworks import closeness, import_quietly, only_this_machine
from course_lib.runtime import machine

ONES = np.ones((2, 3))


@pytest.mark.parametrize(
    ("off", "said"),
    [(0, "equal to 1e-10"), (3e-8, "equal to 1e-05"), (5e-4, "equal to 1e-03"), (0.02, "differs by 0.020")],
)
def test_the_farthest_number_of_all_arrays_decides(off, said):
    other = ONES.copy()
    other[1, 2] += off
    assert closeness([ONES, ONES, ONES], [ONES, other, ONES]) == said


def test_what_is_not_a_number_is_equal_to_nothing():
    broken = ONES.copy()
    broken[0, 0] = np.nan
    assert closeness([ONES, ONES], [ONES, broken]) == "differs by nan"


def test_arrays_of_other_shapes_are_not_compared_number_by_number():
    assert closeness([ONES], [ONES[:1]]) == "differs in shape: [(2, 3)] and [(1, 3)]"
    with pytest.raises(ValueError, match="shorter"):
        closeness([ONES, ONES], [ONES])


@pytest.mark.parametrize("ending", ["", "raise ImportError('no library')"])
def test_an_import_shows_what_it_wrote_only_if_it_fails(ending, tmp_path, monkeypatch, capfd):
    (tmp_path / "chatty_framework.py").write_text(f"import os\nos.write(2, b'no GPU here')\n{ending}\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "chatty_framework", raising=False)
    with pytest.raises(ImportError) if ending else contextlib.nullcontext():
        import_quietly("chatty_framework")
    os.write(2, b", afterwards")
    assert capfd.readouterr().err == ("no GPU here, afterwards" if ending else ", afterwards")


def test_a_framework_that_is_not_there_is_named_with_what_to_do(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"not installed here: tensorflow and jax. Run %pip install 'course-lib"):
        other_frameworks.get_ready()


def needs(name: str) -> pytest.MarkDecorator:
    missing = importlib.util.find_spec(name) is None
    return pytest.mark.skipif(missing, reason=f"{name} is not installed: pip install 'course-lib[frameworks]'")


def sum_in_jax(addresses: list[str]) -> float:
    """The sum of 1 over all ranks, as JAX's documentation does it."""
    import jax
    from jax.sharding import NamedSharding, PartitionSpec

    first = addresses[0]
    jax.distributed.initialize(first, dist.get_world_size(), dist.get_rank(), coordinator_bind_address=first)
    mesh, cut = jax.make_mesh((jax.device_count(),), ("data",)), PartitionSpec("data")
    numbers = jax.make_array_from_process_local_data(NamedSharding(mesh, cut), np.ones(1, dtype="float32"))
    total = jax.shard_map(lambda x: jax.lax.psum(x, "data"), mesh=mesh, in_specs=cut, out_specs=PartitionSpec())
    return float(jax.jit(total)(numbers)[0])


def sum_in_tensorflow(addresses: list[str]) -> float:
    """The sum of 1 over all ranks, as TensorFlow's documentation does it."""
    task = {"type": "worker", "index": dist.get_rank()}
    os.environ["TF_CONFIG"] = json.dumps({"cluster": {"worker": addresses}, "task": task})
    import_quietly("tensorflow")
    import tensorflow

    only_this_machine()
    strategy = tensorflow.distribute.MultiWorkerMirroredStrategy()

    def on_replica():
        context = tensorflow.distribute.get_replica_context()
        return context.all_reduce(tensorflow.distribute.ReduceOp.SUM, tensorflow.constant(1.0))

    return float(tensorflow.function(lambda: strategy.run(on_replica))())


def own_address() -> str:
    """This machine's on its network: nothing is sent to find it out."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as towards_elsewhere:
        try:
            towards_elsewhere.connect(("192.0.2.1", 9))
        except OSError:
            pytest.skip("this machine has no network")
        return towards_elsewhere.getsockname()[0]


def answers_at(address: str, port: int) -> bool:
    try:
        socket.create_connection((address, port), timeout=1).close()
    except OSError:
        return False
    return True


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux can close TensorFlow's port")
@pytest.mark.parametrize(
    "total",
    [pytest.param(sum_in_jax, marks=needs("jax")), pytest.param(sum_in_tensorflow, marks=needs("tensorflow"))],
)
def test_ranks_meet_through_a_framework_at_ports_that_answer_this_machine_alone(total):
    address = own_address()

    def meet(addresses: list[str]) -> tuple:
        summed = total(addresses)
        ports = [sock.getsockname()[1] for sock in machine.internet_sockets() if machine.is_listening(sock)]
        return summed, {(answers_at("127.0.0.1", port), answers_at(address, port)) for port in ports}

    addresses = [f"127.0.0.1:{port}" for port in machine.free_ports(2)]
    run = launch(meet, addresses, ranks=2, timeout=300)
    assert list(run) == [(2.0, {(True, False)})] * 2
    assert run.output == []
