// Live bytes over time, stacked by kind, beside the other order's curve, the bound and the budget. And the lanes below the map.

class LivePlot {
  constructor(canvas, plan, names, view) {
    Object.assign(this, { canvas, plan, names, view, before: false, cursor: null, hidden: new Set() });
    this.raster = new Raster();
    this.after_ = stacksOf(names, plan.rects, plan.stepAt, plan.align);
    this.before_ = null;
    this.most = Math.max(plan.peak_bytes, plan.program_peak_bytes, plan.arena_bytes, plan.lower_bound_bytes || 0, 1);
    const room = this.budgetRoom();
    if (room !== null && room < 1.35 * this.most) this.most = Math.max(this.most, room);
  }
  budgetRoom() { return this.plan.budget_bytes === null ? null : this.plan.budget_bytes - this.plan.resident_bytes; }
  stacks() {
    if (this.before && !this.before_) this.before_ = stacksOf(this.names, this.plan.programRects, this.plan.programAt, this.plan.align);
    return this.before ? this.before_ : this.after_;
  }
  // Per column in sight: the heaviest step there, -1 where there is none.
  heaviest(live, places, columns) {
    const { x0, x1 } = this.view, at = new Int32Array(columns).fill(-1), per = columns / (x1 - x0);
    for (let s = lastAtMost(places, x0); s < live.length && places[s] < x1; ++s) {
      const first = Math.max(0, Math.floor((places[s] - x0) * per)), last = Math.min(columns - 1, Math.ceil((places[s + 1] - x0) * per) - 1);
      for (let c = first; c <= last || c === first; ++c) if (at[c] < 0 || live[s] > live[at[c]]) at[c] = s;
    }
    return at;
  }
  draw(palette) {
    const { width, height, scale } = fit(this.canvas), context = this.canvas.getContext("2d");
    const left = Math.round(GUTTER * scale), columns = Math.max(1, width - left), plot = height - Math.round(2 * scale);
    const p = this.plan, y = bytes => plot - Math.round(bytes / (this.most * 1.04) * plot);
    const [live, otherLive] = this.before ? [p.programLive, p.stepLive] : [p.stepLive, p.programLive];
    const [place, otherPlace] = [this.view.places(this.before), this.view.places(!this.before)];
    context.clearRect(0, 0, width, height);
    this.raster.resize(columns, plot);
    this.raster.clear(palette.surfacePixel);
    for (const value of ticks(0, this.most * 1.04, 4, true)) if (y(value) < plot) this.raster.fill(0, columns, y(value), y(value) + 1, pixel(palette.grid));
    this.drawStacks(live, place, columns, plot, y, palette);
    context.putImageData(this.raster.image, left, 0);
    this.drawLine(context, left, otherLive, otherPlace, columns, y, palette, scale);
    if (p.lower_bound_bytes !== null) this.level(context, left, width, y(p.lower_bound_bytes), palette.bound, scale, []);
    const room = this.budgetRoom();
    if (room !== null && room <= this.most * 1.04) this.level(context, left, width, y(room), palette.budget, scale, []);
    this.drawCursor(context, left, columns, plot, palette, scale);
    bytesAxis(context, palette, scale, 0, this.most * 1.04, plot, 4, 0);
  }
  drawStacks(live, place, columns, plot, y, palette) {
    const stacks = this.stacks(), at = this.heaviest(live, place, columns);
    for (let c = 0; c < columns; ++c) {
      if (at[c] < 0) continue;
      let below = 0;
      for (let kind = 0; kind < stacks.length; ++kind) {
        if (!stacks[kind] || this.hidden.has(kind)) continue;
        const above = below + stacks[kind][at[c]];
        const top = Math.max(0, y(above)), bottom = Math.max(0, y(below));
        if (top < bottom) this.raster.fill(c, c + 1, top, Math.min(plot, bottom), palette.kind[kind]);
        below = above;
      }
    }
  }
  drawLine(context, left, live, place, columns, y, palette, scale) {
    const at = this.heaviest(live, place, columns);
    context.strokeStyle = palette.before;
    context.lineWidth = 1.4 * scale;
    context.setLineDash([4 * scale, 3 * scale]);
    context.beginPath();
    let on = false;
    for (let c = 0; c < columns; ++c) {
      if (at[c] < 0) { on = false; continue; }
      context[on ? "lineTo" : "moveTo"](left + c + 0.5, y(live[at[c]]) + 0.5);
      on = true;
    }
    context.stroke();
    context.setLineDash([]);
  }
  level(context, left, width, y, colour, scale, dash) {
    context.strokeStyle = colour;
    context.lineWidth = 1.6 * scale;
    context.setLineDash(dash);
    context.beginPath();
    context.moveTo(left, y + 0.5);
    context.lineTo(width, y + 0.5);
    context.stroke();
    context.setLineDash([]);
  }
  drawCursor(context, left, columns, plot, palette, scale) {
    if (this.cursor === null) return;
    const c = (this.view.x(this.cursor) - this.view.x0) / (this.view.x1 - this.view.x0) * columns;
    if (c < 0 || c > columns) return;
    context.fillStyle = palette.accent;
    context.fillRect(left + Math.round(c), 0, Math.max(1, Math.round(scale)), plot);
  }
}

