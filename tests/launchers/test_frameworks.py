"""Ranks that meet through TensorFlow or JAX: they work, and fail, as PyTorch's do."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
import socket
import sys
import time
from functools import cache
from pathlib import Path

import pytest

from course_lib import LaunchError, RankDied, RankFailed, RanksStuck, launch
from course_lib.launchers.process import frameworks

pytestmark = pytest.mark.slow

slow = pytest.mark.slow


def needs(name: str) -> pytest.MarkDecorator:
    missing = importlib.util.find_spec(name) is None
    return pytest.mark.skipif(missing, reason=f"{name} is not installed: pip install 'course-lib[frameworks]'")


# Importing TensorFlow takes each launch some seconds: of its faults one is in `make test`, of JAX's all are.
JAX = pytest.param("jax", marks=needs("jax"))
TENSORFLOW = pytest.param("tensorflow", marks=needs("tensorflow"))
BOTH = [JAX, pytest.param("tensorflow", marks=[needs("tensorflow"), slow])]


@cache  # a process makes it once, before anything else
def multi_worker_strategy():
    import tensorflow

    return tensorflow.distribute.MultiWorkerMirroredStrategy()


def sum_over_ranks(framework: str, number: float) -> float:
    """The sum of all ranks' numbers, as the framework's own documentation does it."""
    if framework == "jax":
        import jax
        from jax.sharding import NamedSharding, PartitionSpec

        mesh = jax.make_mesh((jax.device_count(),), ("data",))
        cut = PartitionSpec("data")
        numbers = jax.make_array_from_process_local_data(NamedSharding(mesh, cut), jax.numpy.array([number]))
        total = jax.shard_map(lambda x: jax.lax.psum(x, "data"), mesh=mesh, in_specs=cut, out_specs=PartitionSpec())
        return float(jax.jit(total)(numbers)[0])
    import tensorflow

    strategy = multi_worker_strategy()

    def on_replica():
        context = tensorflow.distribute.get_replica_context()
        return context.all_reduce(tensorflow.distribute.ReduceOp.SUM, tensorflow.constant(number))

    return float(tensorflow.function(lambda: strategy.run(on_replica))())


def faulty(framework: str, fault: str, folder: Path) -> float:
    """All ranks sum once; then rank 1 does something else than to sum again."""
    rank = int(os.environ["RANK"])
    (folder / str(rank)).write_text(str(os.getpid()))
    total = sum_over_ranks(framework, rank + 1.0)
    if rank == 1 and fault == "raise":
        raise ValueError("no data")
    if rank == 1 and fault == "exit":
        os._exit(3)
    if rank == 1 and fault == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if rank == 1 and fault == "hang":
        time.sleep(10_000)
    return total


def faulty_then_sum(framework: str, fault: str, folder: Path) -> float:
    return faulty(framework, fault, folder) + sum_over_ranks(framework, 1.0)


def processes_left(folder: Path) -> list[int]:
    ranks = [int(file.read_text()) for file in folder.iterdir()]
    assert len(ranks) == 2
    return [rank for rank in ranks if Path(f"/proc/{rank}").exists()]


@pytest.mark.parametrize("framework", [JAX, TENSORFLOW])
def test_ranks_meet_through_the_framework_and_say_only_what_they_print(framework):
    def meet():
        rank = int(os.environ["RANK"])
        total = sum_over_ranks(framework, rank + 1.0)
        print(f"the sum is {total}")
        return total, "MASTER_PORT" in os.environ, sys.modules["torch.distributed"].is_initialized()

    run = launch(meet, ranks=2, framework=framework, timeout=300)
    assert list(run) == [(3.0, True, False)] * 2
    assert sorted(run.output) == [(0, "the sum is 3.0"), (1, "the sum is 3.0")]


@pytest.mark.parametrize("framework", BOTH)
def test_a_rank_that_raises_is_named_with_its_line(framework, tmp_path):
    with pytest.raises(RankFailed, match="rank 1 raised ValueError: no data") as caught:
        launch(faulty_then_sum, framework, "raise", tmp_path, ranks=2, framework=framework, timeout=300)
    assert 'raise ValueError("no data")' in str(caught.value)
    assert caught.value.output == []
    assert processes_left(tmp_path) == []


@pytest.mark.parametrize(
    ("framework", "fault", "code"),
    [
        pytest.param("jax", "exit", 3, marks=needs("jax")),
        pytest.param("jax", "kill", -signal.SIGKILL, marks=needs("jax")),
        pytest.param("tensorflow", "exit", 3, marks=[needs("tensorflow"), slow]),
        pytest.param("tensorflow", "kill", -signal.SIGKILL, marks=needs("tensorflow")),
    ],
)
def test_the_first_to_die_is_named_though_the_framework_ends_the_others(framework, fault, code, tmp_path):
    with pytest.raises(RankDied) as caught:
        launch(faulty_then_sum, framework, fault, tmp_path, ranks=2, framework=framework, timeout=300)
    assert (caught.value.rank, caught.value.exitcode) == (1, code)
    assert caught.value.output == []
    assert processes_left(tmp_path) == []


@pytest.mark.parametrize("framework", BOTH)
def test_ranks_that_hang_are_stuck_and_say_at_which_line(framework, tmp_path):
    with pytest.raises(RanksStuck) as caught:
        launch(faulty_then_sum, framework, "hang", tmp_path, ranks=2, framework=framework, timeout=4)
    assert "not finished after 4 s" in str(caught.value)
    assert "time.sleep(10_000)" in str(caught.value.where[1])
    assert caught.value.where[0].frame is not None
    assert Path(caught.value.where[0].frame.file).name == Path(__file__).name
    assert processes_left(tmp_path) == []


def test_a_launch_of_pytorch_imports_no_other_framework():
    run = launch(lambda: [name for name in ("tensorflow", "jax", "keras") if name in sys.modules], ranks=2)
    assert list(run) == [[], []]


@needs("jax")
def test_what_one_launch_has_imported_the_next_one_does_not_pay_for():
    launch(lambda: None, ranks=1, framework="jax", timeout=300)
    assert list(launch(lambda: "jax" in sys.modules, ranks=1)) == [False]


def test_a_framework_that_is_not_there_is_refused_in_one_sentence(monkeypatch):
    monkeypatch.setattr(frameworks.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(LaunchError, match=r"'jax': it is not installed here: pip install 'course-lib\[frameworks\]'"):
        launch(print, ranks=2, framework="jax")
    with pytest.raises(ValueError, match="'mxnet': choose torch, tensorflow or jax"):
        launch(print, ranks=2, framework="mxnet")


@pytest.mark.parametrize("more", [{"profile": True}, {"on": object()}])
def test_what_is_only_for_pytorchs_ranks_is_refused(more, monkeypatch):
    monkeypatch.setattr(frameworks.importlib.util, "find_spec", lambda name: object())
    with pytest.raises(ValueError, match="are for PyTorch's ranks; leave them out"):
        launch(print, ranks=2, framework="jax", **more)


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


@pytest.mark.parametrize("framework", [JAX, pytest.param("tensorflow", marks=needs("tensorflow"))])
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux can close TensorFlow's port")
def test_the_ports_that_ranks_meet_at_answer_this_machine_alone(framework):
    address = own_address()

    def where_it_answers():
        sum_over_ranks(framework, 1.0)
        ports = [one.getsockname()[1] for one in frameworks.listening_sockets()]
        return [(answers_at("127.0.0.1", port), answers_at(address, port)) for port in ports]

    for rank in launch(where_it_answers, ranks=2, framework=framework, timeout=300):
        assert set(rank) == {(True, False)}


@pytest.mark.parametrize("ending", ["", "raise ImportError('no library')"])
def test_an_import_shows_what_it_wrote_only_if_it_fails(ending, tmp_path, monkeypatch, capfd):
    (tmp_path / "chatty_framework.py").write_text(f"import os\nos.write(2, b'no GPU here')\n{ending}\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "chatty_framework", raising=False)
    with pytest.raises(ImportError) if ending else contextlib.nullcontext():
        frameworks.import_quietly("chatty_framework")
    os.write(2, b", afterwards")
    assert capfd.readouterr().err == ("no GPU here, afterwards" if ending else ", afterwards")
