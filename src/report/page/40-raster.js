// Drawing by pixels. Rectangles of a plan do not overlap, so writing each one's pixels into an image touches every pixel about once, which
// needs neither a GPU nor one canvas call per rectangle: a view of 50,000 rectangles costs a few milliseconds.

// "#rrggbb" as a little-endian pixel.
function pixel(hex) {
  const n = parseInt(hex.slice(1), 16);
  return (0xff000000 | (n & 0xff) << 16 | n & 0xff00 | n >> 16) >>> 0;
}
function mix(hex, other, share) {
  const a = parseInt(hex.slice(1), 16), b = parseInt(other.slice(1), 16);
  let out = 0;
  for (const shift of [16, 8, 0]) out |= Math.round((a >> shift & 255) * (1 - share) + (b >> shift & 255) * share) << shift;
  return "#" + out.toString(16).padStart(6, "0");
}

// Colours as the style sheet has them now.
function readPalette() {
  const style = getComputedStyle(document.documentElement), get = name => style.getPropertyValue("--" + name).trim();
  const p = {};
  for (const name of ["bg", "surface", "ink", "muted", "line", "soft", "accent", "bound", "budget", "before", "swap", "again", "empty", "grid"]) p[name] = get(name);
  const named = { activation: get("activation"), gradient: get("gradient"), temporary: get("temporary"), output: get("output") };
  p.kindHex = ["parameter", "optimizer state", "module buffer", "input", "constant", "activation", "gradient", "temporary", "output"].map(k => named[k] || get("other"));
  p.kindHex.push(get("scratch"));
  const dark = parseInt(p.bg.slice(1, 3), 16) < 128;
  p.kind = p.kindHex.map(pixel);
  p.edge = p.kindHex.map(h => pixel(mix(h, p.surface, dark ? 0.45 : 0.35)));
  p.hatch = p.kindHex.map(h => pixel(mix(h, dark ? "#000000" : "#ffffff", 0.45)));
  p.dim = p.kindHex.map(h => pixel(mix(h, p.empty, 0.84)));
  p.emptyPixel = pixel(p.empty);
  p.surfacePixel = pixel(p.surface);
  p.swapPixel = pixel(p.swap);
  return p;
}

class Raster {
  resize(width, height) {
    if (this.image && this.width === width && this.height === height) return;
    this.width = Math.max(1, width);
    this.height = Math.max(1, height);
    this.image = new ImageData(this.width, this.height);
    this.pixels = new Uint32Array(this.image.data.buffer);
  }
  clear(colour) { this.pixels.fill(colour); }
  // [x0, x1) by [y0, y1), already inside.
  fill(x0, x1, y0, y1, colour) {
    const { pixels, width } = this, end = y1 * width;
    if (x1 - x0 > 12) for (let row = y0 * width; row < end; row += width) pixels.fill(colour, row + x0, row + x1);
    else for (let row = y0 * width; row < end; row += width) for (let x = row + x0; x < row + x1; ++x) pixels[x] = colour;
  }
  hatch(x0, x1, y0, y1, colour) {
    for (let y = y0; y < y1; ++y)
      for (let x = x0 + ((12 - (x0 + y) % 6) % 6); x < x1; x += 6) {
        this.pixels[y * this.width + x] = colour;
        if (x + 1 < x1) this.pixels[y * this.width + x + 1] = colour;
      }
  }
}

// A canvas whose pixels are those of the screen. Gives its width and height in them, and how many make one CSS pixel.
function fit(canvas) {
  const scale = Math.min(window.devicePixelRatio || 1, 2), box = canvas.getBoundingClientRect();
  const width = Math.max(1, Math.round(box.width * scale)), height = Math.max(1, Math.round(box.height * scale));
  if (canvas.width !== width) canvas.width = width;
  if (canvas.height !== height) canvas.height = height;
  return { width, height, scale };
}
const FONT = 'system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", "DejaVu Sans", sans-serif';
const MONO = 'ui-monospace, "SF Mono", "Cascadia Mono", "DejaVu Sans Mono", Menlo, Consolas, monospace';
