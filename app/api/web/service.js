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

/** The error of an answer to a request with `sentKey`: another key may have been entered since. */
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

/** What `read` makes of an answer's body. Throws Problem where the body breaks off. */
async function bodyOf(response, read) {
  try {
    return await read(response);
  } catch {
    throw new Problem(0, { title: "No whole answer", detail: `the answer from ${address()} broke off` });
  }
}

/** The body of an answer as text. Throws Problem where it breaks off. */
export const textOf = (response) => bodyOf(response, () => response.text());

/** The body of an answer as a Blob. Throws Problem where it breaks off. */
export const blobOf = (response) => bodyOf(response, () => response.blob());

/** An answer of something on the way here, such as a page to sign in. */
export const foreign = () =>
  new Problem(0, { title: "Not an answer of the service", detail: `the answer from ${address()} is not the service's` });

/** The size of an answer's body where it is above `limit`, null where it is not. A larger one is not fetched. */
export function sizeAbove(response, limit) {
  const size = Number(response.headers.get("Content-Length"));
  if (size <= limit) return null;
  response.body.cancel();
  return size;
}

/** A body's JSON, read by `parse`. Throws Problem for what is none. */
export function parsed(text, parse = JSON.parse) {
  try {
    return parse(text);
  } catch {
    throw foreign();
  }
}

/** The JSON of an answer. Throws Problem where it breaks off or is none. */
export const jsonOf = async (response) => parsed(await textOf(response));

/** The answer to a request. Throws Problem for every answer that is an error. */
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

/** Put a JSON text, with further header fields. */
export const putJson = (path, body, headers = {}) =>
  ask(path, { method: "PUT", body, headers: { "Content-Type": "application/json", ...headers } });

/**
 * Upload a file as the body of a PUT; `onProgress` is called with the bytes sent and the bytes in all. Gives a promise
 * of the answer's JSON, and `cancel`.
 */
export function upload(path, file, contentType, onProgress) {
  const request = new XMLHttpRequest(); // fetch tells nothing of how far an upload has come
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

/** At most `limit` bytes from the start of an answer's body; the rest is not fetched. Throws Problem as `textOf` does. */
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
