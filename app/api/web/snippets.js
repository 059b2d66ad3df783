/* The playground's request as code to copy, in a panel per language. */

import { curlText, pythonText } from "./code_examples.js";
import { PROGRAMS } from "./code_in_languages.js";
import { make } from "./elements.js";

/**
 * The languages, in the order shown: the label, and the function that returns a request's code. A request is
 * `{operator, body, parameterName, parameter, dialect, data, indices, updates, batchDims, outOfBounds, fillValue,
 * outputDtype, reduction}`. `body` is the JSON text that is sent. `data`, `indices` and `updates` are
 * `{dtype, shape, elements, values}`, or `{name, dtype, shape}` for a resident tensor, or null if the text is not a
 * tensor; a gather has no `updates`. `dialect`, `outOfBounds`, `outputDtype` and `reduction` are null for the default.
 * `fillValue` is null if none is sent, undefined if it is not JSON.
 */
const LANGUAGES = [
  { label: "curl", write: ({ operator, body }) => curlText(operator, body) },
  { label: "Python", write: pythonText },
  ...PROGRAMS.map(([label, write]) => ({ label, write: ({ operator, body }) => write(operator, body) })),
];

export class Snippets {
  constructor(host) {
    this.codes = LANGUAGES.map(({ label }, place) => {
      const code = make("code", { id: `${label.toLowerCase()}-code` });
      host.append(make("details", { className: "code", open: place === 0 },
        make("summary", {}, label),
        make("button", { type: "button", "data-copies": code.id }, "Copy"),
        make("pre", { tabIndex: 0, "aria-label": `The request in ${label}` }, code)));
      return code;
    });
  }

  /** Show the code of `request` in each language. */
  write(request) {
    LANGUAGES.forEach(({ write }, place) => { this.codes[place].textContent = write(request); });
  }
}
