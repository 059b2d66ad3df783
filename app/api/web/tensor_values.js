/* Values of tensors as text, parsed from a tensor's raw bytes or, without losing digits, from JSON. */

import { ELEMENT_TYPES } from "./element_types.js";

/** Parse JSON, with numbers as text: int64 has more digits than JavaScript's numbers. */
export function parseExactly(text) {
  return JSON.parse(text, (_, value, context) =>
    typeof value === "number" ? (context?.source ?? String(value)) : value);
}

/**
 * Return shape and flat elements, as text, of nested lists, or null if they are ragged. Complex elements are the innermost
 * pairs.
 */
export function flatten(values, isComplex = false) {
  const shape = [];
  for (let level = values; Array.isArray(level); level = level[0]) shape.push(level.length);
  if (isComplex) {
    const ofPairs = shape.pop();
    if (ofPairs === 0) shape.push(0); // there is no pair from which to see the last dimension
    else if (ofPairs !== 2) return null;
  }
  const elements = [];
  const walk = (level, depth) => {
    if (depth === shape.length) {
      if (Array.isArray(level) !== isComplex) return false;
      elements.push(isComplex ? complexText(level[0], level[1]) : elementText(level));
      return true;
    }
    return Array.isArray(level) && level.length === shape[depth] && level.every((below) => walk(below, depth + 1));
  };
  return walk(values, 0) ? { shape, elements } : null;
}

/** Return the elements of a response's flat `values` as text. */
export function elementsOf({ values }, isComplex) {
  return values.map((value) => (isComplex ? complexText(value[0], value[1]) : elementText(value)));
}

const elementText = (value) => (value === null ? "null" : String(value));
const complexText = (real, imaginary) => `${real}${String(imaginary).startsWith("-") ? "" : "+"}${imaginary}i`;

/** Format JavaScript numbers; unlike String(), keeps the sign of -0. */
const numberText = (value) => (Object.is(value, -0) ? "-0" : String(value));

/** Return the shortest decimal that `round` rounds to the same number. */
function shortest(value, round, mostDigits) {
  if (!Number.isFinite(value) || Number.isInteger(value)) return numberText(value);
  for (let digits = 1; digits < mostDigits; digits++) {
    const text = value.toPrecision(digits);
    if (round(Number(text)) === value) return String(Number(text));
  }
  return String(Number(value.toPrecision(mostDigits)));
}

/** Decode a float of at most 16 bits. In a type without zero, exponent 0 has a leading 1 like any other. */
function fromBits(item, { bytes, fraction, bias, signed, zero, largest, infinity }) {
  const signBit = signed ? 1 << (8 * bytes - 1) : 0;
  const sign = item & signBit ? -1 : 1;
  const size = item & ~signBit;
  if (size > largest) return size === infinity ? sign * Infinity : NaN;
  const exponent = size >> fraction;
  const rest = size & ((1 << fraction) - 1);
  if (exponent === 0 && zero) return sign * rest * 2 ** (1 - bias - fraction);
  return sign * (2 ** fraction + rest) * 2 ** (exponent - bias - fraction);
}

const float32 = (view, at) => shortest(view.getFloat32(at, true), Math.fround, 9);
const float64 = (view, at) => numberText(view.getFloat64(at, true));
const brief = (value) => numberText(Number.isFinite(value) && value ? Number(value.toPrecision(5)) : value);

/** Bytes per element, and a function that reads an element. `readerOf` makes the functions for narrow floats. */
const READERS = {
  bool: [1, (view, at) => String(view.getUint8(at) === 1)],
  int8: [1, (view, at) => String(view.getInt8(at))],
  int16: [2, (view, at) => String(view.getInt16(at, true))],
  int32: [4, (view, at) => String(view.getInt32(at, true))],
  int64: [8, (view, at) => String(view.getBigInt64(at, true))],
  uint8: [1, (view, at) => String(view.getUint8(at))],
  uint16: [2, (view, at) => String(view.getUint16(at, true))],
  uint32: [4, (view, at) => String(view.getUint32(at, true))],
  uint64: [8, (view, at) => String(view.getBigUint64(at, true))],
  float32: [4, float32],
  float64: [8, float64],
  complex64: [8, (view, at) => complexText(float32(view, at), float32(view, at + 4))],
  complex128: [16, (view, at) => complexText(float64(view, at), float64(view, at + 8))],
};

function readerOf(dtype) {
  const { bits } = ELEMENT_TYPES.get(dtype);
  if (bits === null) return READERS[dtype];
  const item = bits.bytes === 1 ? (view, at) => view.getUint8(at) : (view, at) => view.getUint16(at, true);
  return [bits.bytes, (view, at) => brief(fromBits(item(view, at), bits))];
}

/** Return up to `limit` elements of little-endian `bytes` as text. The bytes may end within an element. */
export function readElements(bytes, dtype, limit) {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const found = [];
  if (dtype === "string") {
    for (let at = 0; found.length < limit && at + 4 <= bytes.length; ) {
      const end = at + 4 + view.getUint32(at, true);
      if (end > bytes.length) break;
      found.push(new TextDecoder().decode(bytes.subarray(at + 4, end)));
      at = end;
    }
    return found;
  }
  const [size, read] = readerOf(dtype);
  for (let at = 0; found.length < limit && at + size <= bytes.length; at += size) found.push(read(view, at));
  return found;
}

/** Format a number of bytes for people. */
export function sizeText(bytes) {
  const units = ["bytes", "kB", "MB", "GB", "TB"];
  let unit = 0;
  while (bytes >= 1000 && unit < units.length - 1) {
    bytes /= 1000;
    unit++;
  }
  return `${unit && bytes < 99.95 ? bytes.toFixed(1) : Math.round(bytes).toLocaleString("en")} ${units[unit]}`;
}

export const shapeText = (shape) => `[${shape.join(", ")}]`;
