"""`make serve` listens where its caller said, whichever way it was said."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from app.settings import Settings
from tests.for_each import for_each

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="needs the Debian package make")


def served(*arguments: str, **variables: str) -> tuple[str, int]:
    """Host and port of the service that `make serve` with these arguments and variables would start."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith(("GATHERND_", "MAKE")) or name in ("HOST", "PORT")]:
            patch.delenv(name)
        for name, value in variables.items():
            patch.setenv(name, value)
        make = ["make", "--dry-run", "serve", *arguments]
        done = subprocess.run(make, cwd=ROOT, capture_output=True, text=True, check=True)
        command = shlex.split(done.stdout.splitlines()[-1])
        settings = Settings(_cli_parse_args=command[command.index("serve") + 1 :])
    return settings.host, settings.port


@for_each(
    ("arguments", "variables", "wanted"),
    [
        ((), {}, ("127.0.0.1", 8080)),
        ((), {"GATHERND_PORT": "18099", "GATHERND_HOST": "127.0.0.2"}, ("127.0.0.2", 18099)),
        (("PORT=18099", "HOST=127.0.0.2"), {}, ("127.0.0.2", 18099)),
        (
            ("PORT=18097", "HOST=::1"),
            {"GATHERND_PORT": "18099", "GATHERND_HOST": "127.0.0.2", "PORT": "18098"},
            ("::1", 18097),
        ),
        ((), {"PORT": "18098"}, ("127.0.0.1", 18098)),
        ((), {"PORT": "18098", "GATHERND_PORT": "18099"}, ("127.0.0.1", 18099)),
        # csh and others export the machine's name as HOST.
        ((), {"HOST": "some-machine"}, ("127.0.0.1", 8080)),
    ],
)
def test_make_serve_heeds_its_command_line_before_the_settings_and_those_before_port(
    arguments: tuple[str, ...], variables: dict[str, str], wanted: tuple[str, int]
) -> None:
    assert served(*arguments, **variables) == wanted
