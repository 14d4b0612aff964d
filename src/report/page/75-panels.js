// The head of the page, the stages, the legend and the details of one buffer.

function figure(term, value, more) { return el("div", {}, el("dt", {}, term), el("dd", {}, value, more ? el("small", {}, more) : null)); }

function showHead(plan) {
  byId("title").textContent = plan.name || "Plan";
  document.title = (plan.name || "Plan") + " \u00b7 Stowage report";
  const saved = plan.program_peak_bytes > 0 ? 1 - plan.peak_bytes / plan.program_peak_bytes : 0, bound = plan.lower_bound_bytes;
  const changed = plan.decisions.some(d => d.kind === "recompute" || d.kind === "swap");
  let verdict = saved > 0.0005 ? `Peak memory falls from ${bytesText(plan.program_peak_bytes)} to ${bytesText(plan.peak_bytes)}, by ${percent(saved)}.` : saved < -0.0005 ? `Peak memory is ${bytesText(plan.peak_bytes)}; program order alone needs ${bytesText(plan.program_peak_bytes)}.` : `Peak memory is ${bytesText(plan.peak_bytes)}, that of program order.`;
  if (bound !== null && bound > 0) {
    if (plan.peak_bytes < bound) verdict += ` Recomputation and swapping bring it below ${bytesText(bound)}, which no order alone can beat.`;
    else if (plan.peak_bytes === bound && !changed) verdict += " No order of these ops needs less: proven.";
    else verdict += ` No order of these ops needs less than ${bytesText(bound)}: at most ${percent(plan.peak_bytes / bound - 1, 2)} is left.`;
  }
  replace(byId("verdict"), verdict, el("small", {}, `${count(plan.steps, "step")}, ${count(plan.ops, "op")}, ${count(plan.buffer_names.length, "buffer")}`));
  const hole = plan.arena_bytes - plan.peak_bytes, again = plan.decisions.filter(d => d.kind === "recompute"), swaps = plan.decisions.filter(d => d.kind === "swap");
  const needs = plan.resident_bytes + plan.arena_bytes;
  replace(byId("figures"),
    figure("Peak of live bytes", bytesText(plan.peak_bytes), `program order ${bytesText(plan.program_peak_bytes)}`),
    figure("Arena", bytesText(plan.arena_bytes), hole === 0 ? "no byte lost to holes" : `${percent(plan.peak_bytes > 0 ? hole / plan.peak_bytes : 0, 2)} lost to holes`),
    bound !== null ? figure("Lower bound", bytesText(bound), "on the peak, over all orders") : null,
    figure("Residents", bytesText(plan.resident_bytes), "parameters and states, outside the arena"),
    plan.budget_bytes !== null ? figure("Budget", bytesText(plan.budget_bytes), needs <= plan.budget_bytes ? `${bytesText(plan.budget_bytes - needs)} to spare` : `exceeded by ${bytesText(needs - plan.budget_bytes)}`) : figure("Device needs", bytesText(needs), "residents and arena"),
    plan.timed ? figure("Predicted step", timeText(plan.step_ns), plan.step_ns > plan.program_step_ns ? `+${percent(plan.step_ns / plan.program_step_ns - 1)} over program order` : "as program order") : null,
    again.length + swaps.length > 0 ? figure("Run again, swapped", `${again.reduce((n, d) => n + d.ops.length, 0).toLocaleString("en")} ops`, swaps.length > 0 ? `${count(swaps.length, "swap")}, ${bytesText(swaps.reduce((n, d) => n + d.bytes, 0))} back` : "nothing is swapped") : null);
}

function showStages(plan) {
  const s = plan.stages, rows = [["Program order", s.program], ["Ops reordered", s.order]];
  if (plan.decisions.some(d => d.kind === "recompute")) rows.push(["Buffers recomputed", s.recompute]);
  if (plan.decisions.some(d => d.kind === "swap")) rows.push(["Buffers swapped", s.swap]);
  if (plan.decisions.some(d => d.kind === "takeover")) rows.push(["In-place reuse", s.takeover]);
  rows.push(["Arena laid out", plan.arena_bytes]);
  const most = Math.max(1, ...rows.map(r => r[1])), bound = plan.lower_bound_bytes;
  replace(byId("stage-bars"), ...rows.map(([name, bytes], i) => {
    const step = i === 0 ? 0 : bytes - rows[i - 1][1];
    return el("div", { class: "bar" }, el("span", {}, name),
      el("span", { class: "track" }, el("span", { class: "fill" + (i === 0 ? " first" : i === rows.length - 1 ? " last" : ""), style: { width: 100 * bytes / most + "%" } }),
        bound !== null && bound > 0 && bound <= most ? el("span", { class: "mark", style: { left: 100 * bound / most + "%" }, title: "lower bound " + bytesText(bound) }) : null),
      el("span", { class: "value" }, bytesText(bytes), i > 0 ? el("small", {}, step === 0 ? "no change" : signed(step)) : null));
  }));
  if (bound !== null) byId("stage-bars").append(el("div", { class: "legend" }, el("span", { class: "key" }, el("i", { class: "stroke", style: { borderColor: "var(--bound)" } }), `lower bound of any order, ${bytesText(bound)}`)));
}

