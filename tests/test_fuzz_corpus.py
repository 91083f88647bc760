"""Every input of the fuzz corpus, checked without a fuzzer."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

CORPUS = Path(__file__).parent / "fuzz" / "corpus"
INPUTS = sorted(path for path in CORPUS.glob("*/*") if path.is_file())


def test_every_target_has_a_corpus() -> None:
    targets = {path.stem for path in CORPUS.parent.glob("*.py")} - {
        "__init__",
        "__main__",
        "choices",
    }
    assert {path.parent.name for path in INPUTS} == targets == {"wire", "flows", "signer"}


@pytest.mark.parametrize("path", INPUTS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_corpus_input_passes_the_fuzz_check(path: Path) -> None:
    importlib.import_module(f"tests.fuzz.{path.parent.name}").check(path.read_bytes())
