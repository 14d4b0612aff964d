// Tables: what holds a moment, and what the decisions saved and cost.

function meter(share, colour) {
  return el("span", { class: "meter" }, el("i", { style: { width: (share > 0 ? Math.max(1, 100 * share) : 0) + "%", background: colour || "" } }));
}
function swatch(colour) { return el("i", { style: { background: colour } }); }

// columns: {title, num, value(row) for sorting, cell(row) -> node or text}. Shows `page` rows and more on request; a row may be chosen.
function sortedTable(host, rows, columns, { page = 25, order = null, choose = null, empty = "Nothing to show." } = {}) {
  if (rows.length === 0) return replace(host, el("p", { class: "empty-state" }, empty));
  let shown = page, by = order, list = rows.slice();
  const render = () => {
    if (by) list = rows.slice().sort((a, b) => { const x = columns[by.column].value(a), y = columns[by.column].value(b); return (x < y ? -1 : x > y ? 1 : 0) * (by.down ? -1 : 1); });
    const head = el("tr", {}, ...columns.map((c, i) => el("th", { class: c.num ? "num" : "", "aria-sort": by && by.column === i ? (by.down ? "descending" : "ascending") : undefined },
      c.value ? el("button", { type: "button", onclick: () => { by = { column: i, down: by && by.column === i ? !by.down : !!c.num }; render(); } }, c.title + (by && by.column === i ? (by.down ? " \u2193" : " \u2191") : "")) : c.title)));
    const body = list.slice(0, shown).map(row => {
      const go = choose && (() => choose(row));
      return el("tr", go ? { class: "go", tabindex: "0", onclick: go, onkeydown: e => { if (e.key === "Enter") go(); } } : {},
        ...columns.map(c => el("td", { class: (c.num ? "num " : "") + (c.class || "") }, c.cell(row))));
    });
    replace(host, el("div", { class: "scroll" }, el("table", {}, el("thead", {}, head), el("tbody", {}, ...body))));
    if (list.length > shown) host.append(el("button", { type: "button", class: "more", onclick: () => { shown += 4 * page; render(); } }, `Show more (${(list.length - shown).toLocaleString("en")} left)`));
  };
  render();
}

// ---- What holds a moment

function holderRows(names, rects, at) {
  const p = names.plan, lines = new Map(), buffers = [];
  const lined = p.lines.length > 0;
  for (const i of names.liveAt(rects, at)) {
    const op = rects.op[i], bytes = Math.ceil(rects.bytes[i] / p.align) * p.align;
    const key = lined ? names.line(op) || "(no line recorded)" : names.target(op) || "(unknown)";
    const row = lines.get(key) || { key, bytes: 0, count: 0, kinds: new Map(), targets: new Set() };
    const kind = names.kindOfRect(rects, i);
    row.bytes += bytes;
    ++row.count;
    row.kinds.set(kind, (row.kinds.get(kind) || 0) + bytes);
    row.targets.add(names.target(op));
    lines.set(key, row);
    buffers.push({ i, op, kind, bytes, name: names.rect(rects, i) });
  }
  buffers.sort((a, b) => b.bytes - a.bytes);
  return { lines: [...lines.values()].sort((a, b) => b.bytes - a.bytes), buffers, lined };
}

function showHolders(state, rects, at, title, total, chooseRect) {
  const { names, palette } = state, { lines, buffers, lined } = holderRows(names, rects, at);
  replace(byId("hold-note"), title);
  byId("hold-line-h").textContent = lined ? "By line of your code" : "By kernel (the graph names no source lines)";
  const main = row => palette.kindHex[[...row.kinds].sort((a, b) => b[1] - a[1])[0][0]];
  sortedTable(byId("hold-lines"), lines, [
    { title: lined ? "Line" : "Kernel", cell: r => el("span", {}, el("span", { class: "mono", title: r.key }, lined ? shortLine(r.key) : r.key), el("span", { class: "sub" }, [...r.targets].slice(0, 3).join(", ") + (r.targets.size > 3 ? ` and ${r.targets.size - 3} more` : ""))) },
    { title: "Buffers", num: true, cell: r => r.count.toLocaleString("en") },
    { title: "Bytes", num: true, cell: r => bytesText(r.bytes) },
    { title: "", class: "share", cell: r => meter(total > 0 ? r.bytes / total : 0, main(r)) },
  ], { page: 10, empty: "Nothing is live at this moment." });
  sortedTable(byId("hold-buffers"), buffers, [
    { title: "Buffer", cell: r => el("span", {}, el("span", { class: "kind" }, swatch(palette.kindHex[r.kind]), el("span", { class: "mono" }, r.name)), el("span", { class: "sub", title: names.line(r.op) }, [names.target(r.op), shortLine(names.line(r.op))].filter(Boolean).join(" \u00b7 "))) },
    { title: "Bytes", num: true, cell: r => bytesText(r.bytes) },
    { title: "Share", num: true, cell: r => percent(total > 0 ? r.bytes / total : 0) },
  ], { page: 10, choose: chooseRect ? r => chooseRect(r.i) : null, empty: "Nothing is live at this moment." });
}

// ---- Decisions

