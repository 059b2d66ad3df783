/* The form that uploads a chosen or dropped file and shows the progress. */

import { byId, make, sayAt } from "./elements.js";
import { Problem, upload } from "./service.js";
import { shapeText, sizeText } from "./tensor_values.js";

const RAW = "application/octet-stream";
const FORMATS = { npy: "application/x-npy", safetensors: "application/x-safetensors" };

export class TensorUpload {
  /** `onMade` is called when a tensor has been uploaded. */
  constructor(dtypes, onMade) {
    this.onMade = onMade;
    byId("upload-dtype").append(...dtypes.map((name) => make("option", {}, name)));
    const zone = byId("drop-zone");
    const file = byId("upload-file");
    file.addEventListener("change", () => this.#choose(file.files[0]));
    for (const kind of ["dragenter", "dragover"]) {
      zone.addEventListener(kind, (event) => {
        event.preventDefault();
        zone.classList.add("is-over");
      });
    }
    for (const kind of ["dragleave", "drop"]) zone.addEventListener(kind, () => zone.classList.remove("is-over"));
    zone.addEventListener("drop", (event) => {
      event.preventDefault();
      this.#choose(event.dataTransfer.files[0]);
    });
    byId("upload-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.#upload();
    });
    byId("upload-cancel").addEventListener("click", () => this.cancel?.());
  }

  #choose(file) {
    if (!file) return;
    this.file = file;
    const [, stem, ending] = /^(.*?)(?:\.([^.]*))?$/.exec(file.name);
    this.format = FORMATS[ending?.toLowerCase()] ?? RAW;
    byId("upload-chosen").textContent = `${file.name}, ${sizeText(file.size)}`;
    byId("upload-name").value = stem.replace(/[^A-Za-z0-9._-]/g, "_").replace(/^[._-]+/, "").slice(0, 128);
    byId("upload-raw").hidden = this.format !== RAW;
    byId("upload-details").hidden = false;
    sayAt("upload-result");
    byId("upload-name").focus();
  }

  async #upload() {
    const name = byId("upload-name").value.trim();
    const { file } = this;
    const query = new URLSearchParams();
    if (this.format === RAW) {
      query.set("dtype", byId("upload-dtype").value);
      query.set("shape", byId("upload-shape").value.replace(/\s/g, ""));
    }
    const bar = byId("upload-progress");
    const text = byId("upload-progress-text");
    const began = performance.now();
    const path = `tensors/${encodeURIComponent(name)}${query.size ? `?${query}` : ""}`;
    const sending = upload(path, file, this.format, (sent, all) => {
      bar.max = all;
      bar.value = sent;
      const rate = sent / Math.max(performance.now() - began, 1) * 1000;
      text.textContent = `${sizeText(sent)} of ${sizeText(all)}, ${sizeText(rate)}/s`;
    });
    this.cancel = sending.cancel;
    bar.value = 0;
    text.textContent = "";
    byId("upload-running").hidden = false;
    byId("upload-send").disabled = true;
    sayAt("upload-result");
    try {
      const made = await sending.done;
      const seconds = ((performance.now() - began) / 1000).toFixed(1);
      sayAt("upload-result", `${made.name} is here: ${made.dtype} ${shapeText(made.shape)}, version ${made.version}, after ${seconds} s.`);
      if (file === this.file) { // if no other file was chosen in the meantime
        byId("upload-details").hidden = true;
        byId("upload-chosen").textContent = "";
        byId("upload-file").value = "";
      }
      await this.onMade();
    } catch (problem) {
      if (!(problem instanceof Problem)) throw problem;
      sayAt("upload-result", problem);
    } finally {
      byId("upload-running").hidden = true;
      byId("upload-send").disabled = false;
    }
  }
}
