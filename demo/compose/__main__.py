"""The commands that `docker/compose.yaml` runs beside the servers: `python -m demo.compose COMMAND`.

- `secrets DIRECTORY`: make the passwords and keys of the stack that are not there yet.
- `queues`: make the queues of the examples.
- `publish COUNT [QUEUE ...]`: send test messages.
- `look LAKE`: show what the queues hold and what the tables have.

SQS is reached by boto3's own environment variables, `AWS_ENDPOINT_URL` and so on.
"""

from __future__ import annotations

import argparse
import sys
from importlib.util import find_spec
from pathlib import Path

import boto3
from botocore.exceptions import BotoCoreError, ClientError

from demo.compose.look import queue_lines, table_lines
from demo.compose.queues import FLIGHTS, QUEUES, create_queues, publish
from demo.compose.secrets import make_secrets
from demo.queues import PublishError

MOST_MESSAGES = 50_000
"""The SQS server has them in memory, and writes them to its disk within the time that it has to stop."""


def main(arguments: list[str] | None = None) -> int:
    """Run one command.

    Args:
        arguments: Its name and arguments; `None` takes those of the process.

    Returns:
        The exit code: 1 where SQS refused something or was not reached.
    """
    chosen = _parser().parse_args(arguments)
    try:
        match chosen.command:
            case "secrets":
                made = make_secrets(chosen.directory)
                print(f"made {', '.join(made)}" if made else "all secrets are there")
            case "queues":
                create_queues(boto3.client("sqs"))
                print(f"{len(QUEUES)} queues are there, each with a dead-letter queue")
            case "publish":
                for name in chosen.queues or FLIGHTS:
                    publish(boto3.client("sqs"), name, chosen.count)
                    print(f"published {chosen.count} messages to {name}")
            case _:
                print("\n".join(queue_lines(boto3.client("sqs"))))
                if find_spec("deltalake") is not None:
                    print("", *table_lines(chosen.lake), sep="\n")
    except (BotoCoreError, ClientError, PublishError) as error:
        print(f"{chosen.command} failed: {error}", file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m demo.compose", description=__doc__.partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("secrets").add_argument("directory", type=Path)
    commands.add_parser("queues")
    publishing = commands.add_parser("publish")
    publishing.add_argument("count", type=_count, help="how many messages each queue gets")
    publishing.add_argument("queues", nargs="*", type=_queue, metavar="QUEUE", help=f"default: {' and '.join(FLIGHTS)}")
    commands.add_parser("look").add_argument("lake", type=Path)
    return parser


def _count(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and 1 <= int(text) <= MOST_MESSAGES):
        raise argparse.ArgumentTypeError(f"{text} is not a number from 1 to {MOST_MESSAGES}")
    return int(text)


def _queue(name: str) -> str:
    if name not in QUEUES:
        raise argparse.ArgumentTypeError(f"{name} is not one of the queues {', '.join(QUEUES)}")
    return name


if __name__ == "__main__":
    sys.exit(main())
