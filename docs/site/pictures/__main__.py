"""Draws the pictures of docs/ again: `make pictures`, or `python -m docs.site.pictures [directory]`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Final

from docs.site.pictures import calls_per_policy, doctor, life_of_a_message, peers, takeover

PICTURES: Final = {
    "life-of-a-message.svg": life_of_a_message.draw,
    "takeover.svg": takeover.draw,
    "calls-per-policy.svg": calls_per_policy.draw,
    "doctor.svg": doctor.draw,
    "peers.svg": peers.draw,
}


def main() -> None:
    """Write all of them."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0] if __doc__ else None)
    parser.add_argument("directory", type=Path, nargs="?", default=Path("docs/pictures"))
    directory = parser.parse_args().directory
    directory.mkdir(parents=True, exist_ok=True)
    for name, draw in PICTURES.items():
        (directory / name).write_text(draw().svg())


if __name__ == "__main__":
    main()
