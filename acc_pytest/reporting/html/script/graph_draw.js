/* The graph on its canvas: only what is in sight is drawn, and less of it from afar. */

const SCENE = { head: 44, pad: 22, gap: 30, narrow: 312, strip: 12, lines: 0.6, text: 0.27, marks: 0.16, rows: 0.02 };
/* A box: height when folded, padding, gap to the next, least width; the overview at the right; the zoom below
   which operators have one line, no text, no edges, and are no longer drawn. */

/** Lay the chain of boxes out: those that are open hold their operators. */
function placeBoxes() {
  let y = 0;
  graph.boxes.forEach((box) => {
    const alone = box.members.length === 1;
    box.y = y;
    box.alone = alone;
    if (box.open && !alone && box.layout === null) box.layout = layOut(box);
    const inner = box.open && !alone ? box.layout : null;
    box.width = inner ? Math.max(SCENE.narrow, inner.width + 2 * SCENE.pad) : SCENE.narrow;
    box.height = inner ? SCENE.head + inner.height + 2 * SCENE.pad - 8 : SCENE.head;
    y += box.height + SCENE.gap;
  });
  graph.height = y - SCENE.gap;
}

/** The layout of one box, made when it is first opened. Edges of the boxes before and after pass its rim. */
function layOut(box) {
  const { from, to } = graph.edges;
  const ends = (edges, side) => edges.map((edge) => graph.localOf[side[edge]]);
  const once = (locals) => [...new Set(locals)];
  const first = once(ends(box.before, to)), last = once(ends(box.after, from));
  const made = layered(box.members.length, ends(box.edges, from), ends(box.edges, to), first, last);
  made.enter = new Map(first.map((local, at) => [local, made.enter[at]]));
  made.leave = new Map(last.map((local, at) => [local, made.leave[at]]));
  return made;
}

/** Whether an operator has a place of its own now, or stands in a folded box. */
function inTheOpen(operator) {
  const box = graph.boxes[graph.boxOf[operator]];
  return box.open && !box.alone;
}

/** Where the rows of an open box begin. */
function topOf(box) {
  return box.y + SCENE.head + SCENE.pad - 8;
}

/** The rectangle of an operator, or of the box that it is folded into: { x, y, width, height }, x its centre. */
function frameOf(operator) {
  const box = graph.boxes[graph.boxOf[operator]];
  if (!inTheOpen(operator)) return { x: 0, y: box.y, width: box.width, height: SCENE.head };
  const at = graph.localOf[operator];
  return {
    x: box.layout.x[at], y: topOf(box) + box.layout.y[at], width: CELL.width, height: CELL.height,
  };
}

let palette = { key: "", colours: {} };

/** A colour of the theme, looked up once. */
function ink(name) {
  const key = `${state.theme} ${matchMedia("(prefers-color-scheme: dark)").matches}`;
  if (palette.key !== key) palette = { key, colours: {} };
  return palette.colours[name] ??= colour(name);
}

/** Fill, text and edge of what has this verdict: the colours of the heat map. */
function looks(place) {
  const verdict = rows.verdict(place);
  const share = rows.closeness(place) ?? 0;
  switch (verdict) {
    case "fail": return share >= 100 || !(share < Infinity) ? ["heat-5", "on-heat", "fail"] : ["heat-4", "on-heat", "fail"];
    case "inherited": return ["heat-2", "ink", "inherited"];
    case "incomparable": return ["raised", "ink", "incomparable"];
    case "known": return ["raised", "ink", "known"];
    case "tie": return ["raised", "ink", "tie"];
    default: return [share >= 0.1 ? "heat-1" : "heat-0", "ink", "pass"];
  }
}

function drawGraph() {
  if (graph.frame) return;
  graph.frame = requestAnimationFrame(() => {
    graph.frame = 0;
    paintGraph();
  });
}

