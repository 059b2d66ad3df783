/* The playground's request as a curl command and as Python, with this server's address. The code never contains a key. */

import { ELEMENT_TYPES } from "./element_types.js";
import { address, hasKey } from "./service.js";

const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;

/** Return a shell command that sends `body` to the route `operator`. */
export function curlText(operator, body) {
  const url = `${address()}/${operator}`;
  const word = /[^\w.:/%~-]/.test(url) ? quoted(url) : url; // a prefix may have characters with a meaning in the shell
  const lines = [`curl -s ${word} -H 'Content-Type: application/json'`];
  if (hasKey()) lines.push('  -H "Authorization: Bearer $GATHERND_API_KEY"');
  return `${lines.join(" \\\n")} -d ${quoted(body)}`;
}

/** Return Python code for the client. `LANGUAGES` in snippets.js describes the request. */
export function pythonText({
  operator, parameterName, parameter, dialect, data, indices, updates, batchDims = 0, outOfBounds = null, fillValue = null,
  outputDtype = null, reduction = null,
}) {
  if (!data || !indices || updates === null) return "Values that are not nested lists have no form in Python.";
  if (fillValue === undefined) return "A fill value that is not JSON has no form in Python.";
  const imports = ["import numpy as np", "from gathernd import Client"];
  if ([data, indices].some(({ dtype }) => ELEMENT_TYPES.get(dtype).python)) imports.unshift("import ml_dtypes");
  if (hasKey()) imports.push("", "# The client takes the key from the environment: GATHERND_API_KEY");
  const more = [
    ...(parameter ? [`${parameterName}=${parameter}`] : []),
    ...(batchDims ? [`batch_dims=${batchDims}`] : []),
    ...(dialect === null ? [] : [`dialect="${dialect}"`]),
    ...(outOfBounds === null ? [] : [`out_of_bounds="${outOfBounds}"`]),
    ...(fillValue === null ? [] : [`fill_value=${literal(fillValue, data.dtype)}`]),
    ...(outputDtype === null ? [] : [`output_dtype="${outputDtype}"`]),
    ...(reduction === null ? [] : [`reduction="${reduction}"`]),
  ];
  const call = ["data", "indices", ...(updates ? ["updates"] : []), ...more].join(", ");
  return `${imports.join("\n")}

data = ${data.name === undefined ? arrayText(data) : JSON.stringify(data.name)}
indices = ${arrayText(indices)}${updates ? `\nupdates = ${arrayText(updates)}` : ""}
with Client("${address()}") as client:
    print(client.${operator}(${call}))
`;
}

function arrayText({ dtype, values }) {
  const type = dtype === "string" ? "object" : ELEMENT_TYPES.get(dtype).python ?? `"${dtype}"`;
  return `np.array(${literal(values, dtype)}, ${type})`;
}

/** Format parsed JSON, whose numbers are text (see `parseExactly`), as Python. */
function literal(value, dtype) {
  if (Array.isArray(value)) {
    const isElement = dtype.startsWith("complex") && value.length === 2 && !value.some(Array.isArray);
    return isElement ? `complex(${value.map((part) => number(part, dtype)).join(", ")})` : `[${value.map((each) => literal(each, dtype)).join(", ")}]`;
  }
  if (typeof value === "boolean") return value ? "True" : "False";
  return dtype === "string" ? JSON.stringify(value) : number(value, dtype);
}

function number(text, dtype) {
  if (/^-?(NaN|Infinity)$/.test(text)) return `float("${text}")`;
  return text === "-0" && /float|complex/.test(dtype) ? "-0.0" : text; // in Python, -0 is the integer 0
}
