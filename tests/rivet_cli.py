"""The public `rivet validate` as a second opinion: a reader of the manifest format that shares no code with ours."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["Opinion", "local", "s3", "validate"]

_UNTRACKED = "RIVET_VERIFY_UNTRACKED_OBJECT"


@dataclass(frozen=True, slots=True, kw_only=True)
class Opinion:
    """What rivet said of one prefix.

    Attributes:
        passed: a manifest was found and everything it lists is there. A prefix without one is not passed.
        found: whether there is a manifest.
        parts: how many parts it verified.
        marker: whether `_SUCCESS` is the fingerprint of the manifest.
        codes: of the failures, e.g. "RIVET_VERIFY_PART_SIZE_MISMATCH".
        untracked: objects that the manifest does not name, which fail nothing.
        exit_code: 0 passed or nothing there, 3 wrong, 1 could not look.
    """

    passed: bool
    found: bool
    parts: int
    marker: bool
    codes: tuple[str, ...]
    untracked: tuple[str, ...]
    exit_code: int


def local(directory: Path) -> dict[str, Any]:
    """The destination of one dataset's directory."""
    return {"type": "local", "path": str(directory)}


def s3(bucket: str, prefix: str, *, endpoint: str, region: str = "us-east-1") -> dict[str, Any]:
    """The destination of one dataset's prefix at a server on loopback; any key pair is sent."""
    return {
        "type": "s3",
        "bucket": bucket,
        "prefix": prefix,
        "endpoint": endpoint,
        "region": region,
        "access_key_env": "RIVET_CLI_KEY",
        "secret_key_env": "RIVET_CLI_SECRET",
    }


def validate(
    destination: Mapping[str, Any], *, workdir: Path, export_format: str = "parquet", secret: str = "test"
) -> Opinion:
    """Let rivet read manifest, marker and every part of one dataset.

    Args:
        destination: from `local` or `s3`.
        workdir: where its configuration is written; not below the dataset.
        export_format: of the parts.
        secret: access key and secret key for `s3`.

    Raises:
        AssertionError: it could not look (exit code 1), with what it printed.
    """
    export = {"name": "dataset", "table": "dataset", "mode": "full", "format": export_format}
    if export_format == "csv":
        export["compression"] = "none"
    # Any URL does: validate does not connect to the source.
    source = {"type": "postgres", "url": "postgresql://nobody@127.0.0.1:1/none"}
    config = workdir / "rivet.yaml"
    config.write_text(json.dumps({"source": source, "exports": [{**export, "destination": dict(destination)}]}))
    beside = Path(sys.executable).with_name("rivet")
    binary = str(beside) if beside.exists() else shutil.which("rivet")
    assert binary, "the rivet binary (rivet-cli, of the test extra) is not installed"
    done = subprocess.run(
        [binary, "validate", "--config", str(config), "--format", "json", "--no-notify"],
        capture_output=True,
        text=True,
        check=False,
        cwd=workdir,
        env={**os.environ, "RIVET_CLI_KEY": secret, "RIVET_CLI_SECRET": secret},
        timeout=120,
    )
    assert done.returncode in (0, 3), f"rivet could not look (exit {done.returncode}): {done.stdout}{done.stderr}"
    said = json.loads(done.stdout)["exports"][0]["verification"]
    return Opinion(
        passed=said["passed"],
        found=said["manifest_found"],
        parts=said["parts_verified"],
        marker=said["success_marker_consistent"],
        codes=tuple(f["code"] for f in said["failures"] if f["code"] != _UNTRACKED),
        untracked=tuple(f["key"] for f in said["failures"] if f["code"] == _UNTRACKED),
        exit_code=done.returncode,
    )
