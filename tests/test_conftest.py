"""The rules of conftest.py, tried on tests of their own in a process of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = Path(__file__).with_name("conftest.py").read_text()
SKIPS_TEST = 'import pytest\ndef test_it(): pytest.skip("needs the Debian package wrk")\n'
SKIPS_MODULE = 'import pytest\npytest.skip("needs the Debian package wrk", allow_module_level=True)\n'
SKIPS_BY_MARK = 'import pytest\n@pytest.mark.skipif(True, reason="needs the Debian package wrk")\ndef test_it(): pass\n'
SKIPS_ENVIRONMENT = SKIPS_TEST.replace("Debian package wrk", "environment .venv-clients, which make clients makes")
SKIPS_OTHERWISE = 'import pytest\ndef test_it(): pytest.skip("needs a GPU")\n'
SOAKS = "import pytest\n@pytest.mark.soak\ndef test_it(soak_scale): assert soak_scale == 7\n"
SLOW = "import pytest\n@pytest.mark.slow\ndef test_it(): pass\n"


def run(folder: Path, text: str, **environ: str) -> subprocess.CompletedProcess[str]:
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "test_it.py").write_text(text)
    (folder / "pytest.ini").write_text("[pytest]\nmarkers =\n soak\n slow\n")
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("GATHERND_", "PYTEST_"))}
    clean["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # they take a second to load and play no part
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(folder)]
    return subprocess.run(command, env={**clean, **environ}, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize(
    ("text", "missing"),
    [
        pytest.param(SKIPS_TEST, "needs the Debian package wrk", marks=pytest.mark.slow),
        pytest.param(SKIPS_MODULE, "needs the Debian package wrk", marks=pytest.mark.slow),
        pytest.param(SKIPS_BY_MARK, "needs the Debian package wrk", marks=pytest.mark.slow),
        (SKIPS_ENVIRONMENT, "needs the environment .venv-clients"),
    ],
    ids=["test", "module", "mark", "environment"],
)
def test_want_of_a_package_or_environment_skips_here_and_fails_where_all_are_required(
    tmp_path: Path, text: str, missing: str
) -> None:
    assert "1 skipped" in run(tmp_path, text).stdout
    required = run(tmp_path, text, GATHERND_REQUIRE_ALL="1")
    assert required.returncode in {1, 2}, required.stdout
    assert "may not be skipped" in required.stdout
    assert missing in required.stdout


def test_other_skips_stay_skips(tmp_path: Path) -> None:
    done = run(tmp_path, SKIPS_OTHERWISE, GATHERND_REQUIRE_ALL="1")
    assert done.returncode == 0
    assert "1 skipped" in done.stdout


def test_slow_tests_run_in_test_all_and_in_soak_only(tmp_path: Path) -> None:
    assert "1 skipped" in run(tmp_path, SLOW).stdout
    assert "1 passed" in run(tmp_path, SLOW, GATHERND_TEST_ALL="1").stdout
    assert "1 passed" in run(tmp_path, SLOW, GATHERND_SOAK="1").stdout


def test_soak_runs_only_when_asked_for_and_knows_its_scale(tmp_path: Path) -> None:
    assert "1 skipped" in run(tmp_path, SOAKS).stdout
    assert "1 passed" in run(tmp_path, SOAKS, GATHERND_SOAK="7").stdout


def test_collecting_nothing_fails(tmp_path: Path) -> None:
    assert run(tmp_path, "").returncode == 5


def test_two_tests_of_one_name_are_an_error(tmp_path: Path) -> None:
    done = run(tmp_path, "def test_it(): pass\n", PYTEST_ADDOPTS=f"--keep-duplicates {tmp_path}")
    assert done.returncode == 4, done.stdout
    assert "two tests have the name test_it.py::test_it" in done.stderr
