"""A network of hosts on this machine: one address for each service, with names, and nothing of it outside.

Each host is a network namespace with a pair of devices, whose other ends are on one bridge. So services listen on the
ports that compose.yaml gives them, two of them on the same one, and find one another by name, as they do on Docker.
"""

from __future__ import annotations

import secrets
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

BRIDGE = "sqs-lease-chk"
PREFIX = "sqs-lease-check-"


@dataclass(frozen=True, slots=True)
class Network:
    """The hosts."""

    addresses: dict[str, str]
    """The address of each host by its name; this machine reaches them, too."""
    hostnames: dict[str, str]
    """Each host's name for itself, by the same name; others find it by both."""
    hosts_file: Path
    """The names for the hosts, in the format of /etc/hosts."""

    def namespace(self, name: str) -> str:
        """The path of a host's namespace, for nsenter."""
        return f"/run/netns/{PREFIX}{name}"


@contextmanager
def network(names: Mapping[str, str | None], directory: Path) -> Iterator[Network]:
    """Make the hosts, until the block ends.

    Args:
        names: Their names, and what they call themselves; `None` is an id, as Docker gives it to a container.
        directory: Where the file with the names goes.
    """
    _remove()
    subnet = _free_subnet()
    addresses = {name: f"{subnet}.{number}" for number, name in enumerate(names, start=2)}
    hostnames = {name: hostname or secrets.token_hex(6) for name, hostname in names.items()}
    hosts = directory / "hosts"
    # A host's own name comes first, as on Docker: that is the one which programs find for their address.
    hosts.write_text(
        "127.0.0.1 localhost\n"
        + "".join(f"{address} {hostnames[name]} {name}\n" for name, address in addresses.items())
    )
    try:
        _ip("link", "add", BRIDGE, "type", "bridge")
        _ip("addr", "add", f"{subnet}.1/24", "dev", BRIDGE)
        _ip("link", "set", BRIDGE, "up")
        for number, (name, address) in enumerate(addresses.items(), start=2):
            namespace, device = f"{PREFIX}{name}", f"sqsl{number}"
            _ip("netns", "add", namespace)
            _ip("link", "add", device, "type", "veth", "peer", "name", "eth0", "netns", namespace)
            _ip("link", "set", device, "master", BRIDGE, "up")
            _ip("-n", namespace, "addr", "add", f"{address}/24", "dev", "eth0")
            for inner in ("lo", "eth0"):
                _ip("-n", namespace, "link", "set", inner, "up")
        yield Network(addresses, hostnames, hosts)
    finally:
        _remove()


def _remove() -> None:
    """Remove what is there, also what a check that was killed has left."""
    listed = subprocess.run(["ip", "netns", "list"], stdout=subprocess.PIPE, text=True, check=True).stdout
    for line in listed.splitlines():
        if line.startswith(PREFIX):
            _ip("netns", "delete", line.split()[0])
    if Path("/sys/class/net", BRIDGE).exists():
        _ip("link", "delete", BRIDGE)


def _free_subnet() -> str:
    routes = subprocess.run(["ip", "-4", "route"], stdout=subprocess.PIPE, text=True, check=True).stdout
    return next(subnet for third in range(77, 256) if (subnet := f"10.213.{third}") not in routes)


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)
