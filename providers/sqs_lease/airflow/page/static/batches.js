// The rows of the page, one for each batch, made from Airflow's answers. Nothing here touches the page.

/** A triggerer without a heartbeat for so long counts as silent; Airflow's own default for its health. */
const SILENT_SECONDS = 30;

/** A status may be so old while all is well: a write every 15 s, and the pause of a busy triggerer. */
const LATE_SECONDS = 120;

/** The parts of a batch, in the order in which they are drawn. */
export const PARTS = [
  ["held", "Held"],
  ["deleted", "Deleted"],
  ["givenBack", "Given back"],
  ["deadLettered", "Dead-lettered"],
  ["lost", "Lost"],
  ["failed", "Not settled"],
];

/**
 * One batch for each keeper, those at work first, by deadline; then those that ended, newest first.
 *
 * @param {object[]} tasks task instances of the REST API
 * @param {Map<string, object>} figures by the id of the task instance
 * @param {number} now seconds since the epoch
 */
export function batchesOf(tasks, figures, now) {
  const batches = tasks.map((task) => batchOf(task, figures.get(task.id), now));
  const kept = batches.filter((batch) => !batch.ended);
  const ended = batches.filter((batch) => batch.ended);
  kept.sort((one, other) => (one.deadline ?? Infinity) - (other.deadline ?? Infinity) || one.began - other.began);
  ended.sort((one, other) => (other.endedAt ?? 0) - (one.endedAt ?? 0));
  return { kept, ended };
}

function batchOf(task, read, now) {
  const ended = ["success", "failed", "skipped", "upstream_failed", "removed"].includes(task.state);
  const { status = null, report = null, writtenAt = null } = read ?? {};
  const counts = (ended ? report : null) ?? status?.counts ?? null;
  const atWork = !ended && status !== null && counts?.held !== undefined;
  return {
    key: task.id,
    dagId: task.dag_id,
    runId: task.dag_run_id,
    taskId: task.task_id,
    queue: queueName(status?.queue_url),
    queueUrl: status?.queue_url ?? null,
    ended,
    endedAt: seconds(task.end_date),
    began: seconds(task.start_date) ?? 0,
    state: stateOf(task, report, now),
    received: number(counts?.received),
    held: ended && report === null ? null : number(counts?.held),
    deleted: number(counts?.deleted),
    givenBack: sum(counts?.released, counts?.expired),
    deadLettered: number(counts?.dead_lettered),
    lost: number(counts?.lost),
    failed: number(counts?.failed),
    extensions: number(counts?.extensions),
    late: number(counts?.late),
    oldest: atWork ? number(status.oldest_received_at) : null,
    renewAt: atWork ? number(status.renew_at) : null,
    deadline: atWork ? number(status.deadline) : null,
    writtenAt: ended ? null : writtenAt,
    triggerer: task.triggerer_job?.hostname ?? null,
  };
}

/** Returns the keeper's state in words, and its urgency: "good", "wait" or "bad". */
function stateOf(task, report, now) {
  switch (task.state) {
    case "deferred":
      return deferredState(task.triggerer_job, now);
    case "success":
      return report === null ? word("Ended by hand", "wait") : word("Settled", "good");
    case "failed":
      return word("Failed", "bad");
    case "skipped":
      return word("No messages", "wait");
    case "upstream_failed":
      return word("Nothing received", "bad");
    case "removed":
      return word("Removed", "wait");
    case "up_for_retry":
      return word("Waits for its next try", "wait");
    case null:
      return word("Not started", "wait");
    default:
      return word("Being handed over", "wait");
  }
}

function deferredState(job, now) {
  if (job === null || job === undefined) return word("Waits for a triggerer", "bad");
  const silent = now - (seconds(job.latest_heartbeat) ?? now);
  if (silent > SILENT_SECONDS) return word(`Triggerer silent for ${duration(silent)}`, "bad");
  return word("Kept", "good");
}

function word(text, mood) {
  return { text, mood };
}

/** The sums over batches that are kept, and what comes next of all. */
export function summaryOf(kept) {
  const times = (name) => kept.map((batch) => batch[name]).filter((at) => at !== null);
  const first = (name) => (times(name).length ? Math.min(...times(name)) : null);
  return {
    batches: kept.length,
    held: kept.reduce((total, batch) => total + (batch.held ?? 0), 0),
    lost: kept.reduce((total, batch) => total + (batch.lost ?? 0), 0),
    oldest: first("oldest"),
    renewAt: first("renewAt"),
    deadline: first("deadline"),
  };
}

/** The last part of a queue's URL, which is its name. */
export function queueName(url) {
  return typeof url === "string" ? url.slice(url.lastIndexOf("/") + 1) : null;
}

/** "12 s", "3 min 5 s", "2 h 10 min": two units at most, and never negative. */
export function duration(length) {
  const whole = Math.max(0, Math.round(length));
  const [hours, minutes, rest] = [Math.floor(whole / 3600), Math.floor((whole % 3600) / 60), whole % 60];
  if (hours > 0) return minutes > 0 ? `${hours} h ${minutes} min` : `${hours} h`;
  if (minutes > 0) return rest > 0 ? `${minutes} min ${rest} s` : `${minutes} min`;
  return `${rest} s`;
}

/** How long ago. */
export function age(at, now) {
  return at === null ? "–" : duration(now - at);
}

/** When something is due next; a status is older than now, so what was due since is most likely done. */
export function until(at, now) {
  if (at === null) return "–";
  return at > now ? `in ${duration(at - now)}` : "due";
}

/** When leases end; one that seems to have ended is only alarming once a status must have said otherwise. */
export function deadlineText(at, now) {
  if (at === null) return "–";
  if (at > now) return `in ${duration(at - now)}`;
  return isOverdue(at, now) ? `passed ${duration(now - at)} ago` : "being extended";
}

/** Whether leases ended, and no newer status says that they were extended. */
export function isOverdue(at, now) {
  return at !== null && now - at > LATE_SECONDS;
}

/** The time of day, with the date where that is another. */
export function clockTime(at, now) {
  if (at === null) return "";
  const [then, today] = [new Date(at * 1000), new Date(now * 1000)];
  const time = then.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", second: "2-digit" });
  return then.toDateString() === today.toDateString() ? time : `${then.toLocaleDateString()} ${time}`;
}

function seconds(text) {
  const parsed = Date.parse(text ?? "");
  return Number.isNaN(parsed) ? null : parsed / 1000;
}

function number(value) {
  return typeof value === "number" && Number.isFinite(value) ? value : null;
}

function sum(...values) {
  const numbers = values.map(number).filter((value) => value !== null);
  return numbers.length ? numbers.reduce((total, value) => total + value, 0) : null;
}