function paintGraph() {
  const { canvas, view } = graph;
  if (canvas === null || graph.boxes.length === 0) return;
  const ratio = devicePixelRatio || 1, { width, height } = graph.size;
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
  }
  const pen = canvas.getContext("2d");
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.fillStyle = ink("raised");
  pen.fillRect(0, 0, width, height);
  pen.translate(width / 2, height / 2);
  pen.scale(view.k, view.k);
  pen.translate(-view.x, -view.y);
  const sight = {
    left: view.x - width / 2 / view.k, right: view.x + width / 2 / view.k,
    top: view.y - height / 2 / view.k, bottom: view.y + height / 2 / view.k,
  };
  const shown = graph.boxes.filter((box) => box.y < sight.bottom && box.y + box.height > sight.top);
  for (const box of shown) drawBox(pen, box);
  if (view.k >= SCENE.marks) drawOuterEdges(pen, shown);
  for (const box of shown) {
    if (!box.open || box.alone) continue;
    drawInside(pen, box, sight);
    drawOpenHead(pen, box, sight);
  }
  for (const box of shown) if (!box.open || box.alone) drawFolded(pen, box);
  drawAccents(pen);
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  drawOverview(pen);
  canvas.dataset.painted = String(Number(canvas.dataset.painted ?? 0) + 1);
}

/** Whether an operator stands back: not found by the filters, or not of the root that is followed. */
function faint(operator) {
  if (graph.followed !== null && !graph.followed.has(operator)) return true;
  return graph.matched !== null && !graph.matched.has(operator);
}

function drawBox(pen, box) {
  if (!box.open || box.alone) return;
  pen.fillStyle = ink("paper");
  outline(pen, box);
  round(pen, -box.width / 2, box.y, box.width, box.height, 10);
  pen.fill();
  pen.stroke();
}

/** The head of an open box, which stays in sight as long as anything of the box is. */
function drawOpenHead(pen, box, sight) {
  if (graph.view.k < SCENE.marks) return;
  const y = headOf(box, sight.top);
  if (y > box.y) {
    pen.fillStyle = ink("paper");
    pen.fillRect(-box.width / 2 + 1, y, box.width - 2, SCENE.head - 6);
    pen.fillStyle = ink("line");
    pen.fillRect(-box.width / 2 + 1, y + SCENE.head - 6, box.width - 2, 1);
  }
  const left = Math.max(-box.width / 2, sight.left), right = Math.min(box.width / 2, sight.right - (SCENE.strip + 8) / graph.view.k);
  if (right - left > 120) drawHead(pen, box, left, right, "▾", y);
}

/** The top of the head of an open box when `top` is the top of what is in sight. */
function headOf(box, top) {
  return Math.max(box.y, Math.min(top, box.y + box.height - SCENE.head));
}

/** How much larger the texts of boxes are when one is far away, to be read longer. */
const growth = () => Math.max(1, Math.min(1.9, 0.75 / graph.view.k));

/** Name, counts and root of a box. */
function drawHead(pen, box, left, end, arrow, y = box.y) {
  const middle = y + SCENE.head / 2 - 2;
  pen.textBaseline = "middle";
  pen.textAlign = "left";
  pen.fillStyle = ink("muted");
  const grown = growth();
  pen.font = font(11 * grown);
  pen.fillText(arrow, left + 14, middle);
  let right = end - 12;
  pen.textAlign = "right";
  if (box.root >= 0) right = flag(pen, right, middle, box.root, box.roots - 1) - 8;
  right = drawCounts(pen, box, right, middle);
  pen.textAlign = "left";
  pen.fillStyle = ink("ink");
  pen.font = font(13 * grown, 650);
  pen.fillText(clipped(pen, box.name, right - left - 20 - 15 * grown), left + 16 + 15 * grown, middle);
}

/** How many operators of a box have which verdict, or were found; returns where the text begins. */
function drawCounts(pen, box, right, middle) {
  const parts = graph.matched === null
    ? ["pass", "known", "tie", "incomparable", "inherited", "fail"].filter((verdict) => box.counts[verdict])
      .map((verdict) => [verdict, `${MARKS[verdict]} ${count(box.counts[verdict])}`])
    : [[box.found ? "accent" : "muted", say("graph_found", count(box.found))]];
  pen.font = font(12 * growth());
  for (const [name, text] of parts) {
    pen.fillStyle = ink(name);
    pen.fillText(text, right, middle);
    right -= pen.measureText(text).width + 10;
  }
  return right;
}

