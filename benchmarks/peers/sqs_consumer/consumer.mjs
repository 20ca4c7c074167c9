// sqs-consumer with its heartbeat at half of the visibility timeout, in batches of ten, which are its cheapest way.
import { appendFileSync } from "node:fs";
import { setTimeout as sleep } from "node:timers/promises";
import { NodeHttpHandler } from "@smithy/node-http-handler";
import { SQSClient } from "@aws-sdk/client-sqs";
import { Consumer } from "sqs-consumer";

const { QUEUE_URL, AWS_ENDPOINT_URL, RECORD } = process.env;
const visibilityTimeout = Number(process.env.VISIBILITY_SECONDS);
const workSeconds = Number(process.env.WORK_SECONDS);
const consumers = Math.ceil(Number(process.env.AT_ONCE) / 10);

const sqs = new SQSClient({
  endpoint: AWS_ENDPOINT_URL,
  requestHandler: new NodeHttpHandler({ httpAgent: { maxSockets: Math.max(50, consumers) } }),
});

// A consumer has one batch at a time: more messages at once take more consumers.
for (let number = 0; number < consumers; number++) {
  const consumer = Consumer.create({
    queueUrl: QUEUE_URL,
    sqs,
    batchSize: 10,
    waitTimeSeconds: 20,
    visibilityTimeout,
    heartbeatInterval: visibilityTimeout / 2,
    terminateVisibilityTimeout: true,
    handleMessageBatch: async (messages) => {
      await sleep(workSeconds * 1000);
      if (process.env.FAILS === "1") {
        appendFileSync(RECORD, `failed ${Date.now() / 1000}\n`);
        throw new Error("the work fails, as it was told to");
      }
      return messages;
    },
  });
  for (const event of ["error", "processing_error", "timeout_error"]) {
    consumer.on(event, (error) => console.error(event, error.message));
  }
  consumer.start();
}
