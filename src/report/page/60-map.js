// The map of the arena: every buffer as a rectangle of time by address.

class ArenaMap {
  constructor(box, plan, names, view) {
    Object.assign(this, { box, plan, names, view, hover: -1, selected: -1, hidden: new Set(), matches: null });
    this.canvas = box.querySelector("#map");
    this.over = box.querySelector("#map-over");
    this.tip = box.querySelector("#tip");
    this.raster = new Raster();
    this.left = this.markLeaving();
    this.kinds = Uint8Array.from({ length: plan.rects.count }, (_, i) => names.kindOfRect(plan.rects, i));
    this.rebuild();
  }
  // Which rectangles end because the buffer goes to the host.
  markLeaving() {
    const leaving = new Uint8Array(this.plan.rects.count), ends = new Set();
    for (const d of this.plan.decisions) if (d.kind === "swap") ends.add(d.buffers[0] + ":" + d.from);
    if (ends.size > 0) for (let i = 0; i < leaving.length; ++i) if (ends.has(this.plan.rects.buffer[i] + ":" + this.plan.rects.to[i])) leaving[i] = 1;
    return leaving;
  }
  // Places on the axis in use, and the index over them.
  rebuild() {
    const r = this.plan.rects, n = r.count;
    this.x0 = new Float64Array(n); this.x1 = new Float64Array(n);
    this.y1 = new Float64Array(n);
    for (let i = 0; i < n; ++i) {
      this.x0[i] = this.view.x(r.from[i]);
      this.x1[i] = this.view.x(r.to[i]);
      this.y1[i] = r.offset[i] + r.bytes[i];
    }
    this.tree = new BoxTree(this.x0, this.x1, r.offset, this.y1, this.view.width, this.view.top);
  }
  shown(i) { return !this.hidden.has(this.kinds[i]) && (this.matches === null || this.matches.has(i)); }

