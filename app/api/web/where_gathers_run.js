/* Where gathers run: what was predicted for the last one of the playground, and what the metrics count of all. */

import { byId, make } from "./elements.js";
import { ask, Problem, textOf } from "./service.js";

const ROUTES = {
  loop: "on the event loop, at once",
  thread: "by one thread",
  split: "by several threads",
  gpu: "on the GPU",
};

const microsecondsText = (value) =>
  value >= 1000 ? `${(value / 1000).toPrecision(3)} ms` : `${Number(value.toPrecision(3))} µs`;

/** Draw the routes of an explanation; `kernel` is what the kernel took, in microseconds. */
export function showExplanation({ routes, choice, output_bytes, plan }, kernel) {
  const times = routes.flatMap(({ microseconds }) => (microseconds === null ? [] : [microseconds]));
  const longest = Math.max(...times);
  const rows = routes.map(({ route, open, microseconds, reason }) => {
    const isChosen = route === choice.route;
    const line = make("tr");
    const time = make("td", { className: "number" }, microseconds === null ? "–" : microsecondsText(microseconds));
    const what = make("td");
    if (open && microseconds !== null) {
      const bar = make("div", { className: "time-bar" });
      bar.style.setProperty("--share", `${(microseconds / longest) * 100}%`);
      what.append(bar);
    } else {
      what.append(make("span", { className: "note" }, reason ?? "closed"));
    }
    const chosen = isChosen ? [" ", make("span", { className: "chosen" }, "chosen")] : [];
    line.append(make("th", { scope: "row" }, route, ...chosen, make("small", {}, ROUTES[route] ?? "")), time, what);
    return line;
  });
  byId("prediction-rows").replaceChildren(...rows);
  byId("prediction-table").hidden = false;
  const bytes = output_bytes === null ? "" : `, ${output_bytes} bytes of output`;
  byId("prediction-note").textContent =
    `${plan.tuples * plan.batches} tuples${bytes}: predicted to be quickest by the route ${choice.route}, in ` +
    `${microsecondsText(choice.microseconds)}${kernel === null ? "." : `; the kernel took ${microsecondsText(kernel)}.`}`;
}

/** The latest reading of the metrics. */
let latest = null;

/** Read the metrics and show, for each route, how often it was predicted and taken, and how right the times were. */
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
  const total = (name, labels = {}) => samples(text, name)
    .filter((sample) => Object.entries(labels).every(([label, value]) => sample.labels[label] === value))
    .reduce((sum, sample) => sum + sample.value, 0);
  const rows = Object.keys(ROUTES).map((route) => {
    const predicted = total("gathernd_kernel_routes_total", { predicted: route });
    const taken = total("gathernd_kernel_routes_total", { taken: route });
    const expected = total("gathernd_route_predicted_seconds_total", { route });
    const measured = total("gathernd_route_measured_seconds_total", { route });
    return make("tr", {},
      make("th", { scope: "row" }, route),
      ...[
        predicted.toLocaleString("en"),
        taken.toLocaleString("en"),
        expected ? `${(measured / expected).toFixed(2)} ×` : "–",
      ].map((cell) => make("td", { className: "number" }, cell)));
  });
  byId("metrics-rows").replaceChildren(...rows);
  note.textContent = "";
}

/** The samples of a metric in Prometheus' text form. */
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
