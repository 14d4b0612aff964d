// What part of the plan is in sight, on an axis of steps or of predicted time; shared by all plots, so that they move together.

const GUTTER = 66;  // CSS pixels left of the plots, for labels

class View {
  constructor(plan) {
    this.plan = plan;
    this.axis = "steps";
    this.listeners = [];
    this.top = Math.max(1, plan.arena_bytes);
    this.fit();
  }
  get width() { return this.axis === "time" ? this.plan.clock[this.plan.steps] : this.plan.steps; }
  fit() {
    this.x0 = 0; this.x1 = Math.max(1, this.width);
    this.y0 = 0; this.y1 = this.top;
    this.changed();
  }
  setAxis(axis) {
    const from = this.positionAt(this.x0), to = this.positionAt(this.x1);
    this.axis = axis;
    this.x0 = this.x(from); this.x1 = this.x(to);
    this.clamp();
    this.changed();
  }
  // Place of a position (step and fraction) on the axis, and back.
  x(position) {
    if (this.axis === "steps") return position;
    const s = Math.min(this.plan.steps, Math.floor(position));
    return s >= this.plan.steps ? this.plan.clock[s] : this.plan.clock[s] + (position - s) * (this.plan.clock[s + 1] - this.plan.clock[s]);
  }
  positionAt(x) {
    if (this.axis === "steps") return x;
    return positionOf(this.plan.clock, x);
  }
  // Where each step of the plan, or each op of the program, begins on the axis in use; and, last, where the last one ends.
  places(program) {
    const p = this.plan;
    if (this.axis === "time") return program ? p.programClock : p.clock;
    const key = program ? "programSteps" : "planSteps", n = program ? p.ops : p.steps;
    return this[key] || (this[key] = Float64Array.from({ length: n + 1 }, (_, i) => program ? i * p.steps / Math.max(1, n) : i));
  }

  zoom(factorX, factorY, x, y) {
    this.x0 = x - (x - this.x0) * factorX; this.x1 = x + (this.x1 - x) * factorX;
    this.y0 = y - (y - this.y0) * factorY; this.y1 = y + (this.y1 - y) * factorY;
    this.clamp();
    this.changed();
  }
  pan(dx, dy) {
    this.x0 += dx; this.x1 += dx; this.y0 += dy; this.y1 += dy;
    this.clamp();
    this.changed();
  }
  // Shows [x0, x1] by [y0, y1] with some room around it.
  frame(x0, x1, y0, y1) {
    const w = Math.max(x1 - x0, this.width / 400) * 2, h = Math.max(y1 - y0, this.top / 60) * 2;
    this.x0 = (x0 + x1 - w) / 2; this.x1 = this.x0 + w;
    this.y0 = (y0 + y1 - h) / 2; this.y1 = this.y0 + h;
    this.clamp();
    this.changed();
  }
  clamp() {
    const side = (low, high, least, limit) => {
      const size = Math.min(limit, Math.max(least, high - low)), middle = (low + high) / 2;
      const from = Math.min(Math.max(0, middle - size / 2), limit - size);
      return [from, from + size];
    };
    const width = Math.max(1, this.width);
    [this.x0, this.x1] = side(this.x0, this.x1, this.axis === "steps" ? Math.min(2, width) : width / 1e6, width);
    [this.y0, this.y1] = side(this.y0, this.y1, Math.min(this.top, 256), this.top);
  }
  changed() { for (const listener of this.listeners) listener(); }
}

// The last of the increasing values that is at most `value`; 0 when none is.
function lastAtMost(values, value) {
  let low = 0, high = values.length - 1;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (values[middle] <= value) low = middle; else high = middle - 1;
  }
  return low;
}

// Position (index and fraction) of a time among increasing times.
function positionOf(clock, time) {
  const low = lastAtMost(clock, time);
  const size = low + 1 < clock.length ? clock[low + 1] - clock[low] : 0;
  return size > 0 ? low + Math.min(1, (time - clock[low]) / size) : low;
}

// Round numbers between low and high, about `wanted` of them: of powers of two for bytes, of ten for all else.
function ticks(low, high, wanted, binary) {
  const raw = (high - low) / Math.max(1, wanted);
  let step;
  if (binary) step = 2 ** Math.ceil(Math.log2(Math.max(1, raw)));
  else {
    const power = 10 ** Math.floor(Math.log10(raw));
    step = [1, 2, 5, 10].map(m => m * power).find(s => s >= raw) || raw;
  }
  const list = [];
  for (let v = Math.ceil(low / step) * step; v <= high; v += step) list.push(v);
  return list;
}

function bytesAxis(context, palette, scale, y0, y1, height, wanted, gridTo) {
  context.font = `${11 * scale}px ${FONT}`;
  context.textAlign = "right";
  context.textBaseline = "middle";
  for (const value of ticks(y0, y1, wanted, true)) {
    const y = Math.round(height - (value - y0) / (y1 - y0) * height);
    context.fillStyle = palette.muted;
    const inside = Math.min(height - 6 * scale, Math.max(6 * scale, y));
    context.fillText(value === 0 ? "0" : bytesText(value).replace(/\.0+(?=\D)/, ""), (GUTTER - 9) * scale, inside);
    if (gridTo) { context.fillStyle = palette.grid; context.fillRect(GUTTER * scale, y, gridTo - GUTTER * scale, 1); }
  }
}
