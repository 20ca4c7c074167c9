// Reads Airflow's public REST API with the session of the user who looks at the page.

/** The name that Airflow shows of the operator whose tasks keep batches, and of classes derived from it. */
const KEEPER = "SqsLeaseKeeperOperator";

/** Keepers in these states have, or will have, a batch to keep. */
const AT_WORK = ["scheduled", "queued", "running", "deferred", "up_for_retry", "up_for_reschedule", "restarting"];

/** Keepers in these states had a batch. */
const SETTLED = ["success", "failed"];

/** A skipped keeper, say, had none: a queue that is mostly empty makes many of them, which only their own run shows. */
const ENDED = [...SETTLED, "skipped", "upstream_failed", "removed"];

/** So many batches at work, and so many that ended, are read. */
export const MOST_AT_WORK = 100;
export const MOST_ENDED = 20;

/** Batches that ended longer ago than this are not read: the hours of a working day. */
export const ENDED_HOURS = 12;

const KEEPS = "keeps";
const NOTE = "settled";
const REPORT = "lease_report";

/** A status changes every 15 s at most, so it is read about as often. */
const STATUS_SECONDS = 20;

const AT_ONCE = 4;

/** An answer of Airflow that the page cannot use; `kind` names the state of the page that shows it. */
export class AirflowError extends Error {
  /** @param {"session"|"denied"|"missing"|"unreachable"|"refused"} kind */
  constructor(kind, message) {
    super(message);
    this.kind = kind;
  }
}

const KINDS = { 401: "session", 403: "denied", 404: "missing" };

/** Asks Airflow, and keeps the answers that cannot change any more. */
export class Airflow {
  /** @param {URL} root where Airflow is served, with a slash at its end */
  constructor(root) {
    this.root = root;
    this.aheadSeconds = 0; // how far Airflow's clock is ahead of the browser's
    this.figures = new Map(); // by task instance and try: when and what was read
  }

  /** Seconds since the epoch by Airflow's clock. */
  now() {
    return Date.now() / 1000 + this.aheadSeconds;
  }

  /**
   * Read all batches, or those of one run.
   *
   * @param {{dagId: string, runId: string} | null} run
   * @returns {Promise<{tasks: object[], figures: Map<string, object>, more: number, figuresDenied: boolean}>}
   */
  async batches(run) {
    const tasks = [];
    let all = 0;
    if (run === null) {
      const [atWork, ended] = await Promise.all([
        this.#keepers("~", "~", { state: AT_WORK, limit: MOST_AT_WORK, order_by: "-start_date" }),
        this.#keepers("~", "~", {
          state: SETTLED,
          limit: MOST_ENDED,
          order_by: "-end_date",
          end_date_gte: new Date((this.now() - ENDED_HOURS * 3600) * 1000).toISOString(),
        }),
      ]);
      tasks.push(...atWork.task_instances, ...ended.task_instances);
      all = (atWork.total_entries ?? 0) + ended.task_instances.length;
    } else {
      const found = await this.#keepers(run.dagId, run.runId, { limit: MOST_AT_WORK, order_by: "-start_date" });
      tasks.push(...found.task_instances);
      all = found.total_entries ?? 0;
    }
    const { figures, denied } = await this.#figuresOf(tasks);
    return { tasks, figures, more: Math.max(0, all - tasks.length), figuresDenied: denied };
  }

  #keepers(dagId, runId, parameters) {
    const path = `dags/${encodeURIComponent(dagId)}/dagRuns/${encodeURIComponent(runId)}/taskInstances`;
    return this.#get(path, { operator_name_pattern: KEEPER, ...parameters });
  }

  async #figuresOf(tasks) {
    const figures = new Map();
    let denied = false;
    const left = tasks.filter((task) => [...AT_WORK, ...SETTLED].includes(task.state));
    const readSome = async () => {
      for (let task = left.shift(); task !== undefined && !denied; task = left.shift()) {
        try {
          figures.set(task.id, await this.#figures(task));
        } catch (error) {
          if (!(error instanceof AirflowError) || error.kind !== "denied") throw error;
          denied = true;
        }
      }
    };
    await Promise.all(Array.from({ length: AT_ONCE }, readSome));
    const known = new Set(tasks.map(keyOf));
    for (const key of this.figures.keys()) if (!known.has(key)) this.figures.delete(key);
    return { figures, denied };
  }

  async #figures(task) {
    const key = keyOf(task);
    const kept = this.figures.get(key);
    const ended = task.end_date !== null && ENDED.includes(task.state);
    if (kept !== undefined && (ended ? kept.ended : this.now() - kept.readAt < STATUS_SECONDS)) return kept;
    const keeps = kept?.keeps ?? (await this.#value(task, KEEPS));
    const receiving = { ...task, task_id: keeps?.value.receive_task_id };
    const [note, report] = await Promise.all([
      keeps === null ? null : this.#value(receiving, NOTE),
      ended ? this.#value(task, REPORT) : null,
    ]);
    const newest = note ?? keeps;
    const status = newest?.value.status ?? null;
    const figures = { keeps, status, writtenAt: newest?.at ?? null, report: report?.value ?? null };
    this.figures.set(key, { ...figures, ended, readAt: this.now() });
    return figures;
  }

  /** A value that a task wrote; null where there is none, or where it is stored elsewhere. */
  async #value(task, key) {
    const place = [task.dag_id, task.dag_run_id, task.task_id].map(encodeURIComponent);
    const path = `dags/${place[0]}/dagRuns/${place[1]}/taskInstances/${place[2]}/xcomEntries/${key}`;
    try {
      const answer = await this.#get(path, { deserialize: true });
      const value = typeof answer.value === "string" ? JSON.parse(answer.value) : answer.value;
      return value !== null && typeof value === "object" ? { value, at: Date.parse(answer.timestamp) / 1000 } : null;
    } catch (error) {
      if (error instanceof SyntaxError || error.kind === "missing") return null;
      throw error;
    }
  }

  async #get(path, parameters) {
    const url = new URL(`api/v2/${path}`, this.root);
    for (const [name, value] of Object.entries(parameters)) {
      for (const one of [value].flat()) url.searchParams.append(name, one);
    }
    let answer;
    try {
      answer = await fetch(url, { headers: { accept: "application/json" }, credentials: "same-origin" });
    } catch (error) {
      throw new AirflowError("unreachable", String(error.message ?? error));
    }
    const date = Date.parse(answer.headers.get("date") ?? "");
    if (!Number.isNaN(date)) this.#noteClock(date / 1000);
    if (!answer.ok) {
      throw new AirflowError(KINDS[answer.status] ?? "refused", `${answer.status} ${answer.statusText}`.trim());
    }
    return answer.json();
  }

  #noteClock(serverSeconds) {
    const ahead = serverSeconds - Date.now() / 1000;
    // The header has whole seconds, and the answer took a while: only a real difference counts.
    this.aheadSeconds = Math.abs(ahead) > 2 ? ahead : 0;
  }
}

function keyOf(task) {
  return `${task.id} ${task.try_number}`;
}