/** A box that is folded, or an operator outside of every layer. */
function drawFolded(pen, box) {
  const { y, width } = box, left = -width / 2, afar = graph.view.k < SCENE.marks;
  const operator = graph.operators[box.members[0]];
  const dim = box.members.every(faint);
  pen.globalAlpha = dim ? 0.38 : 1;
  if (box.alone) {
    drawOperator(pen, operator, 0, y + 2, width, SCENE.head - 4);
    pen.globalAlpha = 1;
    return;
  }
  pen.fillStyle = ink(afar ? looks(box.worst)[0] : "paper");
  outline(pen, box);
  round(pen, left, y, width, SCENE.head, 10);
  pen.fill();
  pen.save();
  pen.clip();
  drawShares(pen, box, left, y + SCENE.head - 6, width, 6);
  pen.restore();
  pen.stroke();
  if (!afar) drawHead(pen, box, left, -left, "▸");
  pen.globalAlpha = 1;
}

/** The rim of a box says its worst verdict. */
function outline(pen, box) {
  const [, , edge] = looks(box.worst);
  pen.strokeStyle = ink(box.root >= 0 ? "fail" : edge === "pass" ? "strong-line" : edge);
  pen.lineWidth = box.root >= 0 ? 2 : 1.2;
}

/** How much of a box has which verdict, as a bar. */
function drawShares(pen, box, left, top, width, height) {
  let at = left;
  for (const [verdict, name] of [["fail", "heat-4"], ["incomparable", "incomparable"], ["inherited", "heat-3"], ["known", "known"], ["tie", "tie"], ["pass", "heat-1"]]) {
    const part = (box.counts[verdict] ?? 0) / box.members.length * width;
    if (part === 0) continue;
    pen.fillStyle = ink(name);
    pen.fillRect(at, top, Math.max(part, 3), height);
    at += part;
  }
}

function drawInside(pen, box, sight) {
  if (graph.view.k < SCENE.marks) {
    drawAfar(pen, box);
    return;
  }
  const { layout, members } = box, top = topOf(box);
  const pitch = CELL.height + CELL.down;
  const first = Math.max(0, Math.floor((sight.top - top) / pitch) - 1);
  const last = Math.min(layout.rows.length - 1, Math.ceil((sight.bottom - top) / pitch));
  box.edges.forEach((edge, at) => {
    const from = graph.localOf[graph.edges.from[edge]], to = graph.localOf[graph.edges.to[edge]];
    if (layout.row[to] < first || layout.row[from] > last) return;
    pen.beginPath();
    route(pen, layout, top, from, to, layout.bends[at]);
    strokeEdge(pen, edge);
  });
  for (let line = first; line <= last; line += 1) {
    for (const at of layout.rows[line]) {
      pen.globalAlpha = faint(members[at]) ? 0.38 : 1;
      drawOperator(pen, graph.operators[members[at]], layout.x[at], top + layout.y[at], CELL.width, CELL.height);
    }
  }
  pen.globalAlpha = 1;
}

/** From afar: operators without edges and text, all of one colour at once; from farther only the shares. */
function drawAfar(pen, box) {
  if (graph.view.k < SCENE.rows) {
    drawShares(pen, box, -box.width / 2, box.y, box.width, box.height);
    return;
  }
  if (box.afar?.shade !== graph.shade) {
    const paths = new Map();
    box.members.forEach((operator, at) => {
      const key = `${faint(operator) ? 0.38 : 1} ${looks(graph.operators[operator].worst)[0]}`;
      if (!paths.has(key)) paths.set(key, new Path2D());
      paths.get(key).rect(box.layout.x[at] - CELL.width / 2, box.layout.y[at], CELL.width, CELL.height);
    });
    box.afar = { shade: graph.shade, paths };
  }
  pen.translate(0, topOf(box));
  for (const [key, path] of box.afar.paths) {
    const [alpha, name] = key.split(" ");
    pen.globalAlpha = Number(alpha);
    pen.fillStyle = ink(name);
    pen.fill(path);
  }
  pen.globalAlpha = 1;
  pen.translate(0, -topOf(box));
  for (const operator of box.members) if (graph.operators[operator].root >= 0) markRoot(pen, frameOf(operator));
}

/** Where a root is, as large as can be seen from afar. */
function markRoot(pen, { x, y, height }) {
  const size = 5 / graph.view.k;
  pen.fillStyle = ink("fail");
  diamond(pen, x + CELL.width / 2 + size * 1.5, y + height / 2, size);
  pen.fill();
}

/** The way of an edge inside a box, through its bends. */
function route(pen, layout, top, from, to, bends) {
  pen.moveTo(layout.x[from], top + layout.y[from] + CELL.height);
  passRows(pen, top, layout.row[from], layout.x[from], bends, { x: layout.x[to], y: top + layout.y[to] });
}

