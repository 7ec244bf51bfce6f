"""The specs in jobs/ for a machine, Slurm, Kubernetes, Docker and a running Ray: each is run, or held to what is known.

Slurm is tests/jobs/slurm_here.py. There is neither Kubernetes nor a registry here: the RayJob is held to the fields of
KubeRay's ray.io/v1, and the Dockerfile to the files and versions that it names.
"""

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import jsonschema
import psutil
import pytest
import yaml
from places import DEMO_PROCESSOR, ROOT
from support.commands import assert_verified
from support.data import mixed_rows
from support.outputs import files_of
from support.packed import tiny_config

from neatpack import __version__, run_pack

pytestmark = [pytest.mark.cluster, pytest.mark.net]

JOBS = ROOT / "jobs"
SCRIPTS = [JOBS / "local" / "pack.sh", JOBS / "slurm" / "pack.sbatch"]
SPECS = [*SCRIPTS, JOBS / "kuberay" / "rayjob.yaml", JOBS / "docker" / "Dockerfile", JOBS / "runtime_env.yaml"]
SMALL = ["--pack-size", "512", "--shard-mb", "1", "--group-size", "4"]  # as tiny_config
PINNED = dict(re.findall(r"^([\w.-]+)==(\S+)", (ROOT / "constraints.txt").read_text(), re.MULTILINE))


@pytest.fixture
def programs(tmp_path) -> Path:
    """A folder for PATH: `neatpack` of this checkout, and the programs of a Slurm."""
    folder = tmp_path / "bin"
    folder.mkdir()
    lines = {
        name: f"{shlex.quote(str(ROOT / 'tests/jobs/slurm_here.py'))} {name}"
        for name in ("srun", "scontrol", "hostname")
    }
    for name, line in {**lines, "neatpack": "-m neatpack.pipeline.cli"}.items():
        (folder / name).write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {line} "$@"\n')
        (folder / name).chmod(0o755)
    return folder


@pytest.fixture
def session():
    """Where Ray keeps its things. Short: the paths of its sockets may have 107 characters."""
    folder = tempfile.mkdtemp(prefix="np")
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def environment(programs: Path, session: str, **more: str) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("RAY_", "SLURM_"))}
    path = os.pathsep.join([str(programs), str(Path(sys.executable).parent), kept["PATH"]])
    ray = {"RAY_TMPDIR": session, "RAY_worker_niceness": "0"}  # see tests/conftest.py
    return {**kept, "PATH": path, "PYTHONPATH": str(ROOT), **ray} | more


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_scripts_are_sound_shell(script):
    assert os.access(script, os.X_OK)
    subprocess.run(["bash", "-n", str(script)], check=True)
    if shellcheck := shutil.which("shellcheck"):
        subprocess.run([shellcheck, str(script)], check=True)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_scripts_say_how_they_are_called(script):
    done = subprocess.run(["bash", str(script), "meta.json"], capture_output=True, text=True)
    assert done.returncode == 2 and "META PROCESSOR OUT" in done.stderr


