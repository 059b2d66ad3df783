// What users write with the generated types and openapi-fetch; prints what it got, as JSON.

import createClient from "openapi-fetch";
import type { components, paths } from "./schema.js";

type Schemas = components["schemas"];
type Int64s = bigint[];

declare const process: { argv: string[] };

// Answers in JSON and problem+json; binary ones are strings.
const client = createClient<paths, `application/${string}json`>({ baseUrl: process.argv[2] ?? "" });

function indices(shape: number[], values: number[]): Schemas["Tensor"] {
  return { dtype: "int64", shape, values };
}

async function gather(body: Schemas["GatherNDRequest"]): Promise<Schemas["GatherAnswer"]> {
  const { data, error } = await client.POST("/gathernd", { body });
  if (error) {
    throw new Error(`${error.code}: ${error.detail}`);
  }
  return data;
}

async function values(body: Schemas["GatherNDRequest"]) {
  const { dtype, shape, values } = (await gather(body)).output;
  return { dtype, shape, values };
}

function encode(items: Int64s): string {
  const view = new DataView(new ArrayBuffer(8 * items.length));
  items.forEach((item, place) => view.setBigInt64(8 * place, item, true));
  return btoa(String.fromCharCode(...new Uint8Array(view.buffer)));
}

function decode(text: string): Int64s {
  const bytes = Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
  const view = new DataView(bytes.buffer);
  return Array.from({ length: bytes.length / 8 }, (_, place) => view.getBigInt64(8 * place, true));
}

// Integers above 2^53, which a number cannot hold, as base64 in and out.
async function int64(): Promise<string[]> {
  const sent = encode([2n ** 53n + 1n, 7n, -(2n ** 63n)]);
  const answer = await gather({
    data: { dtype: "int64", shape: [3], base64: sent },
    indices: indices([2, 1], [2, 0]),
    output_encoding: "base64",
  });
  return decode(answer.output.base64 ?? "").map(String);
}

async function problem(data: Schemas["Data"], place: Schemas["Tensor"]) {
  const { error } = await client.POST("/gathernd", { body: { data, indices: place } });
  const first = error?.errors?.[0];
  return {
    status: error?.status,
    code: error?.code,
    clause: error?.rule?.clause,
    total: error?.total,
    pointer: first?.pointer,
    position: first?.position,
    value: first?.value,
    axis: first?.axis,
    size: first?.size,
    allowed: first?.allowed,
  };
}

function inferInputs(place: number[]): Schemas["InferInput"][] {
  return [
    { name: "data", datatype: "FP32", shape: [2, 2], data: [0, 1, 2, 3] },
    { name: "indices", datatype: "INT64", shape: [1, 1], data: place },
  ];
}

async function infer() {
  const { data } = await client.POST("/v2/models/{name}/infer", {
    params: { path: { name: "gathernd" } },
    body: { inputs: inferInputs([1]), id: "seven", parameters: { batch_dims: 0 } },
  });
  const output = data?.outputs[0];
  return { id: data?.id, datatype: output?.datatype, shape: output?.shape, data: output?.data };
}

async function inferError() {
  const { error } = await client.POST("/v2/models/{name}/infer", {
    params: { path: { name: "gathernd" } },
    body: { inputs: inferInputs([5]) },
  });
  const first = error?.errors?.[0];
  return { code: error?.code, pointer: first?.pointer, allowed: first?.allowed };
}

// Two updates of one element, added.
async function scatter(data: Schemas["Data"]) {
  const updates: Schemas["Tensor"] = { dtype: "float32", shape: [2], values: [5, 7] };
  const { data: answer } = await client.POST("/scatternd", {
    body: { data, indices: indices([2, 2], [0, 1, 0, 1]), updates, reduction: "add" },
  });
  return answer?.output.values;
}

async function gradient() {
  const { data: answer } = await client.POST("/gathernd/backward", {
    body: {
      indices: indices([2, 1], [2, 2]),
      grad_output: { dtype: "float32", shape: [2, 2], values: [1, 2, 3, 4] },
      data_shape: [3, 2],
      lda_coeff: 0.5,
      sparse: true,
    },
  });
  return { indices: answer?.grad_indices?.values, values: answer?.grad_values?.values };
}

// Rows of a table beside a bag of them.
async function lookedUp() {
  const { data: answer } = await client.POST("/lookup", {
    body: {
      features: [
        { tensor: "table", indices: indices([1], [1]) },
        { tensor: "table", indices: indices([3], [0, 1, 1]), offsets: indices([1], [0]), pooling: "sum" },
      ],
    },
  });
  const etags = answer?.features.map((feature) => feature.data_etag);
  return { shape: answer?.output?.shape, values: answer?.output?.values, data_etags: etags };
}

async function lookupError() {
  const { error } = await client.POST("/lookup", {
    body: { features: [{ tensor: "table", indices: indices([2], [0, 2]) }] },
  });
  const first = error?.errors?.[0];
  return { code: error?.code, pointer: first?.pointer, allowed: first?.allowed };
}

const square: Schemas["Data"] = { dtype: "float32", shape: [2, 2], values: [0, 1, 2, 3] };
const halves: Schemas["Data"] = { dtype: "float16", shape: [4], values: [1.5, -0.0999755859375, 65504, "NaN"] };
const words: Schemas["Data"] = { dtype: "string", shape: [3], values: ["", 'a "quote"', "Größe 😀"] };
const empty: Schemas["Data"] = { dtype: "float32", shape: [0, 2], values: [] };
const resident = await gather({ data: { tensor: "table" }, indices: indices([1, 1], [1]) });

console.log(
  JSON.stringify({
    "example 1": await values({ data: square, indices: indices([2, 2], [0, 0, 1, 1]) }),
    float16: await values({ data: halves, indices: indices([3, 1], [1, 2, 3]) }),
    int64: await int64(),
    string: await values({ data: words, indices: indices([2, 1], [2, 0]) }),
    batch_dims: await values({ data: square, indices: indices([2, 1], [1, 0]), batch_dims: 1 }),
    resident: { values: resident.output.values, data_etag: resident.data_etag },
    error: await problem(square, indices([2, 2], [0, 0, 5, 1])),
    "error on an empty axis": await problem(empty, indices([1, 1], [0])),
    infer: await infer(),
    "infer error": await inferError(),
    scatter: await scatter(square),
    gradient: await gradient(),
    lookup: await lookedUp(),
    "lookup error": await lookupError(),
  }),
);
