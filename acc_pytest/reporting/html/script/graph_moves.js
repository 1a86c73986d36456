/* Moving in the graph: pointer, wheel, fingers and keys. */

const ZOOM = { least: 0.02, most: 2.5 };

/** What the focus is at: an operator or the head of a box. */
function focusFrame({ box, operator }) {
  return operator >= 0 ? frameOf(operator) : { x: 0, y: graph.boxes[box].y, width: graph.boxes[box].width, height: SCENE.head };
}

/** The view with the focus in the middle, but for what lies beside its box. */
function centreOf(focus) {
  const frame = focusFrame(focus), { view, size } = graph;
  const rest = Math.max(0, (graph.boxes[focus.box].width + 40 / view.k - size.width / view.k) / 2);
  return { x: Math.max(-rest, Math.min(rest, frame.x)), y: frame.y + frame.height / 2, k: view.k };
}

/** The view moved as little as needed for a frame to be in sight, beside the panel of details. */
function seen(frame) {
  const { view, size } = graph, margin = 26 / view.k;
  const covered = $("details").hidden ? 0
    : Math.max(0, graph.canvas.getBoundingClientRect().right - $("details").getBoundingClientRect().left);
  const half = { x: size.width / 2 / view.k, y: size.height / 2 / view.k };
  const free = covered < size.width - 200 ? covered / view.k : 0;
  const left = frame.x - frame.width / 2 - margin, right = frame.x + frame.width / 2 + margin;
  const top = frame.y - margin - SCENE.head, bottom = frame.y + frame.height + margin;
  const x = Math.min(Math.max(view.x, right - half.x + free), left + half.x);
  const y = Math.min(Math.max(view.y, bottom - half.y), top + half.y);
  return { x, y, k: view.k };
}

/** Go to a view, in steps unless the reader wants no motion. */
function look(goal, moving = true) {
  cancelAnimationFrame(graph.flight);
  const from = { ...graph.view }, begun = performance.now();
  if (!moving || matchMedia("(prefers-reduced-motion: reduce)").matches) {
    Object.assign(graph.view, goal);
    drawGraph();
    return;
  }
  const step = (now) => {
    const share = Math.min(1, Math.max(0, now - begun) / 180), eased = 1 - (1 - share) ** 3;
    for (const name of ["x", "y", "k"]) graph.view[name] = from[name] + (goal[name] - from[name]) * eased;
    drawGraph();
    if (share < 1) graph.flight = requestAnimationFrame(step);
  };
  graph.flight = requestAnimationFrame(step);
}

/** Zoom about a point of the canvas, its middle if none is given. */
function zoomGraph(factor, x = graph.size.width / 2, y = graph.size.height / 2, moving = true) {
  const { view, size } = graph;
  const k = Math.max(Math.min(ZOOM.least, size.height / graph.height), Math.min(ZOOM.most, view.k * factor));
  const worldX = view.x + (x - size.width / 2) / view.k, worldY = view.y + (y - size.height / 2) / view.k;
  look({ x: worldX - (x - size.width / 2) / k, y: worldY - (y - size.height / 2) / k, k }, moving);
}

function fitGraph() {
  const wide = graph.boxes.reduce((most, box) => Math.max(most, box.width), 0);
  const k = Math.min(1.2, (graph.size.height - 24) / graph.height, (graph.size.width - 60) / wide);
  look({ x: 0, y: graph.height / 2, k });
}

/** Keep some of the chain in sight. */
function panGraph(x, y) {
  const { view, size } = graph;
  const wide = graph.boxes.reduce((most, box) => Math.max(most, box.width), 0) / 2;
  cancelAnimationFrame(graph.flight);
  view.x = Math.max(-wide - size.width / 4 / view.k, Math.min(wide + size.width / 4 / view.k, view.x + x / view.k));
  view.y = Math.max(-size.height / 4 / view.k, Math.min(graph.height + size.height / 4 / view.k, view.y + y / view.k));
  drawGraph();
}

/** What is at a point of the canvas: { box, operator }, or null. */
function hit(x, y) {
  const { view, size } = graph;
  const worldX = view.x + (x - size.width / 2) / view.k, worldY = view.y + (y - size.height / 2) / view.k;
  const box = graph.boxes.find((one) => worldY >= one.y && worldY <= one.y + one.height);
  if (box === undefined || Math.abs(worldX) > box.width / 2) return null;
  if (box.alone) return { box: box.number, operator: box.members[0] };
  const head = box.open ? headOf(box, view.y - size.height / 2 / view.k) : box.y;
  if (!box.open || (worldY >= head && worldY < head + SCENE.head - 4)) return { box: box.number, operator: -1 };
  const top = topOf(box), pitch = CELL.height + CELL.down;
  const line = Math.floor((worldY - top) / pitch);
  if (worldY - top - line * pitch > CELL.height) return null;
  const at = (box.layout.rows[line] ?? []).find((one) => Math.abs(box.layout.x[one] - worldX) <= CELL.width / 2);
  return at === undefined ? null : { box: box.number, operator: box.members[at] };
}

