// Puts the page together.

const state = { palette: null, redraws: [], dirty: false, frames: 0, drawNs: 0 };

function redraw() {
  if (state.dirty) return;
  state.dirty = true;
  requestAnimationFrame(() => {
    state.dirty = false;
    const start = performance.now();
    for (const draw of state.redraws) draw(state.palette);
    state.drawMs = performance.now() - start;
    ++state.frames;
  });
}

// ---- Light and dark: the system's, until the reader chooses.

function chosenTheme() { try { return localStorage.getItem("stowage-theme"); } catch { return null; } }
function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  replace(byId("theme"), el("span", { class: "theme-icon" }), theme === "dark" ? "Light" : "Dark");
  state.palette = readPalette();
  for (const show of state.themed || []) show();
  redraw();
}
const prefersDark = matchMedia("(prefers-color-scheme: dark)");
function startTheme() {
  setTheme(chosenTheme() || (prefersDark.matches ? "dark" : "light"));
  prefersDark.addEventListener("change", e => { if (!chosenTheme()) setTheme(e.matches ? "dark" : "light"); });
  byId("theme").addEventListener("click", () => {
    const next = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
    try { localStorage.setItem("stowage-theme", next); } catch { /* a page without storage forgets the choice */ }
    setTheme(next);
  });
}

function press(group, chosen) { for (const id of group) byId(id).setAttribute("aria-pressed", String(id === chosen)); }

// ---- The plan

function startPlan(plan) {
  const names = new Names(plan), view = new View(plan), map = new ArenaMap(byId("map-box"), plan, names, view);
  const live = new LivePlot(byId("live"), plan, names, view), lanes = new Lanes(byId("lanes"), plan, view);
  Object.assign(state, { plan, names, view, map, live, lanes });
  state.redraws.push(p => map.draw(p), p => live.draw(p), p => lanes.draw(p));
  view.listeners.push(redraw);
  for (const id of ["stages", "memory", "holders", "decisions"]) byId(id).hidden = false;
  showHead(plan);
  showStages(plan);

  const legend = () => showLegend(state, kind => {
    if (!map.hidden.delete(kind)) map.hidden.add(kind);
    live.hidden = map.hidden;
    legend();
    redraw();
  });
  let moment = "after";
  const holders = () => {
    press(["hold-after", "hold-before", "hold-cursor"], "hold-" + moment);
    if (moment === "before") showHolders(state, plan.programRects, plan.programAt[plan.program_peak_step], `Program order, op ${plan.program_peak_step.toLocaleString("en")} (${plan.op_names[plan.program_peak_step] || ""}): ${bytesText(plan.program_peak_bytes)} are live.`, plan.program_peak_bytes, null);
    else {
      const step = moment === "cursor" ? Math.min(plan.steps - 1, Math.floor(live.cursor)) : plan.peak_step;
      if (step < 0) return showHolders(state, plan.rects, -1, "The plan has no steps.", 0, null);
      showHolders(state, plan.rects, plan.stepAt[step], `Step ${step.toLocaleString("en")} (${names.step(step)}): ${bytesText(plan.stepLive[step])} are live.`, plan.stepLive[step], choose);
    }
  };
  const select = i => {
    map.selected = i;
    showDetail(state, i);
    redraw();
  };
  const choose = i => {
    select(i);
    if (i < 0) return;
    map.frame(i);
    byId("memory").scrollIntoView({ block: "start", behavior: matchMedia("(prefers-reduced-motion: reduce)").matches ? "auto" : "smooth" });
  };
  const setMoment = x => {
    live.cursor = Math.max(0, Math.min(plan.steps - 1e-9, view.positionAt(x)));
    byId("hold-cursor").disabled = false;
    moment = "cursor";
    holders();
    redraw();
  };
  const next = direction => {  // among what is found, or in order of time
    const list = map.matches ? [...map.matches] : null, n = list ? list.length : plan.rects.count;
    if (n === 0) return;
    const at = list ? list.indexOf(map.selected) : map.selected, to = ((at + direction) % n + n) % n;
    select(list ? list[at < 0 ? 0 : to] : at < 0 ? 0 : to);
    if (!map.inSight(map.selected) || list) map.frame(map.selected);
  };
  gestures(map, view, {
    hover: (i, x, y) => showTip(map, i, x, y),
    select: (i, x) => { select(i); if (i < 0 && x === null) { live.cursor = null; redraw(); } },
    next,
  });
  plotGestures(byId("live"), map, view, setMoment);
  plotGestures(byId("lanes"), map, view, null);
  controls(legend, holders, next, () => moment = "after", () => moment = "before", () => moment = "cursor");
  const decisions = () => showDecisions(state, d => choose(rectOf(plan, d)));
  state.themed = [legend, holders, decisions, () => showDetail(state, map.selected)];
  for (const show of state.themed) show();
}

