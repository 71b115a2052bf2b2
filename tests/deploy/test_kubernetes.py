"""The manifest of docs/deploy: against Kubeflow's own schema where that is at hand, and its command for real."""

from __future__ import annotations

import copy
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from course_lib.command import main
from tests.conftest import PATIENCE

ROOT = Path(__file__).parents[2]
RUNTIME, JOB = yaml.safe_load_all((ROOT / "docs" / "deploy" / "trainjob.yaml").read_text())
POD = RUNTIME["spec"]["template"]["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
TRAINER = JOB["spec"]["trainer"]


def test_the_job_names_the_runtime_beside_it():
    assert JOB["spec"]["runtimeRef"] == {"kind": RUNTIME["kind"], "name": RUNTIME["metadata"]["name"]}


def test_kubeflow_finds_the_container_that_it_tells_who_is_who():
    (job,) = RUNTIME["spec"]["template"]["spec"]["replicatedJobs"]
    labels = job["template"]["metadata"]["labels"]
    assert labels["trainer.kubeflow.org/trainjob-ancestor-step"] == "trainer"
    assert [job["name"], *(container["name"] for container in POD["containers"])] == ["node", "node"]


def test_no_container_runs_as_root_or_may_become_it():
    assert POD["securityContext"]["runAsNonRoot"]
    assert POD["securityContext"]["runAsUser"] > 0
    assert all(not container["securityContext"]["allowPrivilegeEscalation"] for container in POD["containers"])


def test_checkpoints_lie_on_a_volume_that_outlives_a_pod():
    (folder,) = [word.partition("=")[2] for word in TRAINER["args"] if word.startswith("--checkpoint=")]
    (mount,) = [each for each in POD["containers"][0]["volumeMounts"] if Path(folder).is_relative_to(each["mountPath"])]
    (volume,) = [each for each in POD["volumes"] if each["name"] == mount["name"]]
    assert "persistentVolumeClaim" in volume


def test_every_rank_of_a_node_has_a_gpu():
    assert int(TRAINER["resourcesPerNode"]["limits"]["nvidia.com/gpu"]) == TRAINER["numProcPerNode"]


def words_of_course() -> list[str]:
    """What stands behind `torchrun --module course_lib`."""
    assert [*TRAINER["command"], *TRAINER["args"][:2]] == ["torchrun", "--module", "course_lib"]
    return TRAINER["args"][2:]


@pytest.mark.slow
def test_course_train_takes_the_jobs_words(capsys):
    nodes, gpus = str(TRAINER["numNodes"]), str(TRAINER["numProcPerNode"])
    assert main([*words_of_course(), "--slurm", "--nodes", nodes, "--gpus-per-node", gpus, "--print"]) == 0
    assert "replicas=4" in capsys.readouterr().out


@pytest.fixture(scope="module")
def schemas() -> dict[str, Any]:
    """Kubeflow Trainer's schema of each kind, from a clone of it whose folder is in KUBEFLOW_TRAINER."""
    clone = os.environ.get("KUBEFLOW_TRAINER")
    if clone is None:
        pytest.skip("KUBEFLOW_TRAINER does not say where a clone of github.com/kubeflow/trainer is")
    files = Path(clone, "manifests", "base", "crds").glob("trainer.kubeflow.org_*.yaml")
    found = [yaml.safe_load(file.read_text())["spec"] for file in files]
    versions = {each["names"]["kind"]: {v["name"]: v for v in each["versions"]} for each in found}
    return {kind: strict(each["v1alpha1"]["schema"]["openAPIV3Schema"]) for kind, each in versions.items()}


def strict(schema: Any) -> Any:
    """The schema, which then refuses a name that it does not know, as the API server does if asked to be strict."""
    if isinstance(schema, list):
        return [strict(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    made = {name: strict(each) for name, each in schema.items()}
    if isinstance(schema.get("properties"), dict) and "type" in schema:
        made.setdefault("additionalProperties", bool(schema.get("x-kubernetes-preserve-unknown-fields")))
    return made


def complaints(schemas: dict[str, Any], manifest: dict[str, Any]) -> list[str]:
    from jsonschema import Draft202012Validator

    schema = copy.deepcopy(schemas[manifest["kind"]])
    schema["properties"]["metadata"] = {"type": "object"}  # Kubernetes' own, which is not in the file
    return [error.message for error in Draft202012Validator(schema).iter_errors(manifest)]


@pytest.mark.parametrize("manifest", [RUNTIME, JOB], ids=["runtime", "job"])
def test_kubeflows_schema_has_nothing_against_it(schemas, manifest):
    assert complaints(schemas, manifest) == []
    misspelt = manifest | {"spec": manifest["spec"] | {"numberOfNodes": 2}}
    assert any("numberOfNodes" in complaint for complaint in complaints(schemas, misspelt))


def agents(folder: Path, words: list[str], nodes: int, ranks: int) -> Iterator[subprocess.Popen]:
    """The job's command on each of its nodes, with the variables that Kubeflow sets there."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    told = {"PET_NNODES": nodes, "PET_NPROC_PER_NODE": ranks, "PET_MASTER_ADDR": "127.0.0.1", "PET_MASTER_PORT": port}
    here = {"PYTHONPATH": str(ROOT), "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    torchrun = [sys.executable, "-m", "torch.distributed.run"]
    for node in range(nodes):
        told_here = {name: str(value) for name, value in (told | {"PET_NODE_RANK": node}).items()}
        yield subprocess.Popen(
            [*torchrun, *words], cwd=folder, env=os.environ | here | told_here, stdout=subprocess.PIPE, text=True
        )


@pytest.mark.slow  # the quicker neighbor: course train takes the job's words
def test_the_jobs_command_trains_on_two_nodes_with_the_variables_that_kubeflow_sets(tmp_path):
    small = {"--checkpoint": "saved", "--hidden": "8", "--layers": "2", "--updates": "6"}
    words = [word.partition("=")[0] for word in TRAINER["args"]]
    words = [
        f"{name}={small[name]}" if name in small else word for name, word in zip(words, TRAINER["args"], strict=True)
    ]
    started = list(agents(tmp_path, [*words, "--batch=8"], nodes=2, ranks=4))
    try:
        said = "".join(agent.communicate(timeout=PATIENCE)[0] for agent in started)
    finally:
        for agent in started:
            agent.kill()
    assert [agent.returncode for agent in started] == [0, 0], said
    assert "6 updates" in said
    assert (tmp_path / "saved" / "update-00000006").is_dir()
