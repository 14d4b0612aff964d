// The optional sections: the sharding ledger and the eager runtime's timeline.

function showLedger(ledger) {
  const rows = ledger.rows, sum = key => rows.reduce((n, r) => n + r[key], 0), local = sum("local_bytes"), redundant = sum("redundant_bytes");
  byId("ledger-note").textContent = `${count(rows.length, "tensor")}${ledger.devices ? " over " + count(ledger.devices, "device") : ""}: each device holds ${bytesText(local)}, of which ${bytesText(redundant)} (${percent(local > 0 ? redundant / local : 0)}) are redundant: more than its even share.`;
  const most = Math.max(1, ...rows.map(r => r.redundant_bytes));
  sortedTable(byId("ledger-table"), rows, [
    { title: "Tensor", value: r => r.tensor, cell: r => el("span", { class: "mono" }, r.tensor) },
    { title: "Placement", value: r => r.placement, cell: r => el("span", { class: "mono" }, r.placement) },
    { title: "Bytes", num: true, value: r => r.bytes, cell: r => bytesText(r.bytes) },
    { title: "Per device", num: true, value: r => r.local_bytes, cell: r => bytesText(r.local_bytes) },
    { title: "Redundant", num: true, value: r => r.redundant_bytes, cell: r => bytesText(r.redundant_bytes) },
    { title: "", class: "share", cell: r => meter(r.redundant_bytes / most, r.redundant_bytes > 0 ? "var(--gradient)" : "") },
    { title: "Why", cell: r => r.why },
  ], { page: 25, order: { column: 4, down: true }, empty: "The ledger is empty." });
}

const EVENT_COLOURS = ["again", "swap", "bound", "accent", "budget", "muted"];

function showTimeline(state, timeline) {
  const events = timeline.events, kinds = [...new Set(events.map(e => e.event))].sort(), token = kind => EVENT_COLOURS[kinds.indexOf(kind) % EVENT_COLOURS.length], colour = kind => state.palette[token(kind)];
  const groups = kinds.map(kind => { const own = events.filter(e => e.event === kind); return { kind, n: own.length, bytes: own.reduce((n, e) => n + e.bytes, 0) }; });
  byId("timeline-note").textContent = `${count(events.length, "event")}${timeline.limit_bytes !== undefined ? " under a limit of " + bytesText(timeline.limit_bytes) : ""}.`;
  replace(byId("timeline-kinds"), ...groups.map(g => el("span", { class: "key" }, swatch(`var(--${token(g.kind)})`), `${g.kind}: ${g.n.toLocaleString("en")}, ${bytesText(g.bytes)}`)));
  sortedTable(byId("timeline-table"), events, [
    { title: "Time", num: true, value: e => e.t_ns, cell: e => timeText(e.t_ns) },
    { title: "Event", value: e => e.event, cell: e => el("span", { class: "kind" }, swatch(`var(--${token(e.event)})`), e.event) },
    { title: "Bytes", num: true, value: e => e.bytes, cell: e => bytesText(e.bytes) },
    { title: "Op", value: e => e.op, cell: e => el("span", { class: "mono" }, e.op) },
  ], { page: 15, order: { column: 2, down: true }, empty: "Nothing had to be released." });
  state.redraws.push(palette => drawTimeline(byId("timeline-plot"), timeline, kinds, colour, palette));
}

function showRunHolders(holders) {
  const all = holders.reduce((n, h) => n + h.bytes, 0), most = Math.max(1, ...holders.map(h => h.bytes));
  byId("run-holders-note").textContent = `${count(holders.length, "line")} held ${bytesText(all)} when the most was live.`;
  sortedTable(byId("run-holders-table"), holders, [
    { title: "Line", value: h => h.line, cell: h => el("span", { class: "mono" }, h.line) },
    { title: "Source", cell: h => el("span", { class: "mono" }, h.source) },
    { title: "Made in", value: h => h.phase, cell: h => h.phase },
    { title: "Bytes", num: true, value: h => h.bytes, cell: h => bytesText(h.bytes) },
    { title: "", class: "share", cell: h => meter(h.bytes / most, "var(--activation)") },
  ], { page: 25, order: { column: 3, down: true }, empty: "Nothing was live." });
}

function drawTimeline(canvas, timeline, kinds, colour, palette) {
  const { width, height, scale } = fit(canvas), context = canvas.getContext("2d"), left = GUTTER * scale, plot = height - 52 * scale;
  const live = (timeline.live || []).slice().sort((a, b) => a.t_ns - b.t_ns), times = live.concat(timeline.events).map(e => e.t_ns);
  const from = times.reduce((a, b) => Math.min(a, b), Infinity), to = Math.max(from + 1, times.reduce((a, b) => Math.max(a, b), -Infinity));
  const most = Math.max(1, live.reduce((m, e) => Math.max(m, e.bytes), 0), timeline.limit_bytes || 0) * 1.06;
  const x = t => left + (t - from) / (to - from) * (width - left), y = bytes => plot - bytes / most * plot;
  context.clearRect(0, 0, width, height);
  if (times.length === 0) return;
  bytesAxis(context, palette, scale, 0, most, plot, 5, width);
  if (live.length > 0) {
    context.beginPath();
    context.moveTo(x(live[0].t_ns), plot);
    for (let i = 0; i < live.length; ++i) { if (i > 0) context.lineTo(x(live[i].t_ns), y(live[i - 1].bytes)); context.lineTo(x(live[i].t_ns), y(live[i].bytes)); }
    context.lineTo(x(live[live.length - 1].t_ns), plot);
    context.fillStyle = palette.kindHex[5];
    context.fill();
  }
  if (timeline.limit_bytes !== undefined) { context.fillStyle = palette.budget; context.fillRect(left, y(timeline.limit_bytes), width - left, 1.6 * scale); }
  for (const e of timeline.events) {
    context.fillStyle = colour(e.event);
    context.fillRect(x(e.t_ns), plot + (4 + 22 * kinds.indexOf(e.event) / Math.max(1, kinds.length)) * scale, Math.max(1, 1.2 * scale), Math.max(3, 20 / Math.max(1, kinds.length)) * scale);
  }
  context.fillStyle = palette.muted;
  context.font = `${11 * scale}px ${FONT}`;
  context.textBaseline = "top";
  for (const t of ticks(0, to - from, (width - left) / scale / 120, false)) {
    context.textAlign = t === 0 ? "left" : x(t + from) > width - 40 * scale ? "right" : "center";
    context.fillText(timeText(t), x(t + from), plot + 34 * scale);
  }
}
