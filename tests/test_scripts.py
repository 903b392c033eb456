"""The scripts that measure: their cases are valid, and their tables say what was measured."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import onnx
import pytest

from models import MODELS
from scripts import bench_corpus, bench_kernels, fetch_models

OPTIONS = argparse.Namespace(threads=1, rounds=2)


def test_every_case_of_bench_kernels_is_a_valid_model_and_there_once() -> None:
    cases = list(bench_kernels.cases())
    assert {case.network for case in cases} == {"resnet-50", "mobilenet-v2", "bert-base", "whisper-tiny", "yolov8n"}
    assert len({(case.network, case.text) for case in cases}) == len(cases)
    for case in cases[::9]:
        onnx.shape_inference.infer_shapes(bench_kernels.model_of(case), check_type=True, strict_mode=True)


@pytest.mark.parametrize(
    "case",
    [
        bench_kernels.gemm("t", 5, 16, 24),
        bench_kernels.attention("t", 2, 4, 8, 16),
        bench_kernels.conv("t", 8, 10, 16, 3, 2),
        bench_kernels.conv("t", 8, 10, 8, 3, 1, 8),
        bench_kernels.conv("t", 8, 30, 16, 3, 1, axes=1),
    ],
    ids=lambda case: case.text,
)
def test_a_case_counts_the_operations_that_its_kernel_has(
    case: bench_kernels.Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    import hcomp
    from hcomp.cli.feeds import random_inputs

    program = hcomp.compile(bench_kernels.model_of(case), threads=1)
    found = program.session.profile_kernels(random_inputs(program.session.inputs, {}, {}), runs=1)
    assert max(kernel.operations or 0 for kernel in found.kernels) == case.operations
    monkeypatch.setattr(bench_kernels, "peak_gflop_s", lambda: 50.0)
    row = bench_kernels.measure(case, rounds=1)
    assert row.ratio > 0
    assert row.gflop_s > 0
    assert row.peak_share == pytest.approx(row.gflop_s / 50.0)


def test_a_summary_has_a_line_for_each_network_and_all() -> None:
    rows = [bench_kernels.Row(n, "c", 50.0, share, 0.5, 0.6, 10.0) for n, share in (("a", 0.95), ("b", 0.5))]
    lines = bench_kernels.summary(rows)
    assert [line.split()[0] for line in lines] == ["a", "b", "all"]
    assert "1 of 2 at 90 % or more" in lines[-1]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("residual_cnn", "convolutional"),
        ("encoder_block", "attention"),
        ("gru", "recurrent"),
        ("mlp", "other"),
        ("loop", "recurrent"),
        ("quantized_mlp", "quantised"),
    ],
)
def test_the_kind_of_a_model_is_what_its_operators_say(name: str, kind: str, tmp_path: Path) -> None:
    model, _ = MODELS[name]()
    onnx.save(model, tmp_path / "m.onnx")
    assert bench_corpus.kind_of(tmp_path / "m.onnx") == kind


def test_a_folder_is_measured_and_its_table_goes_into_the_readme(tmp_path: Path) -> None:
    model, _ = MODELS["mlp"]()
    onnx.save(model, tmp_path / "m.onnx")
    row = bench_corpus.measure(tmp_path / "m.onnx", "m", {}, OPTIONS)
    assert row.ratio > 0
    readme = tmp_path / "README.md"
    readme.write_text(f"before\n{bench_corpus.BEGIN}\nold\n{bench_corpus.END}\nafter\n")
    bench_corpus.write_readme(bench_corpus.table([row], 1), readme)
    text = readme.read_text()
    assert text.startswith("before\n")
    assert text.endswith(f"{bench_corpus.END}\nafter\n")
    assert "old" not in text
    assert f"| all | 1 | {row.ratio:.2f} |" in text
    (tmp_path / "bad.onnx").write_bytes(b"nothing")
    with pytest.raises(bench_corpus.NotMeasuredError, match="ONNX"):
        bench_corpus.measure(tmp_path / "bad.onnx", "bad", {}, OPTIONS)


def test_models_are_named_one_by_one_or_by_folder_and_measured_once(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for name in ("in/b.onnx", "a.onnx", "no.txt"):
        (tmp_path / name).write_bytes(b"")
    a, b = tmp_path / "a.onnx", tmp_path / "in" / "b.onnx"
    assert bench_corpus.models_of([b]) == {b: "b.onnx"}
    assert bench_corpus.models_of([tmp_path, a]) == {a: "a.onnx", b: "in/b.onnx"}
    with pytest.raises(SystemExit, match=r"nothing\.onnx: no model"):
        bench_corpus.models_of([tmp_path / "nothing.onnx"])


def test_a_published_model_is_known_by_its_content_whatever_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model, feeds = MODELS["loop"]()
    for name, text in (("m.onnx", ""), ("other.onnx", "another")):
        model.doc_string = text
        onnx.save(model, tmp_path / name)
    values = {name: value.tolist() for name, value in feeds.items() if value.ndim == 0}
    row = {"name": "folder/other.onnx", "sha256": bench_corpus.content_of(tmp_path / "m.onnx"), "values": values}
    (tmp_path / "published.json").write_text(json.dumps({"models": [row]}))
    given = []

    def measure(path: Path, name: str, known: dict[str, Any], options: argparse.Namespace) -> bench_corpus.Row:
        given.append((name, known.get("values")))
        return bench_corpus.Row(name, "recurrent", 1.0, 2.0, 0.5)

    monkeypatch.setattr(bench_corpus, "PUBLISHED", tmp_path / "published.json")
    monkeypatch.setattr(bench_corpus, "measure", measure)
    monkeypatch.setattr("sys.argv", ["bench_corpus.py", str(tmp_path)])
    assert bench_corpus.main() == 0
    assert given == [("m.onnx", values), ("other.onnx", None)]
    assert "| all | 2 | 0.50 |" in capsys.readouterr().out


def test_published_models_have_sizes_that_are_numbers() -> None:
    for row in fetch_models.read_published():
        assert all(isinstance(n, int) and n > 0 for n in (*row.sizes.values(), *row.values.values())), row.name


def test_a_value_of_an_input_reaches_both_engines(tmp_path: Path) -> None:
    """A number that is made up, such as how often a loop turns, may be none that the model is meant for."""
    model, feeds = MODELS["loop"]()
    onnx.save(model, tmp_path / "m.onnx")
    values = {name: value.tolist() for name, value in feeds.items() if value.ndim == 0}
    assert values
    assert bench_corpus.measure(tmp_path / "m.onnx", "m", {"values": values}, OPTIONS).ratio > 0
    with pytest.raises(bench_corpus.NotMeasuredError):
        bench_corpus.measure(tmp_path / "m.onnx", "m", {"values": {"nothing": 1}}, OPTIONS)