/** From the bottom of a row through bends in the rows below it to `end`. */
function passRows(pen, top, row, x, bends, end, y = top + row * (CELL.height + CELL.down) + CELL.height) {
  const pitch = CELL.height + CELL.down;
  bends.forEach((bend, at) => {
    const line = top + (row + 1 + at) * pitch;
    curve(pen, x, y, bend, line);
    pen.lineTo(bend, line + CELL.height);
    [x, y] = [bend, line + CELL.height];
  });
  curve(pen, x, y, end.x, end.y);
}

function curve(pen, x, y, toX, toY) {
  const middle = (y + toY) / 2;
  pen.bezierCurveTo(x, middle, toX, middle, toX, toY);
}

/** An edge as what it carries: a difference, nothing, or only a guess by the order of execution. */
function strokeEdge(pen, edge, far = false) {
  const { from, to, bad, guessed } = graph.edges;
  const at = graph.focus.operator;
  const near = at >= 0 && (from[edge] === at || to[edge] === at);
  const dim = faint(from[edge]) || faint(to[edge]);
  pen.strokeStyle = ink(bad[edge] ? (near || !dim ? "fail" : "strong-line") : near ? (far ? "muted" : "ink") : "strong-line");
  pen.lineWidth = near ? (far ? 1.4 : 2.2) : bad[edge] && !dim ? 1.8 : 1.2;
  pen.globalAlpha = dim && !near ? 0.4 : bad[edge] || near ? 0.85 : 1;
  pen.setLineDash(guessed[edge] ? [4, 4] : []);
  pen.stroke();
  pen.setLineDash([]);
  pen.globalAlpha = 1;
}

/**
 * Edges between boxes: to the next box always, and in open boxes through their rows; to farther ones along the
 * side where they are few, and for what has the focus.
 */
function drawOuterEdges(pen, shown) {
  const edges = new Set(shown.flatMap((box) => box.outer));
  const { from, to, bad } = graph.edges, { focus } = graph;
  const near = (edge) => (focus.operator >= 0 ? from[edge] === focus.operator || to[edge] === focus.operator
    : graph.boxOf[from[edge]] === focus.box || graph.boxOf[to[edge]] === focus.box);
  const loud = (edge) => (focus.operator >= 0 && near(edge) ? 2 : 0) + bad[edge] - (faint(from[edge]) || faint(to[edge]) ? 4 : 0);
  const drawn = new Set();
  for (const edge of [...edges].sort((one, other) => loud(other) - loud(one))) {
    const far = graph.boxOf[to[edge]] - graph.boxOf[from[edge]];
    if (far === 1) drawNextEdge(pen, edge, drawn);
    else if ((far <= 3 && !graph.crowded) || near(edge)) drawFarEdge(pen, edge, drawn);
  }
}

/** From an operator to the rim, from rim to rim, from the rim to an operator: each piece once. */
function drawNextEdge(pen, edge, drawn) {
  const from = graph.edges.from[edge], to = graph.edges.to[edge];
  const above = graph.boxes[graph.boxOf[from]], below = graph.boxes[graph.boxOf[to]];
  const piece = (key, way) => {
    if (drawn.has(key)) return;
    drawn.add(key);
    pen.beginPath();
    way();
    strokeEdge(pen, edge);
  };
  const start = { x: 0, y: above.y + (above.alone ? SCENE.head - 2 : above.height) };
  const end = { x: 0, y: below.y + (below.alone ? 2 : 0) };
  if (inTheOpen(from)) {
    start.x = above.layout.bottom;
    const at = graph.localOf[from], top = topOf(above);
    piece(`leave ${from}`, () => {
      pen.moveTo(above.layout.x[at], top + above.layout.y[at] + CELL.height);
      passRows(pen, top, above.layout.row[at], above.layout.x[at], above.layout.leave.get(at), start);
    });
  }
  if (inTheOpen(to)) {
    end.x = below.layout.top;
    const at = graph.localOf[to], top = topOf(below);
    piece(`enter ${to}`, () => {
      const head = below.y + SCENE.head - 8; // edges pass behind the head
      pen.moveTo(end.x, head);
      passRows(pen, top, -1, end.x, below.layout.enter.get(at), { x: below.layout.x[at], y: top + below.layout.y[at] }, head);
    });
  }
  piece(`next ${above.number}`, () => {
    pen.moveTo(start.x, start.y);
    curve(pen, start.x, start.y, end.x, end.y);
  });
}

