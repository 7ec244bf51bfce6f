"""Two nodes of Ray that share nothing but a bucket, and one of them lost in the middle."""

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from faulty_proxy import faulty_proxy
from helpers import DEMO_PROCESSOR, ROOT, TinyData, files_of, mixed_rows, tiny_config
from s3_server import S3

from jobs.breaking.processes import named_below
from neatpack.pipeline.run import run_pack
from neatpack.storage import clients
from neatpack.storage.location import Location

pytestmark = pytest.mark.cluster

SHAPE = ["--pack-size", "300", "--shard-mb", "1", "--group-size", "4", "--pixels", "u8"]


def uploaded(folder: Path, target: Location) -> None:
    for file in folder.rglob("*"):
        if file.is_file():
            (target / str(file.relative_to(folder))).write_bytes(file.read_bytes())


def test_a_node_is_lost(s3: S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import ray
    from ray.cluster_utils import Cluster

    data = mixed_rows(mixed_rows(TinyData(tmp_path / "data"), 20, 20), 20, 20)
    run_pack(tiny_config(data.write(), tmp_path / "out", pack_size=300))
    with faulty_proxy(s3) as proxy:
        for name, value in proxy.env.items():
            monkeypatch.setenv(name, value)
        clients.connect.cache_clear()
        bucket = Location.parse(f"s3://{s3.bucket}/two-nodes")
        uploaded(tmp_path / "data", bucket / "data")
        uploaded(DEMO_PROCESSOR, bucket / "processor")
        # Each node has a disk of its own, and knows of no other place than the bucket.
        disks = [tmp_path / name for name in ("head", "node", "driver")]
        for disk in disks:
            disk.mkdir()
        node_of = lambda disk: {"num_cpus": 1, "env_vars": {"TMPDIR": str(disk)}}  # noqa: E731
        head: dict[str, Any] = {**node_of(disks[0]), "include_dashboard": False}
        cluster = Cluster(initialize_head=True, head_node_args=head)
        try:
            node = cluster.add_node(**node_of(disks[1]))
            raylet = node.all_processes["raylet"][0].process.pid
            where = ["--meta", (bucket / "data/meta.json").uri, "--out", (bucket / "out").uri]
            what = ["--processor", (bucket / "processor").uri, "--engine", "ray", *SHAPE]
            env = {**os.environ, "PYTHONPATH": str(ROOT), "RAY_ADDRESS": cluster.address, "TMPDIR": str(disks[2])}
            slow = proxy.fail("stall", method="PUT", key="two-nodes/out/shards/*", seconds=2)  # time to be killed in
            command = [sys.executable, "-m", "neatpack.pipeline.cli", "pack", *where, *what]
            with subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True) as run:
                while run.poll() is None and not (slow.hits and named_below(raylet, "ray::_task")):
                    time.sleep(0.01)
                was_working = run.poll() is None
                cluster.remove_node(node, allow_graceful=False)
                told = run.communicate()[1]
            assert was_working, told
            assert run.returncode == 0, told
        finally:
            cluster.shutdown()  # type: ignore[no-untyped-call]
            ray.shutdown()
        out = bucket / "out"
        found = {str(file.relative_to(out)): file.read_bytes() for file, *_ in out.files()}
    expected = files_of(tmp_path / "out")
    assert {name: found[name] for name in expected} == expected
    assert not any(name.startswith("shards/") for name in found.keys() - expected.keys())