def test_the_local_script_packs_and_verifies(tiny, tmp_path, programs, session):
    meta = mixed_rows(tiny).write()
    run_pack(tiny_config(meta, tmp_path / "expected", pixels=""))
    done = subprocess.run(
        [SCRIPTS[0], meta, DEMO_PROCESSOR, tmp_path / "out", *SMALL, "--engine", "inline"],
        env=environment(programs, session), capture_output=True, text=True, timeout=900,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert ": verified. 42 input rows accounted for" in done.stdout
    assert files_of(tmp_path / "out") == files_of(tmp_path / "expected")


def test_the_exit_code_of_the_local_script_is_that_of_the_job(tiny, tmp_path, programs, session):
    tiny.text("a", "b").rows.append("{broken")
    arguments = [tiny.write(), DEMO_PROCESSOR, tmp_path / "out", *SMALL, "--engine", "inline"]
    done = subprocess.run(
        [SCRIPTS[0], *arguments], env=environment(programs, session), capture_output=True, timeout=900
    )
    assert done.returncode == 1


def test_the_slurm_script_packs_on_two_nodes_and_ends_only_what_it_started(tiny, tmp_path, programs, session):
    meta = mixed_rows(tiny).write()
    run_pack(tiny_config(meta, tmp_path / "expected", pixels=""))
    bystander = subprocess.Popen(["bash", "-c", "exec -a raylet sleep 600"])  # what `ray stop` would end
    slurm = {"SLURM_JOB_ID": str(os.getpid()), "SLURM_JOB_NODELIST": "node2,node3", "SLURM_CPUS_PER_TASK": "1"}
    try:
        done = subprocess.run(
            [SCRIPTS[1], meta, DEMO_PROCESSOR, tmp_path / "out", *SMALL],
            env=environment(programs, session, **slurm), capture_output=True, text=True, timeout=900,
        )  # fmt: skip
        assert bystander.poll() is None
    finally:
        bystander.send_signal(signal.SIGKILL)
        bystander.wait()
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    assert "on 2 nodes of 1 CPUs\n" in done.stderr and "127.0.0.3" in done.stderr, "the second node came, too"
    assert ": verified. 42 input rows accounted for" in done.stdout
    assert_verified(tmp_path / "out")
    assert files_of(tmp_path / "out") == files_of(tmp_path / "expected")
    left = [
        process.pid
        for process in psutil.process_iter(["cmdline"])
        if session in " ".join(process.info["cmdline"] or [])
    ]
    assert left == [], "of its Ray"


# Kubernetes: fields of RayJob in ray.io/v1, and of pods, as far as this spec uses them.

NAME = {"type": "string", "pattern": "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"}
TEXT, WHOLE = {"type": "string"}, {"type": "integer", "minimum": 0}


def an_object(required: str = "", **properties):
    return {"type": "object", "properties": properties, "required": required.split(), "additionalProperties": False}


def a_list(items):
    return {"type": "array", "items": items}


QUANTITIES = an_object("cpu memory", cpu=TEXT, memory={"type": "string", "pattern": "^[0-9]+Gi$"})
CONTAINER = an_object(
    "name image resources",
    name=NAME,
    image=TEXT,
    resources=an_object("requests limits", requests=QUANTITIES, limits=QUANTITIES),
    envFrom=a_list(an_object(secretRef=an_object("name", name=NAME, optional={"type": "boolean"}))),
    volumeMounts=a_list(an_object("name mountPath", name=NAME, mountPath=TEXT)),
)
CLAIM = an_object("claimName", claimName=NAME)
POD_SPEC = an_object(
    "containers",
    securityContext=an_object(runAsNonRoot={"const": True}, runAsUser=WHOLE, fsGroup=WHOLE),
    containers=a_list(CONTAINER),
    volumes=a_list(an_object("name", name=NAME, persistentVolumeClaim=CLAIM)),
)
LABELS = {"type": "object", "additionalProperties": TEXT}
GROUP = {
    "rayStartParams": {"type": "object", "additionalProperties": TEXT},
    "template": an_object("metadata spec", metadata=an_object("labels", labels=LABELS), spec=POD_SPEC),
}
WORKERS = an_object("groupName template", groupName=NAME, replicas=WHOLE, minReplicas=WHOLE, maxReplicas=WHOLE, **GROUP)
CLUSTER = an_object(
    "rayVersion authOptions headGroupSpec",
    rayVersion=TEXT,
    authOptions=an_object("mode", mode={"const": "token"}),
    headGroupSpec=an_object("rayStartParams template", **GROUP),
    workerGroupSpecs=a_list(WORKERS),
)
RAY_JOB = an_object(
    "apiVersion kind metadata spec",
    apiVersion={"const": "ray.io/v1"},
    kind={"const": "RayJob"},
    metadata=an_object("name", name=NAME),
    spec=an_object(
        "entrypoint rayClusterSpec",
        entrypoint=TEXT,
        backoffLimit=WHOLE,
        shutdownAfterJobFinishes={"type": "boolean"},
        ttlSecondsAfterFinished=WHOLE,
        runtimeEnvYAML=TEXT,
        rayClusterSpec=CLUSTER,
    ),
)


SELECTOR = an_object(matchLabels=LABELS)
PEER = an_object("podSelector", podSelector=an_object("matchLabels", matchLabels=LABELS), namespaceSelector=SELECTOR)
PORT = an_object("protocol port", protocol={"const": "TCP"}, port=WHOLE)
NETWORK_POLICY = an_object(
    "apiVersion kind metadata spec",
    apiVersion={"const": "networking.k8s.io/v1"},
    kind={"const": "NetworkPolicy"},
    metadata=an_object("name", name=NAME),
    spec=an_object(
        "podSelector policyTypes ingress",
        podSelector=an_object("matchLabels", matchLabels=LABELS),
        policyTypes={"const": ["Ingress"]},
        ingress=a_list(an_object("from", **{"from": a_list(PEER), "ports": a_list(PORT)})),
    ),
)


@pytest.fixture
def ray_job():
    return yaml.safe_load((JOBS / "kuberay" / "rayjob.yaml").read_text())


def test_the_ray_job_has_the_fields_of_its_kind(ray_job):
    jsonschema.validate(ray_job, RAY_JOB)
    wrong = {**ray_job, "spec": {**ray_job["spec"], "entryPoint": "x"}}
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(wrong, RAY_JOB)


def test_network_policy_admits_only_the_pods_of_the_job(ray_job):
    policy = yaml.safe_load((JOBS / "kuberay" / "network_policy.yaml").read_text())
    jsonschema.validate(policy, NETWORK_POLICY)
    labels = policy["spec"]["podSelector"]["matchLabels"]
    cluster = ray_job["spec"]["rayClusterSpec"]
    for group in [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]:
        assert labels.items() <= group["template"]["metadata"]["labels"].items()
    own, operator = policy["spec"]["ingress"]
    admitted = [peer["podSelector"]["matchLabels"] for peer in own["from"]]
    assert admitted == [labels, {"job-name": ray_job["metadata"]["name"]}]
    assert operator["ports"] == [{"protocol": "TCP", "port": 8265}]


def runtime_envs(ray_job):
    return {
        "rayjob.yaml": yaml.safe_load(ray_job["spec"]["runtimeEnvYAML"]),
        "runtime_env.yaml": yaml.safe_load((JOBS / "runtime_env.yaml").read_text()),
    }


def test_runtime_envs_are_rays(ray_job):
    """tests/test_ray_job.py submits a job with the second."""
    from ray.runtime_env import RuntimeEnv

    for found in runtime_envs(ray_job).values():
        RuntimeEnv(**found)
        assert "TOKENIZERS_PARALLELISM" not in found["env_vars"], "the engine sets it, and Ray takes no variable twice"
    for pattern in runtime_envs(ray_job)["runtime_env.yaml"]["excludes"]:
        assert pattern in ("/.git", "/.venv", "/demo-out") or (ROOT / pattern.strip("/")).is_dir(), pattern


def test_the_dockerfile_names_what_is_there():
    text = (JOBS / "docker" / "Dockerfile").read_text()
    steps = [line.split(None, 1) for line in text.splitlines() if re.match(r"[A-Z]+ ", line)]
    assert steps[:2] == [["ARG", "BASE=python:3.11.14-slim-bookworm"], ["FROM", "${BASE}"]]
    copied = [word for kind, words in steps if kind == "COPY" for word in words.split()[:-1]]
    assert all((ROOT / name).exists() for name in copied)
    allowed = (JOBS / "docker" / "Dockerfile.dockerignore").read_text().splitlines()
    assert sorted(line[1:] for line in allowed if line.startswith("!")) == sorted(copied)
    assert f'"torch=={PINNED["torch"]}+cpu"' in text and '".[pack]"' in text
    assert set(re.findall(r"neatpack:([\d.]+)", text)) == {__version__}
    users = [words for kind, words in steps if kind == "USER"]
    assert users[-1] == "packer" and "--uid 1000 packer" in text


@pytest.mark.parametrize("spec", SPECS, ids=lambda path: path.name)
def test_no_spec_names_a_host(spec):
    assert not re.search(r"https?://|\b[\w-]+\.(com|io|org|net)\b(?!/v1$)", spec.read_text(), re.MULTILINE)