function drawFarEdge(pen, edge, drawn) {
  const from = graph.edges.from[edge], to = graph.edges.to[edge], a = graph.boxOf[from], b = graph.boxOf[to];
  const key = `${inTheOpen(from) ? from : `box ${a}`} to ${inTheOpen(to) ? to : `box ${b}`}`;
  if (drawn.has(key)) return;
  drawn.add(key);
  const start = frameOf(from), end = frameOf(to);
  const rail = graph.boxes.slice(a, b + 1).reduce((most, box) => Math.max(most, box.width / 2), 0) + 14 + 8 * Math.min(6, b - a);
  const y = start.y + start.height / 2, endY = end.y + end.height / 2, turn = Math.min(30, (endY - y) / 2);
  pen.beginPath();
  pen.moveTo(start.x + start.width / 2, y);
  pen.bezierCurveTo(rail, y, rail, y, rail, y + turn);
  pen.lineTo(rail, endY - turn);
  pen.bezierCurveTo(rail, endY, rail, endY, end.x + end.width / 2, endY);
  strokeEdge(pen, edge, true);
}

function drawOperator(pen, operator, x, y, width, height) {
  const [fill, text, edge] = looks(operator.worst), { k } = graph.view;
  pen.fillStyle = ink(fill);
  pen.strokeStyle = ink(operator.root >= 0 ? "fail" : edge);
  pen.lineWidth = operator.root >= 0 ? 3 : edge === "pass" ? 0.8 : 1.3;
  round(pen, x - width / 2, y, width, height, 7);
  pen.fill();
  pen.stroke();
  if (k >= SCENE.lines) drawLabels(pen, operator, text, x, y, width, height);
  else if (k >= SCENE.text) {
    const size = Math.min(24, 11 / k); // as large as can be read
    pen.font = font(size, 600);
    pen.textAlign = "center";
    pen.textBaseline = "middle";
    pen.fillStyle = ink(text);
    pen.fillText(clipped(pen, `${MARKS[rows.verdict(operator.worst)]} ${typeOf(operator)}`, width - 8), x, y + height / 2);
  }
  if (operator.root >= 0) flag(pen, x + width / 2 + 6, y - 5, operator.root);
}

/** Mark, type and number of an operator, and below them its name. */
function drawLabels(pen, operator, text, x, y, width, height) {
  const left = x - width / 2 + 10, room = width - 20, line = y + height * 0.32;
  const share = rows.verdict(operator.worst) === "incomparable" ? null : rows.closeness(operator.worst);
  const number = share !== null && !(share < 1) ? times(share) : "";
  pen.textBaseline = "middle";
  pen.fillStyle = ink(text);
  pen.font = font(11);
  pen.textAlign = "right";
  if (number) pen.fillText(number, x + width / 2 - 9, line);
  pen.textAlign = "left";
  pen.fillText(MARKS[rows.verdict(operator.worst)], left, line);
  pen.font = font(12, 600);
  pen.fillText(clipped(pen, typeOf(operator), room - 15 - (number ? 8 + 6.5 * number.length : 0)), left + 15, line);
  pen.font = font(11);
  pen.globalAlpha *= 0.86;
  pen.fillText(clipped(pen, shortName(operator), room), left, y + height * 0.72);
  pen.globalAlpha /= 0.86;
}

/** The flag of a root (and so many others), its right end at x; returns its left end. */
function flag(pen, x, middle, root, others = 0) {
  const grown = growth();
  pen.font = font(11 * grown, 600);
  const text = say("root_n", root + 1) + (others > 0 ? ` +${others}` : ""), width = pen.measureText(text).width + 12 * grown;
  pen.fillStyle = ink("fail");
  round(pen, x - width, middle - 9 * grown, width, 18 * grown, 9 * grown);
  pen.fill();
  pen.fillStyle = ink("paper");
  pen.textAlign = "center";
  pen.textBaseline = "middle";
  pen.fillText(text, x - width / 2, middle + 0.5);
  pen.textAlign = "right";
  return x - width;
}

