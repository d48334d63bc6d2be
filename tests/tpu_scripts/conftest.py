"""The scripts with a `gcloud` and a `git` of their own on the PATH, which write down how they are called."""

import os
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "tpu_scripts"

# $FAKE holds: log (calls), fail (a call whose words contain this line exits 7), states (one line per `describe`; the
# last one stays), home (a worker's, where --command runs when it is there), jobs (what other workers say of theirs).
FAKE = r"""#!/usr/bin/env bash
printf '%s\0' "$(basename "$0")" "$@" $'\n' >>"$FAKE/log"
if [[ -s $FAKE/fail && "$*" == *"$(cat "$FAKE/fail")"* ]]; then echo 'no such luck' >&2; exit 7; fi
if [[ "$*" == *queued-resources\ describe* ]]; then
  state=$(head -n 1 "$FAKE/states")
  if (($(wc -l <"$FAKE/states") > 1)); then sed -i 1d "$FAKE/states"; fi
  if [[ $state == ABSENT ]]; then echo 'ERROR: NOT_FOUND: was not found' >&2; exit 1; fi
  echo "$state"
fi
if [[ "$*" == *'--command=for dir in'* && -s $FAKE/jobs ]]; then cat "$FAKE/jobs"; fi
for word in "$@"; do
  if [[ $word == --command=* && -d $FAKE/home ]]; then HOME=$FAKE/home bash -c "${word#--command=}"; exit; fi
done
exit 0
"""

WHERE = ["--project=acme-lab", "--zone=us-east5-b"]


@dataclass
class Scripts:
    """Runs a script and keeps what its fakes were called with."""

    folder: Path
    env: dict[str, str] = field(default_factory=dict)

    def __call__(self, script: str, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
        path = f"{self.folder / 'bin'}:{os.environ['PATH']}"
        return subprocess.run(
            [str(FOLDER / f"{script}.sh"), *words],
            cwd=self.folder,
            env={"PATH": path, "FAKE": str(self.folder), "HOME": str(self.folder), "TPU_POLL": "0"} | self.env | env,
            capture_output=True,
            text=True,
            timeout=60,
            stdin=subprocess.DEVNULL,
        )

    @property
    def remembered(self) -> Path:
        """The record of the TPU called a."""
        return self.folder / ".tpu" / "a"

    def calls(self) -> list[list[str]]:
        """The words of every call since the last time."""
        log = self.folder / "log"
        text = log.read_text() if log.exists() else ""
        log.unlink(missing_ok=True)
        return [call.split("\0") for call in text.split("\0\n\0") if call]

    def put(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text)

    def checkout(self) -> Path:
        """A worker's disk with an environment that can be entered; commands then really run there."""
        checkout = self.folder / "home" / "noisyjax"
        (checkout / ".venv" / "bin").mkdir(parents=True)
        (checkout / ".venv" / "bin" / "activate").write_text("export ENTERED=yes\n")
        return self.folder / "home" / "noisyjax_jobs"


@pytest.fixture
def bare(tmp_path) -> Scripts:
    """Without project and zone."""
    (tmp_path / "bin").mkdir()
    for name in ("gcloud", "git"):
        (tmp_path / "bin" / name).write_text(FAKE)
        (tmp_path / "bin" / name).chmod(0o755)
    scripts = Scripts(tmp_path)
    scripts.put("states", "ACTIVE\n")
    return scripts


@pytest.fixture
def scripts(bare) -> Scripts:
    bare.env = {"TPU_PROJECT": "acme-lab", "TPU_ZONE": "us-east5-b"}
    return bare


@pytest.fixture
def wait_for() -> Callable[[Path], str]:
    """Reads a file that comes and is filled by and by."""

    def read(path: Path) -> str:
        for _ in range(500):
            if path.exists() and path.read_text():
                return path.read_text()
            time.sleep(0.02)
        raise AssertionError(f"{path} never came")

    return read
