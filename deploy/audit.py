"""`make audit`: are there known vulnerabilities in what the locks pin?

pip-audit asks an advisory service, one question for each package. What it does not say loudly enough for a gate is said
here: a package that the service could not judge, or a service that could not be reached, is no clean bill of health.

Exit codes: 0 nothing is known, 1 something is, 2 it could not be found out.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable, Sequence
from typing import Any


class AuditFailed(Exception):
    """The audit could not be made; the text says why."""


def judged(lock: str, arguments: Sequence[str]) -> list[dict[str, Any]]:
    """pip-audit's verdicts on the packages of a lock that this platform installs. Raises AuditFailed."""
    command = [sys.executable, "-m", "pip_audit", "--disable-pip", "--require-hashes", "--strict"]
    command += ["--vulnerability-service", "osv", "--format", "json", "--progress-spinner", "off"]
    done = subprocess.run(  # noqa: S603
        [*command, "--requirement", lock, *arguments], capture_output=True, text=True, check=False
    )
    try:
        verdicts: list[dict[str, Any]] = json.loads(done.stdout)["dependencies"]
    except ValueError:
        lines = done.stderr.strip().splitlines() or [f"pip-audit ended with {done.returncode} and said nothing"]
        raise AuditFailed(f"{lock}: {lines[-1]}") from None
    skipped = [f"{found['name']}: {found['skip_reason']}" for found in verdicts if "skip_reason" in found]
    if skipped:
        raise AuditFailed(f"{lock}: not every package could be judged: {'; '.join(skipped)}")
    if not verdicts:
        raise AuditFailed(f"{lock}: no package was judged")
    return verdicts


def findings(verdicts: Iterable[dict[str, Any]]) -> list[str]:
    """A line for each vulnerability: package, advisory, the versions that fix it."""
    return [
        f"{found['name']} {found['version']}: {bug['id']}, fixed in {', '.join(bug['fix_versions']) or 'no version'}"
        for found in verdicts
        for bug in found["vulns"]
    ]


def main(arguments: Sequence[str]) -> int:
    """`python -m deploy.audit LOCK... [-- PIP-AUDIT'S ARGUMENTS]`; returns the exit code."""
    locks = list(arguments)
    further: list[str] = []
    if "--" in locks:
        at = locks.index("--")
        locks, further = locks[:at], locks[at + 1 :]
    if not locks:
        sys.stderr.write("NOT AUDITED: no lock is named\n")
        return 2
    try:
        # Locks share packages, which count once.
        verdicts = {(one["name"], one["version"]): one for lock in locks for one in judged(lock, further)}
    except AuditFailed as failure:
        sys.stderr.write(f"NOT AUDITED, so nothing is known of vulnerabilities: {failure}\n")
        return 2
    found = findings(verdicts.values())
    sys.stdout.writelines(f"{line}\n" for line in found)
    sys.stdout.write(f"{len(verdicts)} packages audited, {len(found)} known vulnerabilities\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
