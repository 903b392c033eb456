"""What the CPU kernels need to know about a processor: vector width, registers, caches, cores.

The schedules read these numbers instead of naming processors, so one rule serves AVX2, AVX-512
and NEON: a register tile is `rows x vectors` with `rows * vectors` accumulators below `registers`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import tvm

_CACHE = Path("/sys/devices/system/cpu/cpu0/cache")


@dataclass(frozen=True)
class CpuFeatures:
    """One processor as data.

    Attributes:
        triple: LLVM triple, for instance `x86_64-unknown-linux-gnu`.
        mcpu: LLVM processor name, for instance `znver3`.
        features: LLVM features on top of `mcpu`, as in `+avx2`.
        vector_bytes: width of one vector register.
        registers: number of vector registers.
        l1_bytes: first-level data cache of one core.
        l2_bytes: second-level cache of one core.
        cores: cores that a parallel loop may use.
    """

    triple: str
    mcpu: str
    features: tuple[str, ...]
    vector_bytes: int
    registers: int
    l1_bytes: int
    l2_bytes: int
    cores: int

    @classmethod
    def host(cls) -> CpuFeatures:
        """Return the processor that this process runs on."""
        import tvm

        triple = tvm.get_global_func("tvm.codegen.llvm.GetDefaultTargetTriple")()
        mcpu = tvm.get_global_func("tvm.codegen.llvm.GetHostCPUName")()
        has = tvm.get_global_func("tvm.codegen.llvm.GetHostCPUFeatures")()
        enabled = {str(name) for name, on in has.items() if bool(on)}
        vector_bytes, registers = _vectors(str(triple), enabled)
        return cls(
            triple=str(triple),
            mcpu=str(mcpu),
            features=(),
            vector_bytes=vector_bytes,
            registers=registers,
            l1_bytes=_cache_bytes("1", "Data", 32 * 1024),
            l2_bytes=_cache_bytes("2", "Unified", 512 * 1024),
            cores=os.cpu_count() or 1,
        )

    def tvm_target(self) -> tvm.target.Target:
        """Return the TVM target that generates code for this processor."""
        import tvm

        config: dict[str, object] = {
            "kind": "llvm",
            "mtriple": self.triple,
            "mcpu": self.mcpu,
            "num-cores": self.cores,
        }
        if self.features:
            config["mattr"] = list(self.features)
        return tvm.target.Target(config)

    def lanes(self, dtype_bytes: int = 4) -> int:
        """Return how many elements of `dtype_bytes` one vector register holds."""
        return max(1, self.vector_bytes // dtype_bytes)


def _vectors(triple: str, enabled: set[str]) -> tuple[int, int]:
    if triple.startswith(("aarch64", "arm64")):
        return 16, 32
    if "avx512f" in enabled:
        return 64, 32
    if "avx2" in enabled:
        return 32, 16
    return 16, 16


def _cache_bytes(level: str, kind: str, default: int) -> int:
    """Read one cache size from sysfs; a system that does not publish it gets the usual size."""
    for entry in sorted(_CACHE.glob("index*")):
        try:
            if (entry / "level").read_text().strip() != level:
                continue
            if (entry / "type").read_text().strip() != kind:
                continue
            return int((entry / "size").read_text().strip().removesuffix("K")) * 1024
        except (OSError, ValueError):
            continue
    return default
