"""What test_specs.py proves by internals."""

import re
import shlex
from pathlib import Path

import pytest
import yaml
from places import ROOT

from neatpack import __version__
from neatpack.pipeline.cli import _parser

JOBS = ROOT / "jobs"
SCRIPTS = [JOBS / "local" / "pack.sh", JOBS / "slurm" / "pack.sbatch"]
SPECS = [*SCRIPTS, JOBS / "kuberay" / "rayjob.yaml", JOBS / "docker" / "Dockerfile", JOBS / "runtime_env.yaml"]
PINNED = dict(re.findall(r"^([\w.-]+)==(\S+)", (ROOT / "constraints.txt").read_text(), re.MULTILINE))


def commands_in(path: Path) -> list[list[str]]:
    """The words behind `neatpack`, and behind pipeline/pack.py, in a spec and its comments."""
    text = re.sub(r"\\\n(#\s*)?", " ", path.read_text())
    text = text.replace("python pipeline/pack.py", "neatpack pack")
    lines = re.findall(r"(?:^|\s)neatpack ((?:pack|plan|verify) -.*|verify \S+.*)$", text, re.MULTILINE)
    return [[word for word in shlex.split(line) if word != "$@"] for line in lines]


@pytest.mark.parametrize("spec", SPECS, ids=lambda path: path.name)
def test_flags_exist(spec):
    found = commands_in(spec)
    assert found, "no command of neatpack in it"
    for words in found:
        _parser().parse_args(words)


@pytest.fixture
def ray_job():
    return yaml.safe_load((JOBS / "kuberay" / "rayjob.yaml").read_text())


def test_pods_of_the_ray_job_agree(ray_job):
    cluster = ray_job["spec"]["rayClusterSpec"]
    assert cluster["rayVersion"] == PINNED["ray"]
    head, workers = cluster["headGroupSpec"], cluster["workerGroupSpecs"]
    for group in [head] + workers:
        pod = group["template"]["spec"]
        (container,) = pod["containers"]
        assert container["image"] == f"neatpack:{__version__}"
        assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}
        words = shlex.split(ray_job["spec"]["entrypoint"])
        paths = [word for word in words if word.startswith("/")]
        assert len(paths) == 3
        assert all(path.startswith(container["volumeMounts"][0]["mountPath"] + "/") for path in paths)
    (_, *arguments) = shlex.split(ray_job["spec"]["entrypoint"])
    _parser().parse_args(arguments)
    assert all(group["minReplicas"] <= group["replicas"] <= group["maxReplicas"] for group in workers)
