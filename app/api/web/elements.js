/* Creates elements of the page. Text from the service is inserted as text, never as HTML. */

import { Problem } from "./service.js";

/** Create an element. `properties` are set as properties; names with a dash, and `role`, are set as attributes. */
export function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name === "role" || name.includes("-")) element.setAttribute(name, value);
    else element[name] = value;
  }
  element.append(...children);
  return element;
}

/** Replace the content of `host`. If it had the focus, the new control of the same name gets it, else the first control. */
export function replaceWithin(host, ...children) {
  const nameOf = (control) => control.id || control.getAttribute("aria-label") || control.textContent;
  const name = host.contains(document.activeElement) ? nameOf(document.activeElement) : null;
  host.replaceChildren(...children);
  if (name === null) return;
  const controls = [...host.querySelectorAll("button:enabled, input, select, a, [tabindex]")];
  (controls.find((control) => nameOf(control) === name) ?? controls[0])?.focus({ preventScroll: true });
}

export const byId = (id) => document.getElementById(id);

/** Return whether `control` is visible within `form`. The form itself may be hidden. */
export function isShown(control, form) {
  const hidden = control.closest("[hidden]");
  return !hidden || !form.contains(hidden);
}

/** Return an error's paragraphs: its text, the cited rule, the hint, and a link to the code's page. */
export function problemParagraphs(problem) {
  const found = [make("p", { className: "problem-text" }, problem.message)];
  if (problem.total > problem.errors.length && problem.errors.length) {
    found.push(make("p", {}, `The first ${problem.errors.length} of ${problem.total} are marked.`));
  }
  if (problem.excerpt) {
    const [before, wrong, after] = problem.excerpt;
    found.push(make("p", { className: "excerpt" }, before, make("mark", {}, wrong), after));
  }
  if (problem.rule) {
    const { dialect, clause, text } = problem.rule;
    found.push(make("p", { className: "rule" }, `${dialect}${clause ? `, clause ${clause}` : ""}: `, make("q", {}, text)));
  }
  if (problem.hint) found.push(make("p", { className: "hint" }, problem.hint));
  if (problem.code) {
    const link = make("a", { href: `errors/${encodeURIComponent(problem.code)}` }, problem.code);
    found.push(make("p", { className: "error-link" }, link));
  }
  return found;
}

/** Show `said`, a text or a Problem, in the element `id`. Clear the element if `said` is missing. */
export function sayAt(id, said = "") {
  const host = byId(id);
  host.classList.toggle("problem", said instanceof Problem);
  host.replaceChildren(...(said instanceof Problem ? problemParagraphs(said) : said ? [make("p", {}, said)] : []));
}
