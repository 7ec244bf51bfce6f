"""`srun`, `scontrol` and `hostname` of a Slurm whose nodes are addresses of this machine: node2 is 127.0.0.2 (there is
no node1: Ray takes 127.0.0.1 for a word for the machine's outer address).

A step of `srun` runs its command once per node it is asked for, in processes here, each knowing its node; a SIGTERM
goes on to them. Options that only choose resources are taken and mean nothing; one that is not known is an error.
"""

import itertools
import os
import signal
import subprocess
import sys

IGNORED = ("--nodes", "--ntasks", "--ntasks-per-node", "--cpus-per-task")


def srun(arguments: list[str]) -> int:
    nodes = os.environ["SLURM_JOB_NODELIST"].split(",")
    options = list(itertools.takewhile(lambda word: word.startswith("--"), arguments))
    command, given = arguments[len(options) :], dict(option.split("=", 1) for option in options)
    if unknown := given.keys() - {"--nodelist", "--exclude", *IGNORED}:
        raise SystemExit(f"srun: unknown {unknown}")
    chosen = [node for node in nodes if node == given.get("--nodelist", node) and node != given.get("--exclude")]
    if len(chosen) != int(given["--nodes"]):
        raise SystemExit(f"srun: {given['--nodes']} nodes asked for, of {chosen}")
    steps = [subprocess.Popen(command, env={**os.environ, "SLURMD_NODENAME": node}) for node in chosen]
    signal.signal(signal.SIGTERM, lambda *_: [step.terminate() for step in steps])
    return max(step.wait() for step in steps)


def scontrol(arguments: list[str]) -> int:
    if arguments[:2] != ["show", "hostnames"]:
        raise SystemExit(f"scontrol: {arguments}")
    print(*arguments[2].split(","), sep="\n")
    return 0


def hostname(arguments: list[str]) -> int:
    if arguments != ["-I"]:
        raise SystemExit(f"hostname: {arguments}")
    print(f"127.0.0.{os.environ['SLURMD_NODENAME'].removeprefix('node')} 10.0.0.9 ")
    return 0


if __name__ == "__main__":
    raise SystemExit({"srun": srun, "scontrol": scontrol, "hostname": hostname}[sys.argv[1]](sys.argv[2:]))