  draw(palette) {
    const size = fit(this.canvas), { width, height, scale } = size, context = this.canvas.getContext("2d");
    const left = Math.round(GUTTER * scale), columns = Math.max(1, width - left), { x0, x1, y0, y1 } = this.view;
    Object.assign(this, { scale, columns, height, leftEdge: left, perX: columns / (x1 - x0), perY: height / (y1 - y0) });
    this.raster.resize(columns, height);
    this.raster.clear(palette.emptyPixel);
    const labels = [];
    this.drawn = 0;
    this.filtered = this.hidden.size > 0 || this.matches !== null;
    this.tree.search(x0, x1, y0, y1, i => this.drawRect(i, palette, labels));
    context.clearRect(0, 0, left, height);
    context.putImageData(this.raster.image, left, 0);
    this.drawLabels(context, labels, palette);
    bytesAxis(context, palette, scale, y0, y1, height, 8, 0);
    this.drawOver(palette);
  }
  // Where a rectangle is on the screen: pixels [l, r) by [t, b) of the plot, at least one of each.
  extent(i) {
    const l = Math.floor((this.x0[i] - this.view.x0) * this.perX), r = Math.max(l + 1, Math.floor((this.x1[i] - this.view.x0) * this.perX));
    const b = this.height - Math.floor((this.plan.rects.offset[i] - this.view.y0) * this.perY);
    const t = Math.min(b - 1, this.height - Math.floor((this.y1[i] - this.view.y0) * this.perY));
    return [l, r, t, b];
  }
  // extent(), written out without an array: this runs for every rectangle in every frame.
  drawRect(i, palette, labels) {
    const { view, height, columns, raster, scale } = this, r = this.plan.rects, kind = this.kinds[i];
    const l = Math.floor((this.x0[i] - view.x0) * this.perX), right = Math.max(l + 1, Math.floor((this.x1[i] - view.x0) * this.perX));
    const b = height - Math.floor((r.offset[i] - view.y0) * this.perY), t = Math.min(b - 1, height - Math.floor((this.y1[i] - view.y0) * this.perY));
    const x0 = l < 0 ? 0 : l, x1 = right > columns ? columns : right, y0 = t < 0 ? 0 : t, y1 = b > height ? height : b;
    if (x0 >= x1 || y0 >= y1) return;
    ++this.drawn;
    if (this.filtered && !this.shown(i)) return raster.fill(x0, x1, y0, y1, palette.dim[kind]);
    raster.fill(x0, x1, y0, y1, palette.kind[kind]);
    const wide = right - l, tall = b - t;
    if (wide < 3 || tall < 3) return;
    if (r.origin[i] === ORIGIN.again && wide > 3) raster.hatch(x0, x1, y0, y1, palette.hatch[kind]);
    if (wide > 4 && tall > 4) {  // a line at the top and at the end keeps neighbours apart
      raster.fill(x0, x1, y0, y0 + 1, palette.edge[kind]);
      if (right <= columns) raster.fill(x1 - 1, x1, y0, y1, palette.edge[kind]);
    }
    const band = Math.min(Math.round(3 * scale), wide >> 1);
    if (r.origin[i] === ORIGIN.swapIn && l >= 0) raster.fill(x0, Math.min(x1, x0 + band), y0, y1, palette.swapPixel);
    if (this.left[i] && right <= columns) raster.fill(Math.max(x0, x1 - band), x1, y0, y1, palette.swapPixel);
    if (r.over[i] >= 0 && tall > 6 && wide > 6 && l >= 0) this.corner(x0, y0, x1, y1, palette);
    if (x1 - x0 > 44 * scale && y1 - y0 > 13 * scale) labels.push([i, x0, x1, y0, y1]);
  }
  // A taken-over place: a small triangle in the corner.
  corner(x0, y0, x1, y1, palette) {
    const size = Math.min(Math.round(7 * this.scale), x1 - x0, y1 - y0), ink = pixel(palette.ink);
    for (let k = 0; k < size; ++k) this.raster.fill(x0, x0 + size - k, y1 - 1 - k, y1 - k, ink);
  }
  drawLabels(context, labels, palette) {
    const s = this.scale;
    context.font = `${11 * s}px ${MONO}`;
    context.textAlign = "left";
    context.textBaseline = "middle";
    context.fillStyle = parseInt(palette.bg.slice(1, 3), 16) < 128 ? "#ffffff" : "#11151a";
    const letter = context.measureText("0").width;
    labels.sort((a, b) => (b[2] - b[1]) * (b[4] - b[3]) - (a[2] - a[1]) * (a[4] - a[3]));
    for (const [i, x0, x1, y0, y1] of labels.slice(0, 250)) {
      const room = Math.floor((x1 - x0 - 10 * s) / letter);
      let text = this.names.rect(this.plan.rects, i);
      if (text.length > room) text = room > 4 ? text.slice(0, room - 1) + "\u2026" : "";
      else if (room > text.length + 12) text += "  " + bytesText(this.plan.rects.bytes[i]);
      if (text) context.fillText(text, this.leftEdge + x0 + 5 * s, Math.round((y0 + y1) / 2) + 0.5);
    }
  }
  drawOver(palette) {
    const { width, height } = fit(this.over), context = this.over.getContext("2d");
    context.clearRect(0, 0, width, height);
    if (!this.perX) return;
    context.save();
    context.beginPath();
    context.rect(this.leftEdge, 0, this.columns, height);
    context.clip();
    for (const [i, colour, line] of [[this.hover, palette.ink, 1.5], [this.selected, palette.ink, 2.5]]) {
      if (i < 0) continue;
      const [l, r, t, b] = this.extent(i);
      context.lineWidth = (line + 2) * this.scale;
      context.strokeStyle = palette.surface;
      context.strokeRect(this.leftEdge + l, t, r - l, b - t);
      context.lineWidth = line * this.scale;
      context.strokeStyle = colour;
      context.strokeRect(this.leftEdge + l, t, r - l, b - t);
    }
    context.restore();
  }

  // The rectangle at a point of the box, in CSS pixels; the smallest within reach when none is exactly there; -1: none.
  hit(cssX, cssY) {
    const px = cssX * this.scale - this.leftEdge, py = cssY * this.scale, reach = 3 * this.scale;
    if (px < 0) return -1;
    const x = this.view.x0 + px / this.perX, y = this.view.y0 + (this.height - py) / this.perY;
    let best = -1, near = Infinity;
    this.tree.search(x - reach / this.perX, x + reach / this.perX, y - reach / this.perY, y + reach / this.perY, i => {
      const [l, r, t, b] = this.extent(i);
      const dx = Math.max(l - px, 0, px - r + 1), dy = Math.max(t - py, 0, py - b + 1), away = dx + dy;
      if (away < near) { near = away; best = i; }
    });
    return best;
  }
  point(cssX, cssY) {
    return [this.view.x0 + (cssX * this.scale - this.leftEdge) / this.perX, this.view.y0 + (this.height - cssY * this.scale) / this.perY];
  }
  frame(i) { this.view.frame(this.x0[i], this.x1[i], this.plan.rects.offset[i], this.y1[i]); }
  inSight(i) {
    return this.x1[i] > this.view.x0 && this.x0[i] < this.view.x1 && this.y1[i] > this.view.y0 && this.plan.rects.offset[i] < this.view.y1;
  }
}
