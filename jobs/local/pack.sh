#!/usr/bin/env bash
# Pack on this machine, on every core, and prove the result:
#
#   jobs/local/pack.sh META PROCESSOR OUT [more flags of `neatpack pack`]
#   jobs/local/pack.sh meta.json Qwen/Qwen2.5-VL-7B-Instruct packed --pack-size 16384
#
# Killed or failed, the same line goes on where it was. Exit codes are neatpack's: 0 done, 1 the job or a check failed,
# 2 the input is wrong.
set -euo pipefail

if (($# < 3)); then
  sed -n '2,/^set/{/^#/p}' "$0" >&2
  exit 2
fi
meta=$1 processor=$2 out=$3
shift 3

neatpack pack --meta "$meta" --processor "$processor" --out "$out" "$@"
neatpack verify "$out" --engine ray
