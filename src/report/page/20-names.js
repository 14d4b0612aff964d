// What things are called, and what is on the device at a moment.

class Names {
  constructor(plan) {
    this.plan = plan;
    this.kinds = plan.kinds.map(k => k.replace("_", " ")).concat("scratch");
  }
  kindOfRect(rects, i) { return rects.buffer[i] < 0 ? SCRATCH : this.plan.bufferKind[rects.buffer[i]]; }
  rect(rects, i) { return rects.buffer[i] < 0 ? this.plan.op_names[rects.op[i]] + " (scratch)" : this.plan.buffer_names[rects.buffer[i]]; }
  line(op) { return op >= 0 && this.plan.opLine[op] >= 0 ? this.plan.lines[this.plan.opLine[op]] : ""; }
  target(op) { return op >= 0 ? this.plan.targets[this.plan.opTarget[op]] : ""; }
  step(s) {
    const p = this.plan, id = p.stepId[s];
    return ["", "again: ", "copy out: ", "copy in: "][p.stepKind[s]] + (p.stepKind[s] <= STEP.again ? p.op_names[id] : p.buffer_names[id]);
  }
  // Positions of the rectangles that cover the moment `at`.
  liveAt(rects, at) {
    const found = [];
    for (let i = 0; i < rects.count; ++i) if (rects.from[i] <= at && at < rects.to[i]) found.push(i);
    return found;
  }
}

// Per step, the bytes of each kind at the step's heaviest moment: stacks[kind][step]. `align` pads each as the arena does.
function stacksOf(names, rects, moments, align) {
  const stacks = names.kinds.map(() => null), steps = moments.length;
  for (let i = 0; i < rects.count; ++i) {
    const kind = names.kindOfRect(rects, i), bytes = Math.ceil(rects.bytes[i] / align) * align;
    if (!stacks[kind]) stacks[kind] = new Float64Array(steps + 1);
    // A moment lies in [step, step + 1): only the first and the last step of a rectangle can miss it.
    let first = Math.floor(rects.from[i]), last = Math.ceil(rects.to[i]) - 1;
    if (first < steps && moments[first] < rects.from[i]) ++first;
    if (last < steps && moments[last] >= rects.to[i]) --last;
    if (first > last) continue;
    stacks[kind][first] += bytes;
    stacks[kind][last + 1] -= bytes;
  }
  for (const stack of stacks) if (stack) for (let s = 1; s < stack.length; ++s) stack[s] += stack[s - 1];
  return stacks;
}