// Where ops run again and what is on the two copy lanes, and the axis of all plots.
class Lanes {
  constructor(canvas, plan, view) {
    Object.assign(this, { canvas, plan, view });
    this.special = [];
    for (let s = 0; s < plan.steps; ++s) if (plan.stepKind[s] !== STEP.run) this.special.push(s);
  }
  extent(s) {  // on the axis in use
    const p = this.plan;
    if (p.stepKind[s] === STEP.again || !p.timed) return [this.view.x(s), this.view.x(s + 1)];
    if (this.view.axis === "time") return [p.stepFrom[s], p.stepTo[s]];
    return [Math.max(s, positionOf(p.clock, p.stepFrom[s])), Math.max(s + 1, positionOf(p.clock, p.stepTo[s]))];
  }
  draw(palette) {
    const { width, height, scale } = fit(this.canvas), context = this.canvas.getContext("2d"), left = Math.round(GUTTER * scale);
    const columns = width - left, per = columns / (this.view.x1 - this.view.x0), lane = Math.round(19 * scale);
    context.clearRect(0, 0, width, height);
    context.font = `${11 * scale}px ${FONT}`;
    context.textBaseline = "middle";
    ["again", "copy out", "copy in"].forEach((name, i) => {
      context.fillStyle = palette.empty;
      context.fillRect(left, i * lane + scale, columns, lane - 3 * scale);
      context.fillStyle = palette.muted;
      context.textAlign = "right";
      context.fillText(name, left - 9 * scale, i * lane + lane / 2 - scale / 2);
    });
    for (const s of this.special) {
      const [from, to] = this.extent(s);
      const x0 = (from - this.view.x0) * per, x1 = (to - this.view.x0) * per;
      if (x1 < 0 || x0 > columns) continue;
      const row = this.plan.stepKind[s] - 1;
      context.fillStyle = row === 0 ? palette.again : palette.swap;
      const a = Math.max(0, x0), b = Math.min(columns, Math.max(x1 - 0.6, x0 + scale));
      context.fillRect(left + a, row * lane + 2 * scale, Math.max(1, b - a), lane - 5 * scale);
    }
    this.drawAxis(context, palette, left, columns, 3 * lane, scale);
  }
  drawAxis(context, palette, left, columns, y, scale) {
    const { x0, x1, axis } = this.view;
    context.fillStyle = palette.line;
    context.fillRect(left, y + 2 * scale, columns, Math.max(1, scale));
    context.textBaseline = "top";
    for (const value of ticks(x0, x1, columns / scale / 110, false)) {
      const x = left + (value - x0) / (x1 - x0) * columns;
      context.fillStyle = palette.muted;
      context.fillRect(Math.round(x), y + 2 * scale, Math.max(1, scale), 5 * scale);
      context.textAlign = x > left + columns - 30 * scale ? "right" : x < left + 20 * scale ? "left" : "center";
      const text = axis === "time" ? timeText(value) : Math.round(value).toLocaleString("en");
      if (axis === "time" || Number.isInteger(value)) context.fillText(value === 0 ? (axis === "time" ? "0" : "step 0") : text, x, y + 10 * scale);
    }
  }
}
