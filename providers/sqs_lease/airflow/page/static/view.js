// Draws the page. All text goes in as text, never as markup. Rows stay in place, so that focus stays where it is.

import { PARTS, age, clockTime, deadlineText, duration, isOverdue, until } from "./batches.js";
import { bar, line } from "./chart.js";
import { link } from "./host.js";

const QUEUE = { label: "Queue", kind: "name", show: (cell, batch) => setText(cell, batch.queue ?? "–", batch.queueUrl) };

const FIGURES = PARTS.map(([name, label]) => ({
  label,
  kind: `number of-${name}`,
  show: (cell, batch) => {
    setText(cell, batch[name] === null ? "–" : String(batch[name]));
    cell.classList.toggle("bad", (name === "lost" || name === "failed") && (batch[name] ?? 0) > 0);
  },
}));

const TIMES = [
  { label: "Oldest", kind: "time", show: (cell, batch, now) => showTime(cell, batch.oldest, now, age) },
  { label: "Next renewal", kind: "time", show: (cell, batch, now) => showTime(cell, batch.renewAt, now, until) },
  {
    label: "Deadline",
    kind: "time",
    show: (cell, batch, now) => {
      showTime(cell, batch.deadline, now, deadlineText);
      cell.classList.toggle("bad", isOverdue(batch.deadline, now));
    },
  },
];

const SOURCE = [
  { label: "Triggerer", kind: "name", show: (cell, batch) => setText(cell, batch.triggerer ?? "–") },
  { label: "Last change", kind: "time", show: (cell, batch, now) => showTime(cell, batch.writtenAt, now, ago) },
];

const ENDED_TIMES = [{ label: "Ended", kind: "time", show: (cell, batch, now) => showTime(cell, batch.endedAt, now, ago) }];

/** The columns of a table: the run is named where there may be several. */
function columnsOf(ended, ofOneRun) {
  return [
    QUEUE,
    ofOneRun
      ? { label: "Keeper", kind: "name place", show: (cell, batch) => showPlace(cell, batch, false) }
      : { label: "DAG, run and keeper", kind: "name place", show: (cell, batch) => showPlace(cell, batch, true) },
    { label: "State", kind: "state", show: (cell, batch) => showState(cell, batch.state) },
    ...(ended ? ENDED_TIMES : TIMES),
    { label: "Messages", kind: "chart", show: showBar },
    ...FIGURES,
    ...(ended ? [] : SOURCE),
  ];
}

/** A table of batches; `show` puts other ones in it. */
export class BatchTable {
  /**
   * @param {HTMLElement} section where it is
   * @param {string} title its heading, which names the table
   * @param {boolean} ended whether its batches have ended
   * @param {boolean} ofOneRun whether all of them are of one run
   * @param {URL} root where Airflow is served
   */
  constructor(section, title, ended, ofOneRun, root) {
    this.section = section;
    this.root = root;
    this.columns = columnsOf(ended, ofOneRun);
    this.rows = new Map();
    const id = `${section.id}-title`;
    const heading = made("h2", { id });
    heading.textContent = title;
    const table = made("table", { "aria-labelledby": id });
    const head = table.createTHead().insertRow();
    for (const column of this.columns) {
      const cell = made("th", { scope: "col", class: column.kind });
      cell.textContent = column.label;
      head.append(cell);
    }
    this.body = table.createTBody();
    // A long name may be wider than the page: users without a mouse scroll it with the arrow keys.
    const scrolled = made("div", { class: "scrolled", tabindex: "0", role: "region", "aria-labelledby": id });
    scrolled.append(table);
    section.append(heading, scrolled);
  }

  show(batches, now) {
    this.section.hidden = batches.length === 0;
    const gone = new Set(this.rows.keys());
    batches.forEach((batch, number) => {
      gone.delete(batch.key);
      let row = this.rows.get(batch.key);
      if (row === undefined) {
        row = this.body.insertRow();
        row.root = this.root;
        for (const column of this.columns) row.append(made("td", { class: column.kind, "data-label": column.label }));
        this.rows.set(batch.key, row);
      }
      if (this.body.rows[number] !== row) this.body.insertBefore(row, this.body.rows[number] ?? null);
      this.columns.forEach((column, place) => column.show(row.cells[place], batch, now));
    });
    for (const key of gone) {
      this.rows.get(key).remove();
      this.rows.delete(key);
    }
  }
}

