/* Requests to this page's service. Paths are relative, so that the service may be behind a prefix. */

/** The API key, once entered. It is kept only in this variable: not in storage, not in a URL. */
let key = "";

/** Called when a request has been refused because it had no valid key. */
let askForKey = () => {};

export const useKey = (entered) => { key = entered; };
export const hasKey = () => key !== "";
export const whenKeyIsNeeded = (callback) => { askForKey = callback; };

/** The service's URL, for example code. */
export const address = () => new URL(".", document.baseURI).href.replace(/\/$/, "");

/** An error of the service. `status` is 0 if the service could not be reached. */
export class Problem extends Error {
  constructor(status, body) {
    super(body.detail);
    this.status = status;
    this.code = body.code ?? "";
    this.title = body.title ?? "";
    this.hint = body.hint ?? "";
    this.rule = body.rule ?? null;
    this.errors = body.errors ?? [];
    this.total = body.total ?? this.errors.length;
  }
}

/** Return the error in the response to a request with `sentKey`. Another key may have been entered since. */
function problemOf(status, text, sentKey) {
  let body;
  try {
    body = JSON.parse(text);
  } catch {
    body = null;
  }
  if (typeof body?.detail !== "string") body = { detail: `the answer has status ${status}` };
  if (status === 401 && sentKey === key) askForKey();
  return new Problem(status, body);
}

const unreachable = () =>
  new Problem(0, { title: "No answer", detail: `no answer from ${address()}: is the service running?` });

/** Return the result of `read` for a response's body. Throws Problem if the body is incomplete. */
async function bodyOf(response, read) {
  try {
    return await read(response);
  } catch {
    throw new Problem(0, { title: "No whole answer", detail: `the answer from ${address()} broke off` });
  }
}

/** Return a response's body as text. Throws Problem if it is incomplete. */
export const textOf = (response) => bodyOf(response, () => response.text());

/** Return a response's body as a Blob. Throws Problem if it is incomplete. */
export const blobOf = (response) => bodyOf(response, () => response.blob());

/** Return the error for a response that is not the service's, such as a proxy's sign-in page. */
export const foreign = () =>
  new Problem(0, { title: "Not an answer of the service", detail: `the answer from ${address()} is not the service's` });

/** If a response's body exceeds `limit`, return its size and do not fetch it; else return null. */
export function sizeAbove(response, limit) {
  const size = Number(response.headers.get("Content-Length"));
  if (size <= limit) return null;
  response.body.cancel();
  return size;
}

/** Parse a body's JSON with `parse`. Throws Problem if it is not JSON. */
export function parsed(text, parse = JSON.parse) {
  try {
    return parse(text);
  } catch {
    throw foreign();
  }
}

/** Return a response's JSON. Throws Problem if it is incomplete or not JSON. */
export const jsonOf = async (response) => parsed(await textOf(response));

/** Send a request and return its response. Throws Problem for errors. */
export async function ask(path, options = {}) {
  const sentKey = key;
  const headers = { ...options.headers, ...(key && { Authorization: `Bearer ${key}` }) };
  let response;
  try {
    response = await fetch(path, { ...options, headers, cache: "no-store" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw unreachable();
  }
  if (!response.ok) throw problemOf(response.status, await textOf(response), sentKey);
  return response;
}

/** Post a JSON text. */
export const postJson = (path, body) =>
  ask(path, { method: "POST", body, headers: { "Content-Type": "application/json" } });

/** Put a JSON text, with additional header fields. */
export const putJson = (path, body, headers = {}) =>
  ask(path, { method: "PUT", body, headers: { "Content-Type": "application/json", ...headers } });

/**
 * Upload a file as the body of a PUT. `onProgress` is called with the bytes sent and the total. Returns a promise of the
 * response's JSON, and `cancel`.
 */
export function upload(path, file, contentType, onProgress) {
  const request = new XMLHttpRequest(); // fetch does not report an upload's progress
  const sentKey = key;
  const done = new Promise((resolve, reject) => {
    request.open("PUT", path);
    request.setRequestHeader("Content-Type", contentType);
    if (key) request.setRequestHeader("Authorization", `Bearer ${key}`);
    request.upload.onprogress = (event) => onProgress(event.loaded, event.total);
    request.onload = () => {
      try {
        if (request.status >= 300) throw problemOf(request.status, request.responseText, sentKey);
        resolve(parsed(request.responseText));
      } catch (problem) {
        reject(problem);
      }
    };
    const unreadable = () => new Problem(0, { title: "No file", detail: `${file.name} cannot be read: has it changed?` });
    request.onerror = () =>
      file.slice(0, 1).arrayBuffer().then(() => reject(unreachable()), () => reject(unreadable()));
    request.onabort = () => reject(new Problem(0, { title: "Cancelled", detail: "the upload was cancelled" }));
    request.send(file);
  });
  return { done, cancel: () => request.abort() };
}

/** Return at most `limit` bytes of a response's body, and do not fetch the rest. Throws Problem if it is incomplete. */
export const firstBytes = (response, limit) => bodyOf(response, async () => {
  const reader = response.body.getReader();
  const pieces = [];
  let size = 0;
  while (size < limit) {
    const { done, value } = await reader.read();
    if (done) break;
    pieces.push(value);
    size += value.length;
  }
  await reader.cancel();
  return new Uint8Array(await new Blob(pieces).slice(0, limit).arrayBuffer());
});
