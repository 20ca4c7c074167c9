// The two charts: how the messages of a batch stand, and how many are held over time. Plain SVG, no inline styles.

const SVG = "http://www.w3.org/2000/svg";

function element(name, attributes) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, String(value));
  return made;
}

/**
 * A bar whose pieces are the parts of a batch.
 *
 * @param {[name: string, label: string, count: number][]} parts those that are not empty
 */
export function bar(parts) {
  const total = parts.reduce((sum, [, , count]) => sum + count, 0);
  const text = parts.map(([, label, count]) => `${label} ${count}`).join(", ") || "No figures yet";
  const picture = element("svg", { class: "bar", viewBox: "0 0 100 8", preserveAspectRatio: "none", role: "img" });
  picture.setAttribute("aria-label", text);
  const title = element("title", {});
  title.textContent = text;
  picture.append(title, element("rect", { class: "none", width: 100, height: 8 }));
  let x = 0;
  for (const [name, , count] of parts) {
    const width = (100 * count) / total;
    picture.append(element("rect", { class: name, x, width, height: 8 }));
    x += width;
  }
  return picture;
}

/**
 * A line of counts over time.
 *
 * @param {{at: number, count: number}[]} samples in order of time
 * @param {string} label what is counted, for those who do not see it
 */
export function line(samples, label) {
  const picture = element("svg", { class: "line", viewBox: "0 0 240 48", preserveAspectRatio: "none", role: "img" });
  picture.setAttribute("aria-label", label);
  if (samples.length < 2) return picture;
  const [from, to] = [samples[0].at, samples[samples.length - 1].at];
  const most = Math.max(1, ...samples.map((sample) => sample.count));
  const x = (at) => (240 * (at - from)) / Math.max(1e-9, to - from);
  const y = (count) => 45 - (42 * count) / most;
  // Steps: a count holds until the next one was read.
  const points = samples.flatMap(({ at, count }, number) => [
    ...(number > 0 ? [`${x(at)},${y(samples[number - 1].count)}`] : []),
    `${x(at)},${y(count)}`,
  ]);
  picture.append(element("polygon", { class: "area", points: `0,48 ${points.join(" ")} 240,48` }));
  picture.append(element("polyline", { class: "stroke", points: points.join(" ") }));
  return picture;
}