/** Rings around what the keyboard is at, what the pointer is over, and what is open in the panel. */
function drawAccents(pen) {
  const ring = (frame, name, width) => {
    pen.strokeStyle = ink(name);
    pen.lineWidth = width / Math.min(1, Math.max(graph.view.k, 0.2));
    round(pen, frame.x - frame.width / 2 - 4, frame.y - 4, frame.width + 8, frame.height + 8, 11);
    pen.stroke();
  };
  const { focus, hover } = graph;
  if (hover !== null) ring(focusFrame(hover), "muted", 1.5);
  const open = state.row === null ? -1 : graph.atRow(state.row);
  if (open >= 0) ring(frameOf(open), "ink", 2.5);
  if (document.activeElement === graph.canvas) ring(focusFrame(focus), "accent", 2.5);
  for (const at of [focus.operator, open]) {
    if (at < 0 || graph.operators[at].root < 0 || !inTheOpen(at) || graph.view.k < SCENE.marks) continue;
    const { x, y } = frameOf(at); // the ring went over it
    flag(pen, x + CELL.width / 2 + 6, y - 5, graph.operators[at].root);
  }
}

/** The whole chain at the right edge, with the part in sight. */
function drawOverview(pen) {
  const { width, height } = graph.size, { view } = graph;
  if (graph.height * view.k <= height) return;
  const left = width - SCENE.strip - 4, scale = (height - 8) / graph.height;
  pen.fillStyle = ink("line");
  pen.fillRect(left, 4, SCENE.strip, height - 8);
  for (const box of graph.boxes) {
    const tall = Math.max(1, (box.height + SCENE.gap * 0.6) * scale - (scale > 0.06 ? 1 : 0));
    drawShares(pen, box, left, 4 + box.y * scale, SCENE.strip, tall);
  }
  for (const box of graph.boxes) {
    if (box.root < 0) continue;
    pen.fillStyle = ink("fail");
    const y = 4 + (box.y + box.height / 2) * scale;
    pen.beginPath();
    pen.moveTo(left - 2, y);
    pen.lineTo(left - 9, y - 5);
    pen.lineTo(left - 9, y + 5);
    pen.fill();
  }
  const top = 4 + (view.y - height / 2 / view.k) * scale, tall = height / view.k * scale;
  pen.strokeStyle = ink("ink");
  pen.lineWidth = 1.5;
  pen.strokeRect(left - 1.5, Math.max(2, top), SCENE.strip + 3, Math.min(height - 4, top + Math.max(6, tall)) - Math.max(2, top));
}

function round(pen, x, y, width, height, radius) {
  pen.beginPath();
  pen.roundRect(x, y, width, height, radius);
}

const font = (size, weight = 400) => `${weight} ${size}px system-ui, -apple-system, "Segoe UI", "Noto Sans", sans-serif`;

const widths = new Map();

/** The text, or as much of it as has room. */
function clipped(pen, text, room) {
  const key = `${pen.font} ${Math.round(room)} ${text}`;
  let found = widths.get(key);
  if (found !== undefined) return found;
  found = text;
  if (pen.measureText(text).width > room) {
    let low = 0, high = text.length;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (pen.measureText(`${text.slice(0, middle)}…`).width <= room) low = middle;
      else high = middle - 1;
    }
    found = `${text.slice(0, low)}…`;
  }
  if (widths.size > 20000) widths.clear();
  widths.set(key, found);
  return found;
}

/** What an operator is: its type without the word that all have, or what the run was given. */
function typeOf(operator) {
  if (operator.kind) return operator.kind;
  return (rows.text("type", operator.first) || rows.text("name", operator.first)).replace(/Operation$/, "") || "–";
}

/** Golden's module below the layer, where names are paths; else what the type does not say. Made once. */
function shortName(operator) {
  operator.short ??= nameBelowLayer(operator.first, operator.places);
  return operator.short;
}

function nameBelowLayer(place, places) {
  const name = rows.text("name", place), golden = rows.text("golden", place);
  const type = rows.text("type", place);
  if (rows.text("graph", place)) return [name, golden.split("-")[0], rows.text("shape", place)].find((text) => text && text !== type && text !== "[]") ?? "";
  const parts = golden.split(".");
  if (parts.length < 2) return name;
  const layer = parts.findIndex((part) => /^\d+$/.test(part)) + 1;
  const start = layer && layer < parts.length && /\.\d+$/.test(rows.text("layer", place)) ? layer : Number(parts[0] === "root");
  const others = new Set(places.map((one) => rows.texts.golden.codes[one])).size - 1;
  return parts.slice(start).join(".") + (others > 0 && others < 3 ? ` +${others}` : "");
}
