"""The types of the arguments that :func:`~sqs_lease.airflow.context.sqs_lease` hands on to its tasks.

What they mean is told by :class:`~sqs_lease.airflow.sensor.SqsLeaseSensor` and, for those of every task and sensor, by
Airflow's ``BaseOperator`` and ``BaseSensorOperator``.
"""

from __future__ import annotations

from collections.abc import Iterable, MutableMapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal, TypedDict

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow.sdk.types import WeightRuleParam

    from sqs_lease.airflow.receiving.filtering import UnmatchedRule
    from sqs_lease.core.durations import Duration
    from sqs_lease.core.policies import RenewalPolicy

    Callback = Callable[[Any], None] | Sequence[Callable[[Any], None]] | None


class TaskArguments(TypedDict, total=False):
    """What every task takes."""

    owner: str
    email: str | Sequence[str] | None
    email_on_retry: bool
    email_on_failure: bool
    retries: int | None
    retry_delay: timedelta | float
    retry_exponential_backoff: float
    max_retry_delay: timedelta | float | None
    retry_policy: Any
    start_date: datetime | None
    end_date: datetime | None
    depends_on_past: bool
    ignore_first_depends_on_past: bool
    wait_for_past_depends_before_skipping: bool
    wait_for_downstream: bool
    params: MutableMapping[str, Any] | None
    default_args: dict[str, Any] | None
    priority_weight: int
    weight_rule: WeightRuleParam
    queue: str
    pool: str | None
    pool_slots: int
    execution_timeout: timedelta | None
    on_execute_callback: Callback
    on_failure_callback: Callback
    on_success_callback: Callback
    on_retry_callback: Callback
    on_skipped_callback: Callback
    pre_execute: Callable[[Any], None] | None
    post_execute: Callable[[Any, Any], None] | None
    trigger_rule: str
    resources: dict[str, Any] | None
    run_as_user: str | None
    map_index_template: str | None
    max_active_tis_per_dag: int | None
    max_active_tis_per_dagrun: int | None
    executor: str | None
    executor_config: dict[str, Any] | None
    do_xcom_push: bool
    multiple_outputs: bool
    inlets: Any
    outlets: Any
    doc: str | None
    doc_md: str | None
    doc_json: str | None
    doc_yaml: str | None
    doc_rst: str | None
    task_display_name: str | None
    logger_name: str | None
    allow_nested_operators: bool
    render_template_as_native_obj: bool | None


class ReceiveArguments(TaskArguments, total=False):
    """What the sensor of a lease takes beside its task id and ``handoff_timeout``."""

    queue_url: str
    max_messages: int | str
    linger: Duration
    policy: RenewalPolicy | str | None
    visibility: Duration | None
    payload: str | None
    message_filtering: str | None
    message_filtering_match_values: Iterable[Any] | None
    message_filtering_config: str | None
    unmatched: UnmatchedRule | None
    deferrable: bool
    poke_interval: timedelta | float
    timeout: timedelta | float | None
    soft_fail: bool
    mode: Literal["poke", "reschedule"]
    exponential_backoff: bool
    max_wait: timedelta | float | None
    silent_fail: bool
    never_fail: bool
    aws_conn_id: str | None
    region_name: str | None
    verify: bool | str | None
    botocore_config: dict[str, Any] | None
