"""manifest.json: what an artifact is, checked field by field as it is read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from hcomp.artifact.fields import MAX_INT, Fields, parse_json
from hcomp.artifact.program import Program, read_program
from hcomp.artifact.types import ValueType, read_type
from hcomp.errors import ArtifactError

FORMAT = "hcomp"
VERSION = 3
MANIFEST = "manifest.json"
HEX_DIGITS = frozenset("0123456789abcdef")


@dataclass(frozen=True)
class ValueSpec:
    """A named input or output of the model and its type."""

    name: str
    type: ValueType


@dataclass(frozen=True)
class Device:
    """A device of the plan; a simulated one says what its link costs."""

    name: str
    kind: str
    latency_us: float | None = None
    bandwidth_gb_s: float | None = None


@dataclass(frozen=True)
class Cpu:
    """What the kernels need of the host: LLVM's triple and feature names."""

    triple: str
    features: tuple[str, ...]


@dataclass(frozen=True)
class Member:
    """A file inside of the artifact: the digest and size of its bytes."""

    sha256: str
    size: int


@dataclass(frozen=True)
class Manifest:
    """The whole manifest; `json` is the object it was read from."""

    hcomp: str
    name: str
    inputs: tuple[ValueSpec, ...]
    outputs: tuple[ValueSpec, ...]
    devices: tuple[Device, ...]
    cpu: Cpu | None
    program: Program
    files: Mapping[str, Member]
    summary: Mapping[str, object]
    json: Mapping[str, object]


def read_manifest(data: bytes | memoryview) -> Manifest:
    """Return the manifest in the bytes of manifest.json.

    Raises:
        ArtifactError: another format or version, or a field that is missing or wrong.
    """
    fields = parse_json(data, MANIFEST)
    _check_format(fields)
    root = Fields(fields.values, f"{MANIFEST}:")
    files = {name: _read_file(entry) for name, entry in root.object("files").children()}
    devices = tuple(_read_device(entry) for entry in root.objects("devices"))
    if len({device.name for device in devices}) != len(devices):
        raise ArtifactError(f"{MANIFEST}: devices: two devices have one name")
    program = read_program(
        root.object("program"),
        frozenset(device.name for device in devices),
        {name: file.size for name, file in files.items()},
    )
    inputs, outputs = _read_specs(root, "inputs"), _read_specs(root, "outputs")
    for specs, values, what in (
        (inputs, program.inputs, "inputs"),
        (outputs, program.outputs, "outputs"),
    ):
        if len(specs) != len(values):
            raise ArtifactError(f"{MANIFEST}: {what}: {len(specs)} are declared, the program has {len(values)}")
    return Manifest(
        hcomp=root.text("hcomp"),
        name=root.text("name"),
        inputs=inputs,
        outputs=outputs,
        devices=devices,
        cpu=_read_cpu(root.object("cpu")) if root.has("cpu") and root.object("cpu").values else None,
        program=program,
        files=files,
        summary=root.optional_object("summary").values,
        json=fields.values,
    )


def write_manifest(values: Mapping[str, object], files: Mapping[str, Member]) -> bytes:
    """Return the bytes of manifest.json for the given fields, with `format`, `version` and `files`.

    Equal fields give equal bytes.
    """
    table = {name: {"sha256": file.sha256, "size": file.size} for name, file in sorted(files.items())}
    whole = {**values, "format": FORMAT, "version": VERSION, "files": table}
    return (json.dumps(whole, sort_keys=True, indent=1, allow_nan=False) + "\n").encode()


def _check_format(fields: Fields) -> None:
    if fields.values.get("format") != FORMAT:
        raise ArtifactError(f"{MANIFEST}: expected format {FORMAT!r}, found {fields.values.get('format')!r}")
    version = fields.integer("version")
    if version != VERSION:
        raise ArtifactError(
            f"{MANIFEST}: the artifact has format version {version}, this hcomp reads {VERSION}: "
            "compile the model again"
        )


def _read_specs(root: Fields, key: str) -> tuple[ValueSpec, ...]:
    specs = tuple(ValueSpec(entry.text("name"), read_type(entry.object("type"))) for entry in root.objects(key))
    if len({spec.name for spec in specs}) != len(specs):
        raise ArtifactError(f"{root.at(key)}: two {key} have one name")
    return specs


def _read_device(fields: Fields) -> Device:
    return Device(
        fields.text("name"),
        fields.text("kind"),
        fields.number("latency_us"),
        fields.number("bandwidth_gb_s"),
    )


def _read_cpu(fields: Fields) -> Cpu:
    return Cpu(fields.text("triple"), fields.optional_texts("features"))


def _read_file(fields: Fields) -> Member:
    digest = fields.text("sha256")
    if len(digest) != 64 or not HEX_DIGITS.issuperset(digest):
        raise ArtifactError(f"{fields.at('sha256')}: expected 64 hexadecimal digits")
    return Member(digest, fields.integer("size", 0, MAX_INT))
