"""The templates of docs/set-up, applied to a server: the queue that they make, and what `sqs-lease` says of it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import boto3
import pytest

from demo.processes import ROOT
from demo.sqs_server import REGION, SqsServer, sqs_server
from tests.cli.commands import sqs_lease

pytestmark = [pytest.mark.processes, pytest.mark.timeout(1200)]

TEMPLATES: Final = ROOT / "docs" / "set-up"
HOSTS: Final = {"airflow": ["--airflow"], "dagster": ["--dagster"], "lease": []}
"""The hosts of the templates, and the option of `sqs-lease policy` for each."""

BUCKET: Final = "objects-of-orders"

LOCAL: Final = """
provider "aws" {
  region                      = "%(region)s"
  access_key                  = "test"
  secret_key                  = "test"
  skip_credentials_validation = true
  skip_metadata_api_check     = true
  skip_region_validation      = true
  s3_use_path_style           = true
  endpoints {
    sqs = "%(url)s"
    iam = "%(url)s"
    sts = "%(url)s"
    s3  = "%(url)s"
  }
}
"""
"""Where Terraform finds the server; on AWS nothing of it is needed."""


@pytest.fixture(scope="module")
def server() -> Iterator[SqsServer]:
    with sqs_server(services="sqs,s3,iam,sts,cloudformation") as running:
        yield running


def client(server: SqsServer, service: str) -> Any:
    return boto3.client(  # type: ignore[call-overload]
        service,
        endpoint_url=server.endpoint_url,
        region_name=REGION,
        aws_access_key_id="test",
        aws_secret_access_key=server.secret,
    )


def attributes(server: SqsServer, name: str) -> dict[str, str]:
    sqs = client(server, "sqs")
    url = sqs.get_queue_url(QueueName=name)["QueueUrl"]
    found: dict[str, str] = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
    return found


def require_queue(server: SqsServer, name: str, host: str, policy_arn: str) -> None:
    """A queue without problems, and a policy that allows what `sqs-lease policy` says and no more."""
    queue, dead_letters = attributes(server, name), attributes(server, f"{name}-dead-letters")
    redrive = json.loads(queue["RedrivePolicy"])
    assert (redrive["deadLetterTargetArn"], int(redrive["maxReceiveCount"])) == (dead_letters["QueueArn"], 5)
    assert (queue["VisibilityTimeout"], dead_letters["MessageRetentionPeriod"]) == ("60", "1209600")
    doctor = sqs_lease("doctor", name, environment=server.environment)
    assert doctor.exit_code == 0, doctor.out
    said = sqs_lease("policy", name, *HOSTS[host], environment=server.environment)
    assert allowed(policy_of(server, policy_arn)) == allowed(json.loads(said.out))


def policy_of(server: SqsServer, arn: str) -> Any:
    iam = client(server, "iam")
    version = iam.get_policy(PolicyArn=arn)["Policy"]["DefaultVersionId"]
    document = iam.get_policy_version(PolicyArn=arn, VersionId=version)["PolicyVersion"]["Document"]
    return json.loads(document) if isinstance(document, str) else document


def allowed(policy: Any) -> set[tuple[str, str]]:
    """The actions of a policy, each with a resource."""
    return {
        (action, resource)
        for statement in policy["Statement"]
        for action in listed(statement["Action"])
        for resource in listed(statement["Resource"])
    }


def listed(value: str | list[str]) -> list[str]:
    return [value] if isinstance(value, str) else value


def require_notifications(server: SqsServer, name: str, bucket: str) -> None:
    """The bucket may send to the queue, and it alone; a new object is a message."""
    (statement,) = json.loads(attributes(server, name)["Policy"])["Statement"]
    assert statement["Principal"] == {"Service": "s3.amazonaws.com"}
    assert statement["Condition"]["ArnEquals"] == {"aws:SourceArn": f"arn:aws:s3:::{bucket}"}
    assert statement["Condition"]["StringEquals"].keys() == {"aws:SourceAccount"}
    client(server, "s3").put_object(Bucket=bucket, Key="a b/1.json", Body=b"{}")
    sqs = client(server, "sqs")
    url = sqs.get_queue_url(QueueName=name)["QueueUrl"]
    received = sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10, WaitTimeSeconds=5)["Messages"]
    bodies = [json.loads(message["Body"]) for message in received]
    keys = [record["s3"]["object"]["key"] for body in bodies for record in body.get("Records", [])]
    assert [key.replace("%2F", "/") for key in keys] == ["a+b/1.json"]


@pytest.mark.parametrize("host", HOSTS)
@pytest.mark.parametrize("bucket", ["", BUCKET], ids=["queue", "queue and bucket"])
def test_cloudformation_makes_a_queue_without_problems_and_the_least_policy(
    server: SqsServer, host: str, bucket: str
) -> None:
    cloudformation = client(server, "cloudformation")
    name = f"cloudformation-{host}{'-objects' if bucket else ''}"
    bucket = f"{bucket}-{host}" if bucket else ""
    given = {"Name": name, "Host": host, "ObjectsBucket": bucket}
    cloudformation.create_stack(
        StackName=name,
        TemplateBody=(TEMPLATES / "queue.cloudformation.yaml").read_text(),
        Capabilities=["CAPABILITY_IAM"],
        Parameters=[{"ParameterKey": key, "ParameterValue": value} for key, value in given.items()],
    )
    cloudformation.get_waiter("stack_create_complete").wait(StackName=name, WaiterConfig={"Delay": 1})
    (stack,) = cloudformation.describe_stacks(StackName=name)["Stacks"]
    outputs = {output["OutputKey"]: output["OutputValue"] for output in stack["Outputs"]}
    require_queue(server, name, host, outputs["PolicyArn"])
    if bucket:
        require_notifications(server, name, bucket)


def test_terraform_makes_a_queue_without_problems_and_the_least_policy(server: SqsServer, tmp_path: Path) -> None:
    if shutil.which("terraform") is None:
        pytest.skip("terraform is not installed: Python has no package of it")
    shutil.copy(TEMPLATES / "queue.tf", tmp_path)
    (tmp_path / "local.tf").write_text(LOCAL % {"region": REGION, "url": server.endpoint_url})
    client(server, "s3").create_bucket(Bucket=BUCKET)
    variables = ["-var", "name=terraform", "-var", "host=dagster", "-var", f"objects_bucket={BUCKET}"]

    def terraform(*arguments: str) -> str:
        command = ["terraform", f"-chdir={tmp_path}", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "TF_INPUT": "0"})
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
        return done.stdout

    terraform("init", "-no-color")
    terraform("validate", "-no-color")
    terraform("apply", "-no-color", "-auto-approve", *variables)
    outputs = json.loads(terraform("output", "-json"))
    require_queue(server, "terraform", "dagster", outputs["policy_arn"]["value"])
    require_notifications(server, "terraform", BUCKET)
    # With 2 it would change something again.
    terraform("plan", "-no-color", "-detailed-exitcode", *variables)
    terraform("destroy", "-no-color", "-auto-approve", *variables)
