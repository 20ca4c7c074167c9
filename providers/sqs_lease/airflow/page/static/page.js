// The page: reads the batches again and again, and says in words what it cannot read.

import { Airflow, AirflowError, ENDED_HOURS, MOST_AT_WORK } from "./airflow.js";
import { batchesOf, clockTime, summaryOf } from "./batches.js";
import { followTheme } from "./host.js";
import { BatchTable, setText, showNotice, showSummary } from "./view.js";

const REFRESH_SECONDS = 10;

/** After errors the page asks less often. */
const LONGEST_PAUSE_SECONDS = 120;

/** As many samples of what is held are drawn: an hour. */
const MOST_SAMPLES = 360;

const place = (id) => document.getElementById(id);

const given = new URLSearchParams(location.search);
const run = given.has("dag_id") && given.has("run_id") ? { dagId: given.get("dag_id"), runId: given.get("run_id") } : null;
const root = new URL("../", new URL(".", location.href));
const airflow = new Airflow(root);
const tables = {
  kept: new BatchTable(place("kept"), run === null ? "At work" : "At work in this run", false, run !== null, root),
  ended: new BatchTable(place("ended"), run === null ? `Ended in the last ${ENDED_HOURS} hours` : "Ended", true, run !== null, root),
};

let shown = null; // what was read last
let samples = [];
let failures = 0;
let paused = false;
let reading = null;
let timer = 0;

async function read() {
  clearTimeout(timer);
  place("content").setAttribute("aria-busy", "true");
  try {
    shown = { ...(await airflow.batches(run)), at: airflow.now() };
    failures = 0;
    const { kept } = batchesOf(shown.tasks, shown.figures, shown.at);
    samples = [...samples, { at: shown.at, count: summaryOf(kept).held }].slice(-MOST_SAMPLES);
    showNotice(place("problem"), []);
  } catch (error) {
    failures += 1;
    showNotice(place("problem"), problem(error));
    if (error instanceof AirflowError && error.kind !== "unreachable" && error.kind !== "refused") shown = null;
  }
  place("content").removeAttribute("aria-busy");
  draw();
  plan();
}

function refresh() {
  reading ??= read().finally(() => {
    reading = null;
  });
  return reading;
}

function plan() {
  clearTimeout(timer);
  if (paused || document.hidden) return;
  timer = setTimeout(refresh, 1000 * Math.min(REFRESH_SECONDS * 2 ** failures, LONGEST_PAUSE_SECONDS));
}

function draw() {
  const now = airflow.now();
  const { kept, ended } = batchesOf(shown?.tasks ?? [], shown?.figures ?? new Map(), now);
  showSummary(place("summary"), summaryOf(kept), samples, now);
  tables.kept.show(kept, now);
  tables.ended.show(ended, now);
  showNotice(place("empty"), shown !== null && kept.length + ended.length === 0 ? emptiness() : []);
  showNotice(place("notice"), shown === null ? [] : notices(shown));
  if (shown !== null) setText(place("state"), `${paused ? "Paused. " : ""}As of ${clockTime(shown.at, now)}`);
  else setText(place("state"), failures > 0 ? "Nothing could be read" : "Reading …");
}

function notices({ more, figuresDenied }) {
  const lines = [];
  if (more > 0) {
    const left = run === null ? `${more} more batches are at work` : `This run has ${more} more batches`;
    lines.push(`${left}: the ${MOST_AT_WORK} that began last are shown.`);
  }
  if (figuresDenied) {
    lines.push(
      "Airflow does not let you read XComs, which the figures are in. The batches are shown without them; " +
        "ask for the permission to read XComs of these DAGs.",
    );
  }
  return lines;
}

function emptiness() {
  if (run !== null) return ["No task of this run keeps messages of an SQS queue."];
  return [
    "No messages of an SQS queue are kept now.",
    `A batch appears here when a run has received it, and stays for ${ENDED_HOURS} hours after its end.`,
  ];
}

function problem(error) {
  const kind = error instanceof AirflowError ? error.kind : "broken";
  switch (kind) {
    case "session":
      return ["Your session has ended.", "Reload this window to log in again."];
    case "denied":
      return [
        "Airflow does not let you read this.",
        "Ask for the permission to read task instances and XComs of the DAGs that consume from SQS.",
      ];
    case "missing":
      return ["Airflow does not know this run any more.", "It was deleted, or the address is wrong."];
    case "unreachable":
      return ["Airflow does not answer.", `The page goes on trying${shown === null ? "" : "; what it shows is older"}.`];
    case "refused":
      return [`Airflow answered ${error.message}.`, "The page goes on trying. Look into the log of the API server."];
    default:
      console.error(error);
      return ["Airflow's answer is not what this page expects.", "Reload it; if that does not help, report it."];
  }
}

place("refresh").addEventListener("click", refresh);
place("pause").addEventListener("click", () => {
  paused = !paused;
  place("pause").setAttribute("aria-pressed", String(paused));
  draw();
  if (paused) clearTimeout(timer);
  else refresh();
});
// A hidden page does not ask Airflow; when it is shown again, it refreshes at once.
document.addEventListener("visibilitychange", () => (document.hidden ? clearTimeout(timer) : paused || refresh()));
setInterval(() => !paused && !document.hidden && draw(), 1000);

followTheme();
refresh();
