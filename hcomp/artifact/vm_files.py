"""The two files of a region for the Relax VM, as `hcomp.runtime` loads them. Compile side only."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hcomp.errors import CodegenError

OBJECT = "kernels.o"
PROGRAM = "program.vm"


def vm_files(executable: Any) -> dict[str, bytes]:
    """Return the files of one region: "kernels.o" (native code) and "program.vm".

    Build with `relax.build(module, target, exec_mode="compiled")`: the function is then native
    code too, and a call costs a third less than in bytecode. Both modes load. A bytecode module
    without any kernel has no object file. Name the members "regions/<region>/<file>" and give
    the launch step `"files": {"object": ..., "program": ...}`.

    Args:
        executable: what `relax.build` returns (or its `.mod`), for an LLVM target.

    Raises:
        CodegenError: the module holds code of another kind than one LLVM module.
    """
    module = getattr(executable, "mod", executable)
    imports = list(module.imports)
    if len(imports) > 1 or any(part.kind != "llvm" or list(part.imports) for part in imports):
        kinds = ", ".join(part.kind for part in imports)
        raise CodegenError(f"a region must be one LLVM module for the cpu, found modules of kinds {kinds}")
    with TemporaryDirectory(prefix="hcomp-") as folder:
        files = {}
        if imports:
            files[OBJECT] = _written(imports[0], Path(folder, OBJECT), "o")
        files[PROGRAM] = _written(module, Path(folder, PROGRAM), "relax.VMExecutable")
    return files


def _written(module: Any, path: Path, kind: str) -> bytes:
    module.write_to_file(str(path), kind)
    return path.read_bytes()
