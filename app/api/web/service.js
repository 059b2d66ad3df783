/* Requests to the service that this page came from. Paths are relative, so that it may stand behind a prefix. */

/** The API key, once it was entered. It lives here and nowhere else: no storage, no URL. */
let key = "";

/** Told that a request was refused for want of a known key. */
let askForKey = () => {};

export const useKey = (entered) => { key = entered; };
export const hasKey = () => key !== "";
export const whenKeyIsNeeded = (callback) => { askForKey = callback; };

/** The address of the service, as its callers write it. */
export const address = () => new URL(".", document.baseURI).href.replace(/\/$/, "");

/** An error as the service words it; `status` is 0 where it could not be reached. */
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

function problemOf(status, text) {
  let body;
  try {
    body = JSON.parse(text);
  } catch {
    body = {};
  }
  if (status === 401) askForKey();
  return new Problem(status, { ...body, detail: body.detail ?? `the answer has status ${status}` });
}

const unreachable = () =>
  new Problem(0, { title: "No answer", detail: `no answer from ${address()}: is the service running?` });

/** The answer to a request. Throws Problem for every answer that is an error. */
export async function ask(path, options = {}) {
  const headers = { ...options.headers, ...(key && { Authorization: `Bearer ${key}` }) };
  let response;
  try {
    response = await fetch(path, { ...options, headers, cache: "no-store" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw unreachable();
  }
  if (!response.ok) throw problemOf(response.status, await response.text());
  return response;
}

/** Post a JSON text. */
export const postJson = (path, body) =>
  ask(path, { method: "POST", body, headers: { "Content-Type": "application/json" } });

/** Put a JSON text, with further header fields. */
export const putJson = (path, body, headers = {}) =>
  ask(path, { method: "PUT", body, headers: { "Content-Type": "application/json", ...headers } });

/**
 * Upload a file as the body of a PUT; `onProgress` is called with the bytes sent and the bytes in all. Gives a promise
 * of the answer's JSON, and `cancel`.
 */
export function upload(path, file, contentType, onProgress) {
  const request = new XMLHttpRequest(); // fetch tells nothing of how far an upload has come
  const done = new Promise((resolve, reject) => {
    request.open("PUT", path);
    request.setRequestHeader("Content-Type", contentType);
    if (key) request.setRequestHeader("Authorization", `Bearer ${key}`);
    request.upload.onprogress = (event) => onProgress(event.loaded, event.total);
    request.onload = () => {
      if (request.status < 300) resolve(JSON.parse(request.responseText));
      else reject(problemOf(request.status, request.responseText));
    };
    request.onerror = () => reject(unreachable());
    request.onabort = () => reject(new Problem(0, { title: "Cancelled", detail: "the upload was cancelled" }));
    request.send(file);
  });
  return { done, cancel: () => request.abort() };
}

/** At most `limit` bytes from the start of an answer's body; the rest is not fetched. */
export async function firstBytes(response, limit) {
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
  return new Uint8Array(await new Blob(pieces).arrayBuffer());
}
