/* Shows where gathers run: the routes with their counts and times from the metrics, and the route of the last gather. */

import { byId, make } from "./elements.js";
import { ask, Problem, textOf } from "./service.js";

const ROUTES = {
  loop: "on the event loop, at once",
  thread: "by one thread",
  split: "by several threads",
  gpu: "on the GPU",
};

const sizeText = ({ items, bytes }) =>
  [[items, "items"], [bytes, "bytes"]]
    .filter(([number]) => number !== null)
    .map(([number, unit]) => `${number.toLocaleString("en")} ${unit}`)
    .join(", ") || "none";

const timeText = (microseconds) =>
  microseconds >= 1000 ? `${(microseconds / 1000).toPrecision(3)} ms` : `${Number(microseconds.toPrecision(3))} µs`;

/** Show a gather's size, each route's threshold, the chosen route, and the stages from Server-Timing. */
export function showLastGather({ routes, choice, size, output_bytes: bytes, plan }, timing) {
  const rows = routes.map(({ route, reason, threshold }) => {
    const why = threshold ? `${reason}: ${sizeText(threshold)}` : reason;
    const state = route === choice.route
      ? make("span", { className: "chosen" }, `chosen: ${why}`)
      : make("span", { className: "note" }, why);
    return make("tr", {}, make("th", { scope: "row" }, route, make("small", {}, ROUTES[route] ?? "")), make("td", {}, state));
  });
  byId("last-rows").replaceChildren(...rows);
  byId("last-table").hidden = false;
  const stages = [...timing.matchAll(/(\w+);dur=([0-9.]+)/g)].map(([, stage, time]) => `${stage} ${timeText(Number(time) * 1000)}`);
  const output = bytes === null ? "" : `, ${bytes.toLocaleString("en")} bytes of output`;
  byId("last-note").textContent = `${(plan.tuples * plan.batches).toLocaleString("en")} tuples, ${sizeText(size)}${output}. Measured: ${stages.join(", ")}.`;
}

/** The metrics as last read. */
let latest = null;

/** Read the metrics and show, for each route, how many gathers took it and how long they took. */
export async function showMetrics() {
  const note = byId("metrics-note");
  const asked = (latest = {});
  let text;
  try {
    text = await textOf(await ask("metrics"));
  } catch (problem) {
    if (!(problem instanceof Problem)) throw problem;
    if (asked === latest) note.textContent = problem.message;
    return;
  }
  if (asked !== latest) return;
  const total = (name, labels) => samples(text, name)
    .filter((sample) => Object.entries(labels).every(([label, value]) => sample.labels[label] === value))
    .reduce((sum, sample) => sum + sample.value, 0);
  const rows = Object.entries(ROUTES).map(([route, where]) => {
    const taken = total("gathernd_kernel_routes_total", { route });
    const seconds = total("gathernd_route_measured_seconds_total", { route });
    const texts = [taken.toLocaleString("en"), taken ? timeText((seconds / taken) * 1e6) : "–"];
    return make("tr", {},
      make("th", { scope: "row" }, route, make("small", {}, where)),
      ...texts.map((cell) => make("td", { className: "number" }, cell)));
  });
  byId("metrics-rows").replaceChildren(...rows);
  note.textContent = "";
}

/** Return a metric's samples from Prometheus's text format. */
function samples(text, name) {
  const found = [];
  for (const line of text.split("\n")) {
    const match = /^(\w+)(?:\{(.*)\})? (\S+)/.exec(line);
    if (match?.[1] !== name) continue;
    const labels = Object.fromEntries([...(match[2] ?? "").matchAll(/(\w+)="([^"]*)"/g)].map(([, label, value]) => [label, value]));
    found.push({ labels, value: Number(match[3]) });
  }
  return found;
}