function showLegend(state, toggle) {
  const { plan, names, palette, map } = state, used = new Map();
  for (let i = 0; i < plan.rects.count; ++i) { const k = names.kindOfRect(plan.rects, i); used.set(k, (used.get(k) || 0) + 1); }
  const keys = [...used].sort((a, b) => b[1] - a[1]).map(([kind, n]) => el("button", { type: "button", "aria-pressed": String(!map.hidden.has(kind)), onclick: () => toggle(kind) }, swatch(palette.kindHex[kind]), names.kinds[kind], el("small", {}, n.toLocaleString("en"))));
  const stroke = (colour, text, dash) => el("span", { class: "key" }, el("i", { class: "stroke" + (dash ? " dash" : ""), style: { borderColor: colour } }), text);
  keys.push(stroke(palette.before, state.live.before ? "plan" : "program order", true));
  if (plan.lower_bound_bytes !== null) keys.push(stroke(palette.bound, "lower bound"));
  if (plan.budget_bytes !== null) keys.push(stroke(palette.budget, "budget less residents"));
  const has = kind => plan.decisions.some(d => d.kind === kind);
  if (has("recompute")) keys.push(el("span", { class: "key" }, el("i", { style: { background: `repeating-linear-gradient(135deg, ${palette.kindHex[5]} 0 3px, ${mix(palette.kindHex[5], "#ffffff", 0.5)} 3px 5px)` } }), "made again"));
  if (has("swap")) keys.push(el("span", { class: "key" }, el("i", { style: { background: `linear-gradient(90deg, ${palette.swap} 4px, ${palette.kindHex[5]} 4px)` } }), "to or from the host"));
  if (has("takeover")) keys.push(el("span", { class: "key" }, el("i", { style: { background: `linear-gradient(45deg, ${palette.ink} 5px, ${palette.kindHex[5]} 5px)` } }), "over an input"));
  replace(byId("legend"), ...keys);
}

const ORIGIN_TEXT = ["made by the program", "made again", "back from the host", "inside the op"];

function stepsText(from, to) {
  const a = Math.floor(from), b = Math.ceil(to) - 1;
  return a >= b ? `step ${a.toLocaleString("en")}` : `steps ${a.toLocaleString("en")} to ${b.toLocaleString("en")}`;
}

function tipContent(state, i) {
  const { plan, names } = state, r = plan.rects, op = r.op[i], line = names.line(op);
  return [el("b", {}, names.rect(r, i)), el("span", {}, `${bytesText(r.bytes[i])} \u00b7 ${names.kinds[names.kindOfRect(r, i)]} \u00b7 ${ORIGIN_TEXT[r.origin[i]]}`),
    el("span", {}, [names.target(op), stepsText(r.from[i], r.to[i])].filter(Boolean).join(" \u00b7 ")), line ? el("span", {}, shortLine(line)) : null].filter(Boolean);
}

function showDetail(state, i) {
  const host = byId("detail"), { plan, names, palette, map } = state;
  if (i < 0) return replace(host, el("p", { class: "empty" }, "Select a buffer to see what it is, who made it, and on which line."));
  const r = plan.rects, op = r.op[i], end = Math.ceil(r.to[i]) - 1, kind = names.kindOfRect(r, i);
  const pair = (term, ...value) => el("div", {}, el("dt", {}, term), el("dd", {}, ...value));
  const twins = [];
  if (r.buffer[i] >= 0) for (let k = 0; k < r.count; ++k) if (r.buffer[k] === r.buffer[i]) twins.push(k);
  replace(host, el("h3", { class: "mono" }, names.rect(r, i)), el("dl", {},
    pair("Size", `${bytesText(r.bytes[i])}`, el("span", { class: "sub" }, ` (${r.bytes[i].toLocaleString("en")} bytes)`)),
    pair("Kind", el("span", { class: "kind" }, swatch(palette.kindHex[kind]), names.kinds[kind])),
    pair("Came to be", ORIGIN_TEXT[r.origin[i]] + (r.over[i] >= 0 ? ", over " + plan.buffer_names[r.over[i]] : "") + (map.left[i] ? "; leaves for the host" : "")),
    op >= 0 ? pair("Made by", el("span", { class: "mono" }, names.target(op)), ` (op ${op.toLocaleString("en")})`) : null,
    names.line(op) ? pair("Line of your code", el("span", { class: "mono" }, names.line(op))) : null,
    pair("Live", stepsText(r.from[i], r.to[i]) + (plan.timed ? `, ${timeText(lifeNs(plan, r, i))}` : "")),
    end >= 0 && end < plan.steps ? pair("Ends with", el("span", { class: "mono" }, names.step(end))) : null,
    pair("Addresses", `${r.offset[i].toLocaleString("en")} to ${(r.offset[i] + r.bytes[i]).toLocaleString("en")}`),
    twins.length > 1 ? pair("On the device", `${twins.length} times`) : null),
  el("button", { type: "button", onclick: () => map.frame(i) }, "Frame it"));
}
function lifeNs(plan, r, i) {
  const at = x => { const s = Math.min(plan.steps, Math.floor(x)); return s >= plan.steps ? plan.clock[plan.steps] : plan.clock[s] + (x - s) * (plan.clock[s + 1] - plan.clock[s]); };
  return at(r.to[i]) - at(r.from[i]);
}
