import json
import shutil
import subprocess
from pathlib import Path

import pytest

from gateway.auth.signing import Credentials, compute_signature, extract_signed_target

SIGNATURES = Path(__file__).parents[1] / "signatures"
VECTORS = sorted(SIGNATURES.glob("*.json"))


@pytest.mark.parametrize("vector", VECTORS, ids=lambda path: path.stem)
def test_signature_equals_openssl_signature(vector: Path):
    test_vector = json.loads(vector.read_text("utf-8"))
    assert test_vector["signature"] == compute_signature(
        Credentials("", test_vector["secret_key"]).keyed,
        test_vector["timestamp"],
        test_vector["method"],
        test_vector["target"],
        test_vector["body"].encode(),
    )


@pytest.mark.skipif(not shutil.which("openssl"), reason="openssl is not installed")
def test_script_generates_the_committed_vectors(tmp_path: Path):
    subprocess.run(["sh", SIGNATURES / "make.sh", tmp_path], check=True)
    generated_files = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert generated_files == {path.name: path.read_bytes() for path in VECTORS}


def test_query_is_signed_only_with_path_and_query_scope():
    assert extract_signed_target("path", "/v1/x?a=1?b") == "/v1/x"
    assert extract_signed_target("path-and-query", "/v1/x?a=1?b") == "/v1/x?a=1?b"
    assert extract_signed_target("path", "/v1/x") == extract_signed_target(
        "path-and-query", "/v1/x"
    )


def test_repr_of_credentials_hides_secret():
    assert "hush" not in repr(Credentials("AK", "hush"))
    assert "hush" not in str(Credentials("AK", "hush"))