function showPlace(cell, batch, withRun) {
  const run = `dags/${encodeURIComponent(batch.dagId)}/runs/${encodeURIComponent(batch.runId)}`;
  if (cell.dataset.run === run) return;
  cell.dataset.run = run;
  const { root } = cell.parentElement;
  const url = (path) => new URL(path, root).href;
  const keeper = link(url(`${run}/tasks/${encodeURIComponent(batch.taskId)}`), batch.taskId);
  const dag = () => link(url(`dags/${encodeURIComponent(batch.dagId)}`), batch.dagId);
  cell.replaceChildren(
    ...(withRun ? [dag(), made("br"), link(url(run), batch.runId), made("br"), keeper] : [keeper]),
  );
}

function showState(cell, { text, mood }) {
  if (cell.firstChild === null) cell.append(made("span"));
  setText(cell.firstChild, text);
  cell.firstChild.className = `state ${mood}`;
}

function showBar(cell, batch) {
  const parts = PARTS.map(([name, label]) => [name, label, batch[name] ?? 0]).filter(([, , count]) => count > 0);
  const drawn = JSON.stringify(parts);
  if (cell.dataset.drawn === drawn) return;
  cell.dataset.drawn = drawn;
  cell.replaceChildren(bar(parts));
}

function showTime(cell, at, now, text) {
  setText(cell, text(at, now), clockTime(at, now));
}

function ago(at, now) {
  return at === null ? "–" : `${duration(now - at)} ago`;
}

/** The figures of all batches together, with the line of what was held since the page was opened. */
export function showSummary(section, summary, samples, now) {
  section.hidden = summary.batches === 0;
  if (section.firstChild === null) section.append(made("dl"), lineFigure());
  const facts = [
    ["Batches", String(summary.batches)],
    ["Messages held", String(summary.held)],
    ["Lost", String(summary.lost)],
    ["Oldest", age(summary.oldest, now)],
    ["Next renewal", until(summary.renewAt, now)],
    ["First deadline", deadlineText(summary.deadline, now)],
  ];
  const list = section.firstChild;
  facts.forEach(([name, value], number) => {
    const pair = list.children[number] ?? list.appendChild(fact(name));
    setText(pair.lastChild, value);
  });
  const figure = section.lastChild;
  figure.hidden = samples.length < 2;
  const length = samples.length > 1 ? duration(samples[samples.length - 1].at - samples[0].at) : "0 s";
  const most = Math.max(0, ...samples.map((sample) => sample.count));
  const caption = `Messages held, last ${length}; at most ${most}`;
  if (figure.dataset.samples === String(samples.at(-1)?.at)) return;
  figure.dataset.samples = String(samples.at(-1)?.at);
  figure.replaceChild(line(samples, caption), figure.firstChild);
  setText(figure.lastChild, caption);
}

function fact(name) {
  const pair = made("div");
  const term = made("dt");
  term.textContent = name;
  pair.append(term, made("dd"));
  return pair;
}

function lineFigure() {
  const figure = made("figure");
  figure.append(made("span"), made("figcaption"));
  return figure;
}

/** Show a notice, or hide it: the lines are its paragraphs. */
export function showNotice(section, lines) {
  const text = lines.join("\n");
  if (section.dataset.text === text) return;
  section.dataset.text = text;
  section.hidden = lines.length === 0;
  section.replaceChildren(
    ...lines.map((each) => {
      const paragraph = made("p");
      paragraph.textContent = each;
      return paragraph;
    }),
  );
}

export function setText(place, text, title = "") {
  if (place.textContent !== text) place.textContent = text;
  if (place.title !== (title ?? "")) place.title = title ?? "";
}

function made(name, attributes = {}) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  return element;
}
