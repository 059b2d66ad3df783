"""A network of namespaces around a hub, whose rules cut any of them off from any other."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import BinaryIO

HUB = """
ip link set lo up
mount -t tmpfs none /run
echo 1 > /proc/sys/net/ipv4/ip_forward
exec "$0" "$@"
"""
"""Makes a hub of the network namespace in which a command is to run."""


class Network:
    """Hosts by name. The process that makes it is in the hub, which nothing is cut off from."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._rules = count(100)
        self._cuts: dict[tuple[str, str], int] = {}

    def address(self, host: str) -> str:
        """The address of a host, which is made when it is first asked for."""
        if host not in self._numbers:
            self._add(host, len(self._numbers) + 1)
        return f"10.0.{self._numbers[host]}.2"

    def _add(self, host: str, number: int) -> None:
        hub = f"10.0.{number}.1"
        for command in (
            f"netns add {host}",
            f"link add {host} type veth peer name eth0 netns {host}",
            f"addr add {hub}/24 dev {host}",
            f"link set {host} up",
            f"-n {host} link set lo up",
            f"-n {host} addr add 10.0.{number}.2/24 dev eth0",
            f"-n {host} link set eth0 up",
            f"-n {host} route add default via {hub}",
        ):
            _ip(command)
        self._numbers[host] = number

    def begin(
        self, host: str, command: Sequence[str], log: BinaryIO, variables: Mapping[str, str]
    ) -> subprocess.Popen[bytes]:
        """Start a process on a host."""
        self.address(host)
        inside = ["nsenter", f"--net=/run/netns/{host}", *command]
        return subprocess.Popen(inside, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=variables)

    def cut(self, one: str, others: Iterable[str]) -> None:
        """Drop what one host and the others send to each other."""
        for other in others:
            self.silence(one, other)
            self.silence(other, one)

    def silence(self, sender: str, receiver: str) -> None:
        """Drop what one host sends to another."""
        if sender == receiver or (sender, receiver) in self._cuts:
            return
        self._cuts[sender, receiver] = number = next(self._rules)
        _ip(f"rule add blackhole from {self.address(sender)} to {self.address(receiver)} pref {number}")

    def heal(self, host: str | None = None) -> None:
        """Let a host, or all of them, be heard again."""
        for pair, number in list(self._cuts.items()):
            if host is None or host in pair:
                _ip(f"rule del pref {number}")
                del self._cuts[pair]


def _ip(arguments: str) -> None:
    done = subprocess.run(["ip", *arguments.split()], capture_output=True, text=True, check=False)
    assert done.returncode == 0, (arguments, done.stderr)


def log_of(folder: Path, name: str) -> Path:
    """Where a process writes what it has to say."""
    return folder / f"{name}.log"
