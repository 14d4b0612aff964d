// Which rectangles meet a window: a packed tree of boxes. Rectangles are put in the order of a Hilbert curve over their centres, every 16
// neighbours get a common box, every 16 boxes one above. Kamel and Faloutsos, "Hilbert R-tree", VLDB 1994. Building O(n log n), a query
// O(log n + found) in practice.

const FAN = 16;

// Position of (x, y), both in [0, 65536), on the Hilbert curve.
function hilbert(x, y) {
  let d = 0;
  for (let s = 32768; s > 0; s >>= 1) {
    const rx = (x & s) > 0 ? 1 : 0, ry = (y & s) > 0 ? 1 : 0;
    d += s * s * ((3 * rx) ^ ry);
    if (ry === 0) {
      if (rx === 1) { x = 65535 - x; y = 65535 - y; }
      const t = x; x = y; y = t;
    }
  }
  return d;
}

class BoxTree {
  // Box i is [x0[i], x1[i]) by [y0[i], y1[i]).
  constructor(x0, x1, y0, y1, width, height) {
    const n = x0.length, key = new Float64Array(n);
    this.order = new Uint32Array(n);
    for (let i = 0; i < n; ++i) {
      const cx = width > 0 ? (x0[i] + x1[i]) / 2 / width : 0, cy = height > 0 ? (y0[i] + y1[i]) / 2 / height : 0;
      key[i] = hilbert(Math.min(65535, Math.max(0, Math.floor(cx * 65535))), Math.min(65535, Math.max(0, Math.floor(cy * 65535))));
      this.order[i] = i;
    }
    this.order.sort((a, b) => key[a] - key[b]);
    this.leaf = { x0, x1, y0, y1 };
    this.levels = [];
    for (let below = null; ; below = this.levels[this.levels.length - 1]) {
      const size = below ? below.x0.length : n;
      if (below && size <= 1) break;
      this.levels.push(this.above(below, size));
      if (size === 0) break;
    }
  }

  above(below, size) {
    const boxes = Math.ceil(size / FAN), level = { x0: new Float64Array(boxes), x1: new Float64Array(boxes), y0: new Float64Array(boxes), y1: new Float64Array(boxes) };
    for (let b = 0; b < boxes; ++b) {
      let x0 = Infinity, x1 = -Infinity, y0 = Infinity, y1 = -Infinity;
      for (let k = b * FAN; k < Math.min(size, (b + 1) * FAN); ++k) {
        const from = below || this.leaf, i = below ? k : this.order[k];
        if (from.x0[i] < x0) x0 = from.x0[i];
        if (from.x1[i] > x1) x1 = from.x1[i];
        if (from.y0[i] < y0) y0 = from.y0[i];
        if (from.y1[i] > y1) y1 = from.y1[i];
      }
      level.x0[b] = x0; level.x1[b] = x1; level.y0[b] = y0; level.y1[b] = y1;
    }
    return level;
  }

  // Calls visit(i) for each box that meets [x0, x1] by [y0, y1].
  search(x0, x1, y0, y1, visit) {
    const walk = (depth, b) => {
      const level = this.levels[depth];
      if (level.x0[b] > x1 || level.x1[b] < x0 || level.y0[b] > y1 || level.y1[b] < y0) return;
      const size = depth > 0 ? this.levels[depth - 1].x0.length : this.order.length;
      for (let k = b * FAN; k < Math.min(size, (b + 1) * FAN); ++k) {
        if (depth > 0) { walk(depth - 1, k); continue; }
        const i = this.order[k], l = this.leaf;
        if (l.x0[i] <= x1 && l.x1[i] >= x0 && l.y0[i] <= y1 && l.y1[i] >= y0) visit(i);
      }
    };
    const top = this.levels.length - 1;
    for (let b = 0; b < this.levels[top].x0.length; ++b) walk(top, b);
  }
}
