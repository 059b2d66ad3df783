/* Checks JSON that is typed into a form before it is sent. The error names the field and the place in it; the service
 * would know only the place in the body. */

import { isShown } from "./elements.js";
import { Problem } from "./service.js";

const SPACE = /[ \t\n\r]*/y;
const SCALAR = /-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?|true|false|null|"(?:[^"\\\u0000-\u001f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*"/y;
/** Maximum nesting of lists that the service accepts. */
const DEEPEST = 512;
/** Characters shown before and after a fault. */
const SHOWN = 20;

/** Return where `text` stops being JSON, as `{at, expected}`, or null if it is JSON. */
export function firstFault(text) {
  let at = 0;
  const take = (pattern) => {
    pattern.lastIndex = at;
    const found = pattern.exec(text)?.[0];
    at += found?.length ?? 0;
    return found !== undefined;
  };
  const next = (character) => {
    take(SPACE);
    if (text[at] !== character) return false;
    at++;
    return true;
  };
  const fail = (expected) => { throw { at, expected }; };
  const items = (closer, item, depth) => {
    if (depth > DEEPEST) fail(`at most ${DEEPEST} levels of lists`);
    if (next(closer)) return;
    do item(depth); while (next(","));
    if (!next(closer)) fail(`a comma or ${closer}`);
  };
  const member = (depth) => {
    if (!next('"')) fail("a name in double quotes");
    at--;
    take(SCALAR) || fail("a name in double quotes");
    if (!next(":")) fail("a colon");
    value(depth);
  };
  const value = (depth) => {
    if (next("[")) items("]", value, depth + 1);
    else if (next("{")) items("}", member, depth + 1);
    else if (!take(SCALAR)) fail("a value");
  };
  try {
    value(0);
    take(SPACE);
    if (at < text.length) fail("the end");
    return null;
  } catch (fault) {
    if (!("expected" in fault)) throw fault;
    return fault;
  }
}

/** Return the problem of the first control of `form` whose text is not JSON, or null. */
export function typingProblem(form) {
  for (const control of form.querySelectorAll("textarea, input[type=text]")) {
    if (!isShown(control, form) || ("optional" in control.dataset && !control.value.trim())) continue;
    const fault = firstFault(control.value);
    if (fault) return problemOf(control, fault);
  }
  return null;
}

/** An error in the service's form, with the `control`, the place `at` in its text, and an `excerpt` around that place. */
function problemOf(control, { at, expected }) {
  const text = control.value;
  const lines = text.slice(0, at).split("\n");
  const place = `line ${lines.length}, column ${lines.at(-1).length + 1}`;
  const found = at < text.length ? `"${String.fromCodePoint(text.codePointAt(at))}"` : "the end";
  const name = control.labels[0].textContent.split(/[,:]/)[0];
  const isAfterComma = text.slice(0, at).trimEnd().endsWith(",") && "]}".includes(text[at] ?? " ");
  const problem = new Problem(0, {
    code: "malformed_request",
    detail: `${name}, ${place}: expected ${expected}, found ${found}`,
    hint: isAfterComma
      ? `Leave out the comma before ${found}.`
      : "Write JSON: lists in brackets, texts in double quotes, numbers such as -1.5, and true or false.",
  });
  const end = at + Math.max(found.length - 2, 1);
  const excerpt = [text.slice(Math.max(0, at - SHOWN), at), at < text.length ? text.slice(at, end) : " ", text.slice(end, end + SHOWN)];
  return Object.assign(problem, { control, at, excerpt });
}

/** Move a control's cursor to the place of a problem that `typingProblem` found. */
export function selectPlace({ control, at }) {
  control.focus({ preventScroll: true });
  control.setSelectionRange(at, at + 1);
}