// The rectangle that shows a decision best.
function rectOf(plan, d) {
  const r = plan.rects, buffers = new Set(d.kind === "move" ? [] : d.buffers.slice(0, d.kind === "takeover" ? 1 : undefined)), ops = new Set(d.ops);
  let best = -1, near = Infinity;
  for (let i = 0; i < r.count; ++i) {
    if (buffers.size > 0 ? !buffers.has(r.buffer[i]) : !ops.has(r.op[i])) continue;
    const away = Math.abs(r.from[i] - d.to);
    if (away < near) { near = away; best = i; }
  }
  return best;
}

function showTip(map, i, x, y) {
  const tip = map.tip;
  if (map.hover !== i) {
    map.hover = i;
    map.drawOver(state.palette);
    tip.hidden = i < 0;
    if (i >= 0) replace(tip, ...tipContent(state, i));
  }
  if (i < 0) return;
  const box = map.box.getBoundingClientRect(), size = tip.getBoundingClientRect();
  tip.style.left = Math.max(0, Math.min(box.width - size.width, x + 14)) + "px";
  tip.style.top = (y + 18 + size.height > box.height ? Math.max(0, y - size.height - 12) : y + 18) + "px";
}

function controls(legend, holders, next, ...moments) {
  const { plan, view, map, live } = state, axis = name => {
    view.setAxis(name);
    map.rebuild();
    press(["axis-steps", "axis-time"], "axis-" + name);
    redraw();
  };
  const on = (id, act) => byId(id).addEventListener("click", act);
  on("axis-steps", () => axis("steps"));
  on("axis-time", () => axis("time"));
  if (!plan.timed) { byId("axis-time").disabled = true; byId("axis-time").title = "The graph has no costs"; }
  const show = before => {
    live.before = before;
    press(["live-after", "live-before"], before ? "live-before" : "live-after");
    byId("live-title").textContent = before ? "Live bytes in program order" : "Live bytes";
    legend();
    redraw();
  };
  on("live-after", () => show(false));
  on("live-before", () => show(true));
  const middle = () => [(view.x0 + view.x1) / 2, (view.y0 + view.y1) / 2];
  on("zoom-in", () => view.zoom(0.6, 0.8, ...middle()));
  on("zoom-out", () => view.zoom(1 / 0.6, 1 / 0.8, ...middle()));
  on("zoom-fit", () => view.fit());
  ["hold-after", "hold-before", "hold-cursor"].forEach((id, k) => on(id, () => { moments[k](); holders(); }));
  const search = byId("search");
  search.addEventListener("input", () => find(search.value));
  search.addEventListener("keydown", e => {
    if (e.key === "Enter") next(e.shiftKey ? -1 : 1);
    if (e.key === "Escape") { search.value = ""; find(""); map.box.focus(); }
  });
  document.addEventListener("keydown", e => {
    if (e.key !== "/" || e.target.matches("input, textarea")) return;
    e.preventDefault();
    search.focus();
  });
}

function find(text) {
  const { plan, names, map } = state, wanted = text.trim().toLowerCase();
  if (wanted === "") { map.matches = null; byId("found").textContent = ""; return redraw(); }
  const has = list => list.map(t => t.toLowerCase().includes(wanted)), buffers = has(plan.buffer_names), ops = has(plan.op_names), targets = has(plan.targets), lines = has(plan.lines);
  map.matches = new Set();
  let bytes = 0;
  for (let i = 0; i < plan.rects.count; ++i) {
    const op = plan.rects.op[i], b = plan.rects.buffer[i];
    if (!((b >= 0 && buffers[b]) || (op >= 0 && (ops[op] || targets[plan.opTarget[op]] || (plan.opLine[op] >= 0 && lines[plan.opLine[op]]))))) continue;
    map.matches.add(i);
    bytes += plan.rects.bytes[i];
  }
  byId("found").textContent = map.matches.size === 0 ? "nothing found" : `${count(map.matches.size, "buffer")}, ${bytesText(bytes)}; Enter shows the next`;
  redraw();
}

// ---- Start

async function start() {
  startTheme();
  const data = await readData(byId("data").textContent);
  if (data.plan) startPlan(readPlan(data.plan));
  else { byId("title").textContent = !data.timeline ? "Sharding" : data.timeline.limit_bytes === undefined ? "Memory of a run" : "Eager budget"; byId("verdict").remove(); byId("figures").remove(); }
  if (data.ledger) { byId("ledger").hidden = false; showLedger(data.ledger); }
  if (data.timeline) {
    byId("timeline").hidden = false;
    if (data.timeline.holders) { byId("run-holders").hidden = false; showRunHolders(data.timeline.holders); }
    showTimeline(state, data.timeline);
  }
  byId("foot").textContent = data.plan ? `Graph ${data.plan.sha256}. Times are predicted; bytes are those of the plan, each buffer rounded up to ${data.plan.align}. This page holds all its data and makes no request.` : "This page holds all its data and makes no request.";
  new ResizeObserver(redraw).observe(byId("main"));
  redraw();
  requestAnimationFrame(() => requestAnimationFrame(() => { state.loadMs = performance.now(); }));
}

globalThis.stowageReport = state;  // for tests and for the curious
start().catch(error => {
  byId("title").textContent = "This browser cannot show the report";
  byId("verdict").textContent = String(error);
  throw error;
});
