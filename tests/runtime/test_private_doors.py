"""Private names of PyTorch and CPython: each one that we use is named here, and a version that lacks one is found."""

from __future__ import annotations

import ast
import platform
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import course_lib
from course_lib.runtime.private_doors import COLLECTIVES, doors, was_in_batch

LIBRARY = Path(course_lib.__file__).parent
DOCUMENTED = {"os._exit"}
ONLY_A_TYPE = {"argparse._ArgumentGroup", "argparse._SubParsersAction", "multiprocessing.connection._ConnectionBase"}
# What runs in the sandbox has doors of its own: it ends and replaces the servers that a submission was forked from.
EXCEPT = {"runtime/private_doors.py", "checks/inside/runner.py", "checks/inside/spare_server.py"}


def same_collective(name: str) -> list[str]:
    """The methods behind one collective: a version of PyTorch has some of them."""
    op = COLLECTIVES.get(name.removeprefix("ProcessGroup."))
    return [f"ProcessGroup.{method}" for method in COLLECTIVES if COLLECTIVES[method] == op] or [name]


@pytest.mark.parametrize("name", doors())
def test_a_private_door_is_open(name):
    if "nccl" in name and not dist.is_nccl_available():
        pytest.skip("this PyTorch has no NCCL")
    assert any(doors()[each] for each in same_collective(name)), (
        f"{name} is shut in PyTorch {torch.__version__} on Python {platform.python_version()}: "
        "course_lib/runtime/private_doors.py says what that costs"
    )


def private_names(source: str) -> set[str]:
    """What a module takes from other packages than the course that begins with an underscore."""
    tree, imported, found = ast.parse(source), set(), set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imported |= {each.asname or each.name.partition(".")[0] for each in node.names}
        elif isinstance(node, ast.ImportFrom) and not (node.module or "course_lib").startswith("course_lib"):
            imported |= {each.asname or each.name for each in node.names}
            found |= {f"{node.module}.{each.name}" for each in node.names if each.name.startswith("_")}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__"):
            owner = node.value
            while isinstance(owner, ast.Attribute):
                owner = owner.value
            if isinstance(owner, ast.Name) and owner.id in imported:
                found.add(ast.unparse(node))
    return found - DOCUMENTED - ONLY_A_TYPE


def test_nothing_private_is_used_elsewhere():
    files = {
        path.relative_to(LIBRARY).as_posix(): path for path in LIBRARY.rglob("*.py") if "_course" not in path.parts
    }
    used = {name: private_names(path.read_text()) for name, path in files.items() if name not in EXCEPT}
    assert {name: found for name, found in used.items() if found} == {}
    assert private_names("import atexit; atexit._clear()") == {"atexit._clear"}


class Group:
    """A process group whose batches can be told to fail when they end."""

    def _start_coalescing(self, device):
        pass

    def _end_coalescing(self, device):
        raise RuntimeError("the communicator was aborted")


@pytest.mark.parametrize("raises", ["at the end of the batch", "inside the batch"])
def test_a_batch_that_was_aborted_is_told_from_one_in_which_a_call_failed(raises):
    def batch():
        with dist.distributed_c10d._coalescing_manager(Group(), torch.device("cpu")):
            if raises == "inside the batch":
                raise RuntimeError("this call is wrong")

    with pytest.raises(RuntimeError) as caught:
        batch()
    assert was_in_batch(caught.value) == (raises == "at the end of the batch")
