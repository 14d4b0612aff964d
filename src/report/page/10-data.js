"use strict";
// The data of the page: columns of numbers and JSON, compressed, as base64. And how numbers are put into words.

function bytesOf(text) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(text);
  const raw = atob(text), bytes = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; ++i) bytes[i] = raw.charCodeAt(i);
  return bytes;
}

let columns = null;  // the unpacked bytes; a column is [where it begins, how many numbers]
async function readData(text) {
  const colon = text.indexOf(":"), stream = new Blob([bytesOf(text.slice(colon + 1))]).stream().pipeThrough(new DecompressionStream("gzip"));
  columns = await new Response(stream).arrayBuffer();
  return JSON.parse(new TextDecoder().decode(new Uint8Array(columns, Number(text.slice(0, colon)))));
}
const f64 = ([at, n]) => new Float64Array(columns, at, n);
const i32 = ([at, n]) => new Int32Array(columns, at, n).slice();  // some are changed
const u8 = ([at, n]) => new Uint8Array(columns, at, n);

const SCRATCH = 9;  // a kind of its own, after those of the graph format
const ORIGIN = { run: 0, again: 1, swapIn: 2, scratch: 3 };
const STEP = { run: 0, again: 1, out: 2, in: 3 };

// Scratch has the op that it belongs to where others have their buffer: as -1 - op. Its bytes stand apart; a buffer's are its own.
function readRects(raw, plan) {
  const r = { count: raw.count, from: f64(raw.from), to: f64(raw.to), buffer: i32(raw.buffer), bytes: new Float64Array(raw.count), op: new Int32Array(raw.count) };
  const scratch = f64(raw.scratch_bytes);
  for (let i = 0, next = 0; i < r.count; ++i) {
    if (r.buffer[i] >= 0) { r.bytes[i] = plan.bufferBytes[r.buffer[i]]; r.op[i] = plan.bufferOp[r.buffer[i]]; continue; }
    r.op[i] = -1 - r.buffer[i];
    r.buffer[i] = -1;
    r.bytes[i] = scratch[next++];
  }
  if (raw.offset === undefined) return r;
  r.offset = f64(raw.offset);
  r.origin = u8(raw.origin);
  r.over = new Int32Array(r.count).fill(-1);
  for (const [i, buffer] of raw.over) r.over[i] = buffer;
  return r;
}

// Decodes the plan. Steps have a clock: when each starts beside the ops, copies taking no time there.
function readPlan(raw) {
  const p = Object.assign({}, raw, {
    bufferBytes: f64(raw.buffer_bytes), bufferKind: u8(raw.buffer_kind), bufferFlags: u8(raw.buffer_flags), bufferOp: i32(raw.buffer_op),
    opTarget: i32(raw.op_target), opLine: i32(raw.op_line), opCost: f64(raw.op_cost_ns),
    stepKind: u8(raw.step_kind), stepId: i32(raw.step_id), stepFrom: f64(raw.step_from_ns), stepTo: f64(raw.step_to_ns),
    stepLive: f64(raw.step_live), stepAt: f64(raw.step_at), programLive: f64(raw.program_live), programAt: f64(raw.program_at),
  });
  p.rects = readRects(raw.rects, p);
  p.programRects = readRects(raw.program_rects, p);
  p.steps = p.stepKind.length;
  p.ops = p.opTarget.length;
  p.clock = new Float64Array(p.steps + 1);
  let now = 0;
  for (let s = 0; s < p.steps; ++s) {
    if (p.stepKind[s] <= STEP.again) now = p.stepFrom[s];
    p.clock[s] = now;
    if (p.stepKind[s] <= STEP.again) now = p.stepTo[s];
  }
  p.clock[p.steps] = Math.max(now, p.step_ns);
  p.programClock = new Float64Array(p.ops + 1);
  for (let i = 0; i < p.ops; ++i) p.programClock[i + 1] = p.programClock[i] + p.opCost[i];
  p.lastRun = new Int32Array(p.ops).fill(-1);
  for (let s = 0; s < p.steps; ++s) if (p.stepKind[s] <= STEP.again) p.lastRun[p.stepId[s]] = s;
  p.timed = p.program_step_ns > 0;
  return p;
}

// ---- Words

const UNITS = ["bytes", "KiB", "MiB", "GiB", "TiB"];
function bytesText(bytes) {
  let unit = 0, value = Math.abs(bytes);
  while (value >= 1024 && unit + 1 < UNITS.length) { value /= 1024; ++unit; }
  const digits = unit === 0 ? 0 : value < 10 ? 2 : value < 100 ? 1 : 0;
  return (bytes < 0 ? "\u2212" : "") + value.toFixed(digits) + "\u00a0" + (unit === 0 && value === 1 ? "byte" : UNITS[unit]);
}
function signed(bytes) { return bytes > 0 ? "+" + bytesText(bytes) : bytesText(bytes); }
function timeText(ns) {
  const scales = [[1e9, "s"], [1e6, "ms"], [1e3, "\u00b5s"], [1, "ns"]];
  const [scale, unit] = scales.find(([s]) => Math.abs(ns) >= s) || scales[3];
  const value = ns / scale;
  return value.toFixed(scale === 1 ? 0 : Math.abs(value) < 10 ? 2 : 1) + "\u00a0" + unit;
}
function percent(part, digits = 1) { return (100 * part).toFixed(digits) + "\u00a0%"; }
function count(n, one, many) { return n.toLocaleString("en") + "\u00a0" + (n === 1 ? one : many || one + "s"); }
function shortLine(line) {
  const parts = line.split("/");
  return parts.slice(-2).join("/");
}

// ---- Elements. All text goes through textContent.

function el(name, attributes, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes || {})) {
    if (key === "style") Object.assign(node.style, value);
    else if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else if (value === true) node.setAttribute(key, "");
    else if (value !== false && value !== undefined) node.setAttribute(key, value);
  }
  for (const child of children) if (child !== undefined && child !== null) node.append(child);  // strings become text nodes
  return node;
}
const byId = id => document.getElementById(id);
function replace(node, ...children) { node.replaceChildren(...children.filter(c => c !== null && c !== undefined)); }
