# A queue with its dead-letter queue, and the least permissions to consume it. Optionally the notifications of a bucket that
# is there already: they REPLACE all notifications that the bucket has, because S3 has one configuration for each bucket.
#
#   terraform apply -var name=orders -var host=airflow

terraform {
  required_providers {
    aws = {
      source  = "hashicorp/aws"
      version = ">= 5.0"
    }
  }
}

variable "name" {
  description = "Name of the queue. Its dead-letter queue is called NAME-dead-letters."
  type        = string
  validation {
    condition     = can(regex("^[A-Za-z0-9_-]{1,67}$", var.name))
    error_message = "name must have 1 to 67 letters, digits, - and _; FIFO queues are not made here."
  }
}

variable "host" {
  description = "The consumer, which decides the permissions: airflow, dagster, or lease for a Python program."
  type        = string
  validation {
    condition     = contains(["airflow", "dagster", "lease"], var.host)
    error_message = "host must be airflow, dagster or lease."
  }
}

variable "visibility_seconds" {
  description = "Visibility timeout. Leases are extended, so it may be shorter than the work."
  type        = number
  default     = 60
  validation {
    condition     = var.visibility_seconds >= 30 && var.visibility_seconds <= 43200
    error_message = "visibility_seconds must be 30 to 43200."
  }
}

variable "receives_before_dead_letter" {
  description = "SQS moves a message to the dead-letter queue after so many receives (maxReceiveCount)."
  type        = number
  default     = 5
}

variable "objects_bucket" {
  description = "A bucket that sends a message for each new object, and loses its other notifications; empty for none."
  type        = string
  default     = ""
}

locals {
  queue_actions = ["sqs:ChangeMessageVisibility", "sqs:DeleteMessage", "sqs:GetQueueAttributes", "sqs:GetQueueUrl", "sqs:ReceiveMessage"]
  dead_letter_actions = {
    airflow = ["sqs:SendMessage"]
    dagster = ["sqs:GetQueueAttributes", "sqs:GetQueueUrl", "sqs:SendMessage"]
    lease   = ["sqs:SendMessage"]
  }
}

data "aws_caller_identity" "here" {}

data "aws_partition" "here" {}

resource "aws_sqs_queue" "dead_letters" {
  name = "${var.name}-dead-letters"
  # The longest: SQS counts from the first send, also for a message that is moved.
  message_retention_seconds = 1209600
  sqs_managed_sse_enabled   = true
}

resource "aws_sqs_queue" "queue" {
  name                       = var.name
  visibility_timeout_seconds = var.visibility_seconds
  message_retention_seconds  = 604800
  receive_wait_time_seconds  = 20
  sqs_managed_sse_enabled    = true
  redrive_policy = jsonencode({
    deadLetterTargetArn = aws_sqs_queue.dead_letters.arn
    maxReceiveCount     = var.receives_before_dead_letter
  })
}

data "aws_iam_policy_document" "consume" {
  statement {
    sid       = "Queues"
    actions   = local.queue_actions
    resources = [aws_sqs_queue.queue.arn]
  }
  statement {
    sid       = "DeadLetterQueues"
    actions   = local.dead_letter_actions[var.host]
    resources = [aws_sqs_queue.dead_letters.arn]
  }
}

resource "aws_iam_policy" "consume" {
  name_prefix = "${var.name}-sqs-lease-"
  description = "Consume ${var.name} with sqs-lease"
  policy      = data.aws_iam_policy_document.consume.json
}

data "aws_iam_policy_document" "bucket_may_send" {
  statement {
    actions   = ["sqs:SendMessage"]
    resources = [aws_sqs_queue.queue.arn]
    principals {
      type        = "Service"
      identifiers = ["s3.amazonaws.com"]
    }
    condition {
      test     = "ArnEquals"
      variable = "aws:SourceArn"
      values   = ["arn:${data.aws_partition.here.partition}:s3:::${var.objects_bucket}"]
    }
    condition {
      test     = "StringEquals"
      variable = "aws:SourceAccount"
      values   = [data.aws_caller_identity.here.account_id]
    }
  }
}

resource "aws_sqs_queue_policy" "bucket_may_send" {
  count     = var.objects_bucket == "" ? 0 : 1
  queue_url = aws_sqs_queue.queue.id
  policy    = data.aws_iam_policy_document.bucket_may_send.json
}

resource "aws_s3_bucket_notification" "objects" {
  count  = var.objects_bucket == "" ? 0 : 1
  bucket = var.objects_bucket
  queue {
    queue_arn = aws_sqs_queue.queue.arn
    events    = ["s3:ObjectCreated:*"]
  }
  # S3 sends a test message to the queue.
  depends_on = [aws_sqs_queue_policy.bucket_may_send]
}

output "queue_url" {
  value = aws_sqs_queue.queue.id
}

output "dead_letter_url" {
  value = aws_sqs_queue.dead_letters.id
}

output "policy_arn" {
  description = "Attach it to the role of the consumer."
  value       = aws_iam_policy.consume.arn
}