/** The lines of the tip: of an operator its worst row with number and bound, of a box its counts. */
function graphLines({ box, operator }) {
  if (operator < 0) {
    const { name, members, counts, open } = graph.boxes[box];
    const many = VERDICTS.filter((verdict) => counts[verdict]).map((verdict) => `${say(verdict)} ${count(counts[verdict])}`);
    const found = graph.matched === null ? [] : [say("graph_found", count(graph.boxes[box].found))];
    return [name, ...found, `${say("graph_operators", count(members.length))}: ${many.join(", ")}`, say(open ? "graph_to_fold" : "graph_to_open")];
  }
  const one = graph.operators[operator], place = one.worst;
  const because = rows.text("because", place);
  const metric = rows.metrics.find(({ name }) => name === because && name);
  const lines = rowLines(place);
  if (metric && rows.metrics[state.metric] !== metric) {
    const name = metric.fromOne ? say("from_one", metric.name) : metric.name;
    const allowed = rows.value(metric.allowed[place]);
    lines.push(`${name}: ${short(rows.value(metric.values[place]))}${allowed === null ? "" : ` (${say("allowed")} ${short(allowed)})`}`);
  }
  if (one.root >= 0) lines.push(say("root_n", one.root + 1));
  if (one.places.length > 1) lines.push(say("graph_worst_of", count(one.places.length)));
  return lines;
}

/** Tell a screen reader what has the focus. */
function sayFocus() {
  $("graph-status").textContent = graphLines(graph.focus).join(". ");
}

function graphEvents() {
  const at = (event) => {
    const frame = graph.canvas.getBoundingClientRect();
    return [event.clientX - frame.left, event.clientY - frame.top];
  };
  return {
    pointerdown: (event) => {
      graph.canvas.setPointerCapture(event.pointerId);
      const [x, y] = at(event);
      graph.pointers.set(event.pointerId, [x, y]);
      graph.moved = false;
      graph.inStrip = x > graph.size.width - SCENE.strip - 12 && graph.height * graph.view.k > graph.size.height;
      if (graph.inStrip) stripTo(y);
      tip([]);
    },
    pointermove: (event) => {
      const [x, y] = at(event), from = graph.pointers.get(event.pointerId);
      if (from === undefined) {
        hoverAt(event, x, y);
        return;
      }
      if (graph.inStrip) stripTo(y);
      else if (graph.pointers.size === 2) pinch(event.pointerId, x, y);
      else if (graph.moved || Math.hypot(x - from[0], y - from[1]) > 4) {
        panGraph(from[0] - x, from[1] - y);
        graph.moved = true;
      } else return;
      graph.pointers.set(event.pointerId, [x, y]);
    },
    pointerup: (event) => {
      const click = graph.pointers.size === 1 && !graph.moved && !graph.inStrip;
      graph.pointers.delete(event.pointerId);
      if (click) choose(hit(...at(event)));
    },
    pointercancel: (event) => graph.pointers.delete(event.pointerId),
    pointerleave: () => {
      graph.hover = null;
      tip([]);
      drawGraph();
    },
    focus: () => drawGraph(),
    blur: () => {
      tip([]);
      drawGraph();
    },
    keydown: keysInGraph,
  };
}

function hoverAt(event, x, y) {
  const found = hit(x, y), before = graph.hover;
  graph.canvas.style.cursor = found === null ? "grab" : "pointer";
  if (found?.operator !== before?.operator || found?.box !== before?.box) {
    graph.hover = found;
    drawGraph();
  }
  tip(found === null ? [] : graphLines(found), event.clientX, event.clientY);
}

/** Where the overview was touched comes into the middle. */
function stripTo(y) {
  cancelAnimationFrame(graph.flight);
  graph.view.y = (y - 4) / (graph.size.height - 8) * graph.height;
  graph.moved = true;
  drawGraph();
}

function pinch(pointer, x, y) {
  const [other] = [...graph.pointers].filter(([one]) => one !== pointer).map(([, spot]) => spot);
  const from = graph.pointers.get(pointer);
  const before = Math.hypot(from[0] - other[0], from[1] - other[1]), now = Math.hypot(x - other[0], y - other[1]);
  graph.moved = true;
  if (before > 10) zoomGraph(now / before, (x + other[0]) / 2, (y + other[1]) / 2, false);
  panGraph((from[0] - x) / 2, (from[1] - y) / 2);
}