const DECISIONS = {
  recompute: { title: "recomputed", colour: "again" }, swap: { title: "swapped", colour: "swap" },
  takeover: { title: "reused in place", colour: "accent" }, move: { title: "moved", colour: "bound" },
};
function some(list, text, most = 3) { return list.slice(0, most).map(text).join(", ") + (list.length > most ? ` and ${(list.length - most).toLocaleString("en")} more` : ""); }

function decisionText(names, d) {
  const p = names.plan, buffer = b => p.buffer_names[b], op = o => p.op_names[o];
  if (d.kind === "recompute") return d.buffers.length > 0 ? `${some(d.buffers, buffer)}: made again` : `${some(d.ops, op)}: run again`;
  if (d.kind === "swap") return `${buffer(d.buffers[0])}: waits on the host`;
  if (d.kind === "takeover") return `${buffer(d.buffers[0])} over ${buffer(d.buffers[1])}`;
  const first = d.ops[0], targets = new Set(d.ops.map(o => names.target(o)));
  return `${d.ops.length === 1 ? op(first) : d.ops.length.toLocaleString("en") + " \u00d7 " + [...targets][0]}: ${d.later ? "later" : "earlier"}`;
}
function decisionMore(names, d) {
  if (d.kind === "recompute") return `${count(d.ops.length, "op")}: ${some(d.ops, o => names.target(o), 4)}`;
  if (d.kind === "swap") return `away for ${count(d.to - d.from, "step")}`;
  if (d.kind === "takeover") return names.target(d.ops[0]);
  return d.ops.length === 1 ? names.target(d.ops[0]) : some(d.ops, o => names.plan.op_names[o], 4);
}
function decisionLine(names, d) { return names.line(d.ops.length > 0 ? d.ops[0] : names.plan.bufferOp[d.buffers[0]]); }

function showDecisions(state, choose) {
  const { plan, names, palette } = state, off = new Set(["takeover", "move"].filter(k => plan.decisions.some(d => d.kind === "recompute" || d.kind === "swap") && plan.decisions.filter(d => d.kind === k).length > 200));
  const groups = new Map();
  for (const d of plan.decisions) {
    const g = groups.get(d.kind) || { n: 0, bytes: 0, cost: 0 };
    ++g.n; g.bytes += d.bytes; g.cost += d.cost_ns;
    groups.set(d.kind, g);
    if (d.kind === "move") d.later = d.ops.length > 0 && plan.lastRun[d.ops[0]] > d.ops[0];
  }
  const again = groups.get("recompute"), swap = groups.get("swap");
  const sums = plan.timed ? ` Predicted step: ${timeText(plan.step_ns)} = ${timeText(plan.program_step_ns)} of ops` + (again ? ` + ${timeText(again.cost)} run again` : "") + (swap ? (swap.cost > 0 ? ` + ${timeText(swap.cost)} waiting for copies` : ", without waiting for copies") : "") + "." : "";
  byId("decision-note").textContent = "\u201cWithout it\u201d is how far the peak of live bytes would rise if this one decision were undone and all others stayed; of several that hold one peak down together, each may show little alone." + sums;
  const chips = byId("decision-kinds"), table = byId("decision-table");
  const render = () => {
    replace(chips, ...[...groups].map(([kind, g]) => el("button", { type: "button", "aria-pressed": String(!off.has(kind)), onclick: () => { if (!off.delete(kind)) off.add(kind); render(); } },
      swatch(palette[DECISIONS[kind].colour]), `${g.n.toLocaleString("en")} ${DECISIONS[kind].title}`, el("small", {}, g.cost > 0 ? timeText(g.cost) : ""))));
    sortedTable(table, plan.decisions.filter(d => !off.has(d.kind)), [
      { title: "Decision", value: d => d.kind, cell: d => el("span", {}, el("span", { class: "kind" }, swatch(palette[DECISIONS[d.kind].colour]), el("span", { class: "mono" }, decisionText(names, d))), el("span", { class: "sub" }, decisionMore(names, d))) },
      { title: "Your line", value: d => decisionLine(names, d), cell: d => el("span", { class: "mono", title: decisionLine(names, d) }, shortLine(decisionLine(names, d)) || "\u2013") },
      { title: "Steps", num: true, value: d => d.from, cell: d => d.to - d.from === 1 ? d.from.toLocaleString("en") : `${d.from.toLocaleString("en")}\u2013${d.to.toLocaleString("en")}` },
      { title: "Bytes", num: true, value: d => d.bytes, cell: d => bytesText(d.bytes) },
      { title: "Without it", num: true, value: d => d.saved === null ? -Infinity : d.saved, cell: d => d.saved === null ? "not computed" : d.saved === 0 ? "no change" : signed(d.saved) },
      { title: "Cost", num: true, value: d => d.cost_ns, cell: d => d.cost_ns > 0 ? timeText(d.cost_ns) : "\u2013" },
    ], { page: 25, order: { column: 4, down: true }, choose, empty: plan.decisions.length === 0 ? "The plan runs the program's order as it is; nothing is recomputed, swapped or reused in place." : "All kinds are switched off." });
  };
  render();
}
