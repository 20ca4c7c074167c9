"""The images, built by buildah on a Debian that debootstrap makes: neither needs a registry or a daemon."""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from demo.processes import ROOT

KEPT: Final = ROOT / ".docker-check"
"""The base, the images, and everything of the last check."""

DEBIAN: Final = "bookworm"
BASE_IMAGE: Final = f"localhost/debian-python:{DEBIAN}"
BASE_PACKAGES: Final = ("ca-certificates", "python3", "python3-venv")
"""Packages that the official Python image has, too."""

CERTIFICATES: Final = Path("etc/ssl/certs/ca-certificates.crt")


class Images:
    """A store of images in `.docker-check`."""

    def __init__(self) -> None:
        KEPT.mkdir(exist_ok=True)
        driver = "overlay" if _has_overlay() else "vfs"
        self._options = (
            *("--root", str(KEPT / f"storage-{driver}"), "--runroot", str(KEPT / f"run-{driver}")),
            *("--storage-driver", driver),
        )

        # Left by a check that was killed.
        self.call("rm", "--all")

    def command(self, *arguments: str) -> list[str]:
        """A command line of buildah on this store."""
        return ["buildah", *self._options, *arguments]

    def call(self, *arguments: str) -> str:
        """Run buildah and return what it prints, for short commands.

        Raises:
            subprocess.CalledProcessError: It failed; it has said why.
        """
        return subprocess.run(self.command(*arguments), stdout=subprocess.PIPE, text=True, check=True).stdout.strip()

    def make_base(self) -> None:
        """Make the image that the others are built on, unless it is there."""
        if BASE_IMAGE in self.call("images", "--format", "{{.Name}}:{{.Tag}}").splitlines():
            return
        with tempfile.TemporaryDirectory(dir=KEPT, prefix="base-") as temporary:
            root = Path(temporary) / "root"
            include = f"--include={','.join(BASE_PACKAGES)}"
            with (KEPT / "debootstrap.log").open("w") as log:
                subprocess.run(
                    ["debootstrap", "--variant=minbase", include, DEBIAN, root], stdout=log, stderr=log, check=True
                )
            # This machine may reach package registries through a proxy with a certificate of its own.
            shutil.copy(Path("/") / CERTIFICATES, root / CERTIFICATES)
            shutil.rmtree(root / "var/cache/apt/archives", ignore_errors=True)
            subprocess.run(["tar", "-C", root, "-cf", f"{temporary}/base.tar", "."], check=True)
            shutil.rmtree(root)
            (Path(temporary) / "Dockerfile").write_text(
                "FROM scratch\nADD base.tar /\n"
                'ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\nCMD ["python3"]\n'
            )
            self.call("build", "--quiet", "--isolation", "chroot", "--tag", BASE_IMAGE, temporary)

    def build(
        self, tag: str, log: Path, *, arguments: Mapping[str, str], target: str | None = None, offline: bool = False
    ) -> None:
        """Build an image of docker/Dockerfile on the base.

        Args:
            tag: Its name.
            log: Where the output goes, appended.
            arguments: The build arguments, but for the base.
            target: The stage; the last one by default.
            offline: Whether to have no network: then every layer must be there.

        Raises:
            subprocess.CalledProcessError: It failed; the log says why.
        """
        options = [f"--build-arg={name}={value}" for name, value in {**arguments, "BASE_IMAGE": BASE_IMAGE}.items()]
        command = self.command(
            *("build", "--isolation", "chroot", "--layers", "--pull-never", "--tag", tag),
            *("--ignorefile", "docker/Dockerfile.dockerignore", "--file", "docker/Dockerfile"),
            *(("--target", target) if target is not None else ()),
            *options,
            ".",
        )
        with log.open("a") as file:
            subprocess.run(
                [*(("unshare", "--net") if offline else ()), *command],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                check=True,
            )

    def size_bytes(self, image: str) -> int:
        """How large the files of an image are."""
        (found,) = json.loads(self.call("images", "--json", image))
        number, unit = found["size"].split()
        return int(float(number) * {"MB": 1e6, "GB": 1e9}[unit])

    def packages(self, image: str) -> Sequence[str]:
        """The Python packages in the environment of an image."""
        code = "import importlib.metadata as m; print(*sorted(d.name.lower() for d in m.distributions()))"
        return self._run(image, "python", "-c", code).split()

    def programs(self, image: str, names: Sequence[str]) -> list[str]:
        """Those of some programs that are on an image's path."""
        found = self._run(image, "sh", "-c", 'for name in "$@"; do command -v "$name"; done; true', "sh", *names)
        return [Path(path).name for path in found.splitlines()]

    def _run(self, image: str, *command: str) -> str:
        """Run a command in a container that is removed then, and return what it prints."""
        container = self.call("from", "--pull-never", image)
        try:
            return self.call("run", "--isolation", "chroot", container, "--", *command)
        finally:
            self.call("rm", container)


def _has_overlay() -> bool:
    """Whether directories can be mounted over one another here: copying them (vfs) takes minutes longer."""
    with tempfile.TemporaryDirectory(dir=KEPT) as temporary:
        lower, upper, work, merged = (Path(temporary) / name for name in ("lower", "upper", "work", "merged"))
        for directory in (lower, upper, work, merged):
            directory.mkdir()
        options = f"lowerdir={lower},upperdir={upper},workdir={work}"
        mounted = subprocess.run(
            ["mount", "-t", "overlay", "overlay", "-o", options, merged], stderr=subprocess.DEVNULL, check=False
        )
        if mounted.returncode == 0:
            subprocess.run(["umount", merged], check=True)
        return mounted.returncode == 0