/** The wheel zooms with Ctrl; without it moves the graph while it has the focus, and the page otherwise. */
function wheelGraph(event) {
  const scale = event.deltaMode === 1 ? 30 : 1;
  if (event.ctrlKey || event.metaKey) {
    const frame = graph.canvas.getBoundingClientRect();
    zoomGraph(Math.exp(-event.deltaY * scale / 300), event.clientX - frame.left, event.clientY - frame.top, false);
  } else if (document.activeElement === graph.canvas) {
    panGraph(event.deltaX * scale, event.deltaY * scale);
  } else return;
  tip([]);
  event.preventDefault();
}

/** A click or Enter: a box opens or folds, an operator shows its worst row in table and panel. */
function choose(found) {
  if (found === null) return;
  graph.focus = found;
  if (found.operator < 0) toggleBox(graph.boxes[found.box]);
  else {
    drawGraph();
    const { rootPlace, worst } = graph.operators[found.operator];
    openRow(rootPlace < 0 ? worst : rootPlace);
  }
}

/** The keyboard: arrows go along edges, from box to box and from neighbour to neighbour. */
function keysInGraph(event) {
  const { focus, boxes } = graph, box = boxes[focus.box];
  const inside = focus.operator >= 0 && !box.alone;
  const keys = {
    ArrowDown: () => goTo(inside ? along(1) : box.open && !box.alone ? { box: box.number, operator: box.members[box.layout.rows[0][0]] } : boxAt(focus.box + 1)),
    ArrowUp: () => goTo(inside ? along(-1) : boxAt(focus.box - 1, true)),
    ArrowRight: () => (inside ? goTo(beside(1)) : !box.alone && !box.open && toggleBox(box, true)),
    ArrowLeft: () => (inside ? goTo(beside(-1)) : !box.alone && box.open && toggleBox(box, false)),
    Enter: () => choose(focus),
    " ": () => choose(focus),
    Home: () => goTo(boxAt(0)),
    End: () => goTo(boxAt(boxes.length - 1)),
    PageDown: () => goTo(boxAt(Math.min(boxes.length - 1, focus.box + 1))),
    PageUp: () => goTo(boxAt(Math.max(0, focus.box - 1))),
    "+": () => zoomGraph(1.35),
    "=": () => zoomGraph(1.35),
    "-": () => zoomGraph(1 / 1.35),
    0: fitGraph,
  };
  const pans = { ArrowDown: [0, 80], ArrowUp: [0, -80], ArrowLeft: [-80, 0], ArrowRight: [80, 0] };
  if (event.altKey || event.ctrlKey || event.metaKey) return;
  if (event.shiftKey && event.key in pans) panGraph(...pans[event.key]);
  else if (event.key === "Escape") {
    if (!leave(box)) return;
    event.stopPropagation();
  } else if (event.key in keys) keys[event.key]();
  else return;
  event.preventDefault();
}

/** Escape: fold the box one is in; else follow no root; else it is for the panel. */
function leave(box) {
  if (box.open && !box.alone) toggleBox(box, false);
  else if (graph.root >= 0) {
    followRoot(-1);
    drawGraphControls();
  } else return false;
  look(seen(focusFrame(graph.focus)));
  return true;
}

function goTo(focus) {
  if (!focus) return;
  graph.focus = focus;
  look(seen(focusFrame(focus)));
  sayFocus();
}

/** The place of a box on the chain; of one that is open the last operator, when one comes from below. */
function boxAt(number, fromBelow = false) {
  const box = graph.boxes[number];
  if (box === undefined) return null;
  const last = box.open && fromBelow && !box.alone ? box.members[box.layout.rows.at(-1)[0]] : -1;
  return { box: number, operator: box.alone ? box.members[0] : last };
}

/** The next operator along an edge, one that a difference travels on first; past the last one the next box. */
function along(way) {
  const { edges, focus } = graph, box = graph.boxes[focus.box];
  const [near, far] = way > 0 ? [edges.from, edges.to] : [edges.to, edges.from];
  const found = [...box.edges, ...box.outer].filter((edge) => near[edge] === focus.operator);
  const inBox = (edge) => graph.boxOf[far[edge]] === focus.box;
  found.sort((one, other) => inBox(other) - inBox(one) || edges.bad[other] - edges.bad[one] || way * (far[one] - far[other]));
  if (found.length === 0) return way > 0 ? boxAt(focus.box + 1) : { box: focus.box, operator: -1 };
  const operator = far[found[0]], number = graph.boxOf[operator];
  return { box: number, operator: inTheOpen(operator) || graph.boxes[number].alone ? operator : -1 };
}

/** The neighbour in the same row. */
function beside(way) {
  const box = graph.boxes[graph.focus.box], at = graph.localOf[graph.focus.operator];
  const line = box.layout.rows[box.layout.row[at]], next = line[line.indexOf(at) + way];
  return next === undefined ? null : { box: box.number, operator: box.members[next] };
}
