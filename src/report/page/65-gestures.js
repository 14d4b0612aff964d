// Pointer, wheel and keys on the map and on the plots above and below it.

function gestures(map, view, act) {
  const box = map.box, pointers = new Map();
  let moved = false, pinch = 0;
  const local = event => { const r = box.getBoundingClientRect(); return [event.clientX - r.left, event.clientY - r.top]; };

  box.addEventListener("pointerdown", event => {
    box.setPointerCapture(event.pointerId);
    pointers.set(event.pointerId, [event.clientX, event.clientY]);
    moved = false;
    pinch = spread();
  });
  box.addEventListener("pointermove", event => {
    if (!pointers.has(event.pointerId)) return act.hover(map.hit(...local(event)), ...local(event));
    const [x, y] = pointers.get(event.pointerId);
    const dx = event.clientX - x, dy = event.clientY - y;
    if (!moved && Math.abs(dx) + Math.abs(dy) < 4 && pointers.size === 1) return;
    moved = true;
    pointers.set(event.pointerId, [event.clientX, event.clientY]);
    act.hover(-1);
    if (pointers.size === 2) {
      const now = spread(), middle = map.point(...local(event));
      if (pinch > 0 && now > 0) view.zoom(pinch / now, pinch / now, ...middle);
      pinch = now;
    } else {
      view.pan(-dx * map.scale / map.perX, dy * map.scale / map.perY);
    }
  });
  const release = event => {
    const clicked = pointers.has(event.pointerId) && !moved && event.type === "pointerup";
    pointers.delete(event.pointerId);
    if (clicked) act.select(map.hit(...local(event)), map.point(...local(event))[0]);
  };
  box.addEventListener("pointerup", release);
  box.addEventListener("pointercancel", release);
  box.addEventListener("pointerleave", () => act.hover(-1));
  function spread() {
    const [a, b] = [...pointers.values()];
    return b ? Math.hypot(a[0] - b[0], a[1] - b[1]) : 0;
  }

  box.addEventListener("wheel", event => {
    if (document.activeElement !== box && !event.ctrlKey && !event.metaKey) return;  // else the page scrolls
    event.preventDefault();
    const factor = Math.exp(Math.max(-120, Math.min(120, event.deltaY || event.deltaX)) * 0.0022), [x, y] = map.point(...local(event));
    view.zoom(event.shiftKey ? 1 : factor, event.shiftKey || event.altKey ? factor : 1, x, y);
  }, { passive: false });
  box.addEventListener("dblclick", event => view.zoom(0.5, 0.5, ...map.point(...local(event))));

  box.addEventListener("keydown", event => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const w = view.x1 - view.x0, h = view.y1 - view.y0, middle = [view.x0 + w / 2, view.y0 + h / 2];
    const keys = {
      ArrowLeft: () => view.pan(-w / 8, 0), ArrowRight: () => view.pan(w / 8, 0),
      ArrowUp: () => view.pan(0, h / 8), ArrowDown: () => view.pan(0, -h / 8),
      "+": () => view.zoom(0.7, 0.85, ...middle), "=": () => view.zoom(0.7, 0.85, ...middle), "-": () => view.zoom(1 / 0.7, 1 / 0.85, ...middle),
      0: () => view.fit(), n: () => act.next(1), N: () => act.next(1), p: () => act.next(-1), P: () => act.next(-1),
      f: () => map.selected >= 0 && map.frame(map.selected), F: () => map.selected >= 0 && map.frame(map.selected),
      Escape: () => act.select(-1, null),
    };
    if (!Object.hasOwn(keys, event.key)) return;
    event.preventDefault();
    keys[event.key]();
  });
}

// Dragging a plot pans in time; a click chooses a moment.
function plotGestures(canvas, map, view, choose) {
  let from = null, moved = false;
  canvas.addEventListener("pointerdown", event => { canvas.setPointerCapture(event.pointerId); from = event.clientX; moved = false; });
  canvas.addEventListener("pointermove", event => {
    if (from === null || (!moved && Math.abs(event.clientX - from) < 4)) return;
    moved = true;
    view.pan(-(event.clientX - from) * map.scale / map.perX, 0);
    from = event.clientX;
  });
  canvas.addEventListener("pointerup", event => {
    if (from !== null && !moved && choose) choose(map.point(event.clientX - canvas.getBoundingClientRect().left, 0)[0]);
    from = null;
  });
}
