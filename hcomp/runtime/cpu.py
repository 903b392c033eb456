"""Whether this processor has what an artifact's kernels need: otherwise they would crash it."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

from hcomp.artifact.manifest import Cpu
from hcomp.errors import ArtifactError

# LLVM's names of instruction sets that the kernel's flags spell otherwise.
LINUX_NAMES = {
    "sse3": "pni",
    "sse4.1": "sse4_1",
    "sse4.2": "sse4_2",
    "bmi": "bmi1",
    "lzcnt": "abm",
    "pclmul": "pclmulqdq",
    "sha": "sha_ni",
    "avxvnni": "avx_vnni",
    "avx512vnni": "avx512_vnni",
    "avx512bf16": "avx512_bf16",
    "avx512vbmi2": "avx512_vbmi2",
    "avx512bitalg": "avx512_bitalg",
    "avx512vpopcntdq": "avx512_vpopcntdq",
    "avx512fp16": "avx512_fp16",
    "amx-tile": "amx_tile",
    "amx-int8": "amx_int8",
    "amx-bf16": "amx_bf16",
}
# The rest of the sets that generated code uses; LLVM lists many more that it does not.
SAME_NAMES = frozenset(
    [
        "ssse3",
        "popcnt",
        "movbe",
        "f16c",
        "fma",
        "avx",
        "avx2",
        "bmi2",
        "aes",
        "adx",
        "gfni",
        "vaes",
        "vpclmulqdq",
        "avx512f",
        "avx512bw",
        "avx512cd",
        "avx512dq",
        "avx512vl",
        "avx512ifma",
        "avx512vbmi",
    ]
)
ARCHITECTURES = {"x86_64": "x86_64", "amd64": "x86_64", "aarch64": "aarch64", "arm64": "aarch64"}


def check_cpu(cpu: Cpu) -> None:
    """Check that kernels made for `cpu` run on this processor.

    Raises:
        ArtifactError: another architecture, or an instruction set is missing; names which.
    """
    machine = os.uname().machine
    found, needed = _architecture(machine), _architecture(cpu.triple.partition("-")[0])
    if cpu.triple and found != needed:
        raise ArtifactError(f"the artifact was compiled for {needed}, this processor is {found}: compile it here")
    names = {feature.removeprefix("+") for feature in cpu.features if not feature.startswith("-")}
    linux = {name: LINUX_NAMES.get(name, name) for name in names if name in LINUX_NAMES or name in SAME_NAMES}
    if found != "x86_64" or not linux or not (flags := host_flags()):
        return
    missing = sorted(name for name, flag in linux.items() if flag not in flags)
    if missing:
        raise ArtifactError(
            f"the artifact needs a processor with {', '.join(missing)}, which this one lacks: compile it here"
        )


@cache
def host_flags() -> frozenset[str]:
    """Return the instruction sets that Linux reports; empty where it does not say."""
    try:
        with Path("/proc/cpuinfo").open() as lines:
            flags = next((line for line in lines if line.startswith("flags")), "")
    except OSError:
        return frozenset()
    return frozenset(flags.partition(":")[2].split())


def _architecture(name: str) -> str:
    return ARCHITECTURES.get(name.lower(), name)
