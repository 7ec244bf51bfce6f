"""Connections to Ray: a cluster of our own on this machine, or one that runs already; and what its nodes have.

Ray takes jobs over HTTP on the address of a node, even without a dashboard, and puts the driver's working directory
first on the path of its workers. So a Ray of our own asks for a token, and every Ray is joined from an empty folder.
"""

import contextlib
import logging
import os
import secrets
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from neatpack.storage.private_folders import temporary_folder

from ..extras import VERSIONED
from .faults import HeadLost, MachineError, not_joined, not_started, of_workers

MODE, TOKEN, TOKEN_PATH = "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"
# What every node needs, by the names one imports. Packages that shape no byte are imported all the same: a task that
# fails for want of one fails late.
MODULES = {
    **{name: name for name in VERSIONED},
    "pillow": "PIL",
    "simplejpeg": "simplejpeg",
    "tiktoken": "tiktoken",
    "jinja2": "jinja2",
}

Versions = dict[str, str]  # by package

logger = logging.getLogger(__name__)


@contextlib.contextmanager
def joined(address: str, num_workers: int) -> Iterator[Any]:
    """Start Ray on this machine (`address` "local") or join a cluster; shut down the connection at the end."""
    is_local = address == "local"
    local: dict[str, Any] = {"num_cpus": num_workers or None, "include_dashboard": False} if is_local else {}
    if is_local:
        require_token()
    import ray

    chatty = logger.isEnabledFor(logging.INFO)  # -v: what Ray has to say, too
    # The folder stays until Ray has ended: it is on the path of workers, and must not become another user's.
    with temporary_folder("ray-path-") as empty:
        try:
            with _working_directory(empty):
                ray.init(
                    address=address,
                    # Else what workers print stays in Ray's session folder; what they log comes with results.
                    log_to_driver=chatty,
                    logging_level=logging.INFO if chatty else logging.ERROR,
                    runtime_env={"env_vars": {"TOKENIZERS_PARALLELISM": "false"}},
                    **local,
                )
        except Exception as error:  # of any class; and none is about what we give it, which is always the same
            raise (not_started(error) if is_local else not_joined(address, error)) from error
        is_there = True
        try:
            yield ray
        except HeadLost:
            is_there = False
            raise
        finally:
            if is_there:  # else it would wait for the head until Ray ends this process
                ray.shutdown()


def require_token() -> None:
    """Have a Ray that is started on this machine ask for a token; keep what the user has set.

    A token in the environment needs no file in the home directory. It stays there for the life of this process, since
    Ray reads it once.
    """
    mode = os.environ.get(MODE, "token").lower()
    if mode != "token":
        logger.warning("%s=%s: everyone who reaches a port of this machine can run code as this user. Unset it.",
                       MODE, mode)  # fmt: skip
        return
    if "ray" not in sys.modules:  # else Ray has read the mode already; by itself it asks for a token, too
        os.environ[MODE] = "token"
    if not os.environ.get(TOKEN) and not os.environ.get(TOKEN_PATH):
        os.environ[TOKEN] = secrets.token_hex(32)


@contextlib.contextmanager
def _working_directory(empty: Path) -> Iterator[None]:
    """Be in an empty folder while Ray looks where its workers are to import from: here, and next to the program.

    The folder of the program is on this process's own path already: Python puts it there.
    """
    before, program = os.getcwd(), sys.argv[0]
    is_path = os.path.isabs(program) or os.path.isfile(program)  # pipeline/pack.py names a folder of its checkout
    sys.argv[0] = os.path.realpath(program) if is_path else str(empty / "neatpack")
    os.chdir(empty)
    try:
        yield
    finally:
        sys.argv[0] = program
        os.chdir(before)


def probe_nodes(ray: Any) -> dict[Any, str]:
    """Start a probe on every node that runs tasks; return their references, with the address of each node."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    nodes = [node for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU")]
    probe = _probe_function()
    found = {}
    for node in nodes:
        there = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
        # No CPU: a node that is busy with other jobs answers as well.
        task = ray.remote(num_cpus=0, max_retries=0, scheduling_strategy=there)(probe)
        found[task.remote(MODULES, True)] = str(node.get("NodeManagerAddress", ""))
    return found


def check_nodes(ray: Any, probes: Mapping[Any, str], wait: Callable[[list[Any]], list[Any]]) -> None:
    """Raise MachineError if a node lacks a package, or has another version of one than this process.

    `wait`: returns references that are done, of those it is given.
    """
    here = _probe_function()(MODULES, False)
    differing: dict[str, list[str]] = {}  # by what differs, the nodes
    left = list(probes)
    while left:
        for reference in wait(left):
            left.remove(reference)
            try:
                there = ray.get(reference)
            except Exception as error:  # a node that was lost meanwhile gets no tasks, either
                if (lacking := of_workers(error)) is not None:
                    raise lacking from error
                logger.warning("a node of Ray (%s) did not say what it has installed: %s", probes[reference],
                               str(error).strip().partition("\n")[0])  # fmt: skip
                continue
            if missing := next((name for name, version in there.items() if not version), None):
                raise of_workers(ModuleNotFoundError(f"No module named '{missing}'")) or AssertionError(missing)
            if told := _differences(here, there):
                differing.setdefault(told, []).append(probes[reference])
    if differing:
        told = "; ".join(f"{', '.join(sorted(set(nodes)))}: {what}" for what, nodes in sorted(differing.items()))
        raise MachineError(
            f"nodes of Ray have other versions than this process: {told}; these shape what is packed, so install the "
            "same on every node, as constraints.txt of neatpack pins them",
            code="versions-differ",
            differences=list(differing),
        )


def _differences(here: Versions, there: Versions) -> str:
    """{"av": "18.1.0"}, {"av": "17.0.0"} -> "av 17.0.0 (here 18.1.0)"."""
    return ", ".join(f"{name} {there[name]} (here {here[name]})" for name in here if there[name] != here[name])


def _probe_function() -> Callable[[Mapping[str, str], bool], Versions]:
    """A function inside a function: Ray sends it by value, to a node that may lack neatpack."""

    def probe(modules: Mapping[str, str], imports: bool) -> dict[str, str]:
        """Return the versions of packages, "" for those that are missing; what fails to import says so."""
        import hashlib
        import importlib
        import importlib.metadata
        import pathlib
        import sys

        found = {"python": f"{sys.version_info.major}.{sys.version_info.minor}"}
        for package, module in {"neatpack": "neatpack.pipeline", **modules}.items():
            try:
                if imports or package == "neatpack":
                    imported = importlib.import_module(module)
                if package != "neatpack":
                    # Without what follows a +, which says for which accelerator torch was built.
                    found[package] = importlib.metadata.version(package).partition("+")[0]
                    continue
            except ModuleNotFoundError as error:
                found[(error.name or module).partition(".")[0]] = ""
            except Exception as error:
                found[package] = f"does not import: {type(error).__name__}: {error}"
            else:
                folder, digest = pathlib.Path(str(imported.__file__)).parent, hashlib.sha256()
                for file in sorted(folder.rglob("*.py")):
                    digest.update(str(file.relative_to(folder)).encode() + b"\0" + file.read_bytes())
                found[package] = f"{importlib.import_module('neatpack').__version__} (code {digest.hexdigest()[:8]})"
        return found

    return probe
