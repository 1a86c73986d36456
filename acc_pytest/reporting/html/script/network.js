/* Error along the network: one mark a comparison, in execution order, on a log scale with what is allowed. */

const PLOT = { height: 300, left: 56, right: 14, top: 34, bottom: 34, lane: 20, zero: 20 };
/* `lane` holds what has no number, `zero` what is exactly zero. */

const network = {
  places: new Int32Array(0),
  from: 0,
  to: 0, // the part of places that is drawn
  canvas: null,
  focus: -1, // position that the keyboard is at
  dragged: null,
};

function drawNetworkControls() {
  $("network-title").textContent = say(head.title === "opcheck" ? "network_title_checks" : "network_title");
  const metrics = rows.metrics.map((metric, place) => [
    place,
    place === 0 ? say("closeness") : metric.fromOne ? say("from_one", metric.name) : metric.name,
  ]);
  const steps = [["", say("all_steps")], ...distinct("step").map((step) => [step, stepText(step)])];
  const ranks = [["", say("all_ranks")], ...distinct("rank").map((rank) => [rank, rank])];
  replace(
    $("network-controls"),
    network.to - network.from < network.places.length
      ? make("button", { type: "button", text: say("zoom_out"), on: { click: () => zoom(0, network.places.length) } })
      : null,
    steps.length > 2 ? choice(say("step"), steps, state.step, (step) => change({ step })) : null,
    ranks.length > 2 ? choice(say("rank"), ranks, state.rank, (rank) => change({ rank })) : null,
    choice(say("choose_metric"), metrics, state.metric, (metric) => change({ metric: Number(metric) })),
  );
}

/** Take the rows of the chosen step in. */
function takeRows() {
  network.places = stepRows();
  network.from = 0;
  network.to = network.places.length;
  network.focus = -1;
}

function zoom(from, to) {
  network.from = from;
  network.to = to;
  drawNetworkControls();
  drawNetwork();
}

/** The plot's geometry: where a position and a code are drawn. */
function geometry() {
  const metric = rows.metrics[state.metric];
  const places = network.places.subarray(network.from, network.to);
  const span = decades(metric, places);
  const width = Math.max(280, $("network").clientWidth);
  const inner = { left: PLOT.left, right: width - PLOT.right, top: PLOT.top + PLOT.lane, bottom: PLOT.height - PLOT.bottom };
  const step = (inner.right - inner.left) / Math.max(1, places.length);
  const [low, high] = span ?? [0, 1];
  const floor = inner.bottom - PLOT.zero;
  const y = (decade) => floor - ((decade - low) / (high - low)) * (floor - inner.top - 6);
  return {
    metric, places, span, width, inner, step, low, high, y,
    x: (position) => inner.left + (position + 0.5) * step,
    height: (code) => {
      if (code === ZERO) return inner.bottom - 6;
      if (!plotted(code)) return PLOT.top + PLOT.lane / 2 - 4;
      return Math.max(inner.top, Math.min(floor, y(rows.decade(code))));
    },
  };
}

function drawNetwork() {
  const box = $("network");
  if (network.canvas === null) {
    network.canvas = make("canvas", { tabindex: "0", role: "application", on: networkEvents() });
    replace(box, network.canvas, make("div", { id: "network-status", class: "unseen", role: "status" }));
  }
  const canvas = network.canvas;
  canvas.setAttribute("aria-label", say("network_help"));
  const plot = geometry();
  const scale = devicePixelRatio || 1;
  canvas.width = Math.round(plot.width * scale);
  canvas.height = PLOT.height * scale;
  canvas.style.width = `${plot.width}px`;
  canvas.style.height = `${PLOT.height}px`;
  const pen = canvas.getContext("2d");
  pen.scale(scale, scale);
  pen.font = "11px system-ui, sans-serif";
  drawGrid(pen, plot);
  if (plot.span === null) {
    pen.fillStyle = colour("muted");
    pen.textAlign = "center";
    pen.fillText(say("nothing_here"), plot.width / 2, PLOT.height / 2);
  }
  drawAllowed(pen, plot);
  drawMarks(pen, plot);
  drawRootFlags(pen, plot);
  drawChosen(pen, plot);
}

function drawGrid(pen, plot) {
  const { inner, low, high } = plot;
  pen.strokeStyle = colour("line");
  pen.fillStyle = colour("muted");
  pen.textAlign = "right";
  pen.textBaseline = "middle";
  pen.lineWidth = 1;
  const every = Math.ceil((high - low) / 8);
  // Multiples of `every`, so that 1, which is the bound of shares, is among them.
  for (let decade = Math.floor(high / every) * every; plot.span !== null && decade >= low; decade -= every) {
    const y = Math.round(plot.y(decade)) + 0.5;
    line(pen, inner.left, y, inner.right, y);
    pen.fillText(powerOfTen(decade), inner.left - 8, y);
  }
  if (plot.places.some((place) => plot.metric.values[place] === ZERO)) pen.fillText(say("exactly_zero"), inner.left - 8, inner.bottom - 6);
  pen.textAlign = "left";
  pen.textBaseline = "top";
  const all = groups(plot.places);
  let free = -Infinity;
  for (const [position, name] of all) {
    const x = Math.round(inner.left + position * plot.step) + 0.5;
    const text = name.length > 18 ? `${name.slice(0, 17)}…` : name;
    const labelled = x > free;
    if (labelled || all.length < 200) line(pen, x, inner.bottom, x, inner.bottom + (labelled ? 6 : 3));
    if (!labelled) continue;
    const needed = pen.measureText(text).width;
    if (x + 4 + needed > plot.width) continue;
    pen.fillText(text, x + 4, inner.bottom + 6);
    free = x + needed + 18;
  }
  pen.textAlign = "right";
  pen.fillText(`${say("execution_order")} →`, inner.right, PLOT.height - 13);
  line(pen, inner.left, inner.bottom + 0.5, inner.right, inner.bottom + 0.5);
}

function line(pen, x1, y1, x2, y2) {
  pen.beginPath();
  pen.moveTo(x1, y1);
  pen.lineTo(x2, y2);
  pen.stroke();
}

/** What is allowed: a line where it is one value, steps where it differs from comparison to comparison. */
function drawAllowed(pen, plot) {
  const { metric, places, inner } = plot;
  if (plot.span === null) return;
  pen.strokeStyle = colour("allowed");
  pen.lineWidth = 2;
  pen.setLineDash([5, 3]);
  pen.beginPath();
  let last = null, drawn = false, lastX = -Infinity;
  for (let position = 0; position < places.length; position += 1) {
    const code = metric.allowed[places[position]];
    if (!plotted(code)) {
      last = null;
      continue;
    }
    const y = Math.round(plot.y(rows.decade(code))), x = inner.left + position * plot.step;
    drawn = true;
    if (last !== null && y === last && position < places.length - 1) continue;
    if (last !== null && x - lastX < 0.7 && position < places.length - 1) continue;
    if (last === null) pen.moveTo(x, y);
    else pen.lineTo(x, last);
    pen.lineTo(x, y);
    pen.lineTo(x + plot.step, y);
    last = y;
    lastX = x;
  }
  if (drawn) pen.stroke();
  pen.setLineDash([]);
  if (!drawn || last === null) return;
  pen.fillStyle = colour("allowed");
  pen.textAlign = "right";
  pen.textBaseline = "bottom";
  pen.fillText(say("allowed"), inner.right, last - 4);
}

/** Passing comparisons first, so that no other is hidden by one. A spot that is taken is not drawn again. */
function drawMarks(pen, plot) {
  const { metric, places } = plot;
  const size = places.length < 400 ? 3.5 : places.length < 4000 ? 2.6 : 1.8;
  const width = Math.ceil(plot.width);
  for (const verdict of ["pass", "tie", "inherited", "known", "incomparable", "fail"]) {
    const code = VERDICTS.indexOf(verdict);
    const taken = new Uint8Array(width * PLOT.height);
    pen.fillStyle = pen.strokeStyle = colour(verdict);
    pen.lineWidth = 1.3;
    const mark = places.length > 20000 && verdict !== "fail" ? PAINT.pass : PAINT[verdict];
    for (let position = 0; position < places.length; position += 1) {
      const place = places[position];
      if (rows.verdicts[place] !== code) continue;
      const value = metric.values[place];
      if (value === NOTHING && verdict !== "incomparable") continue;
      const x = plot.x(position), y = plot.height(value);
      const spot = Math.round(y) * width + Math.round(x);
      if (taken[spot]) continue;
      taken[spot] = 1;
      mark(pen, x, y, plotted(value) || value === ZERO ? size : Math.max(size, 2.6));
    }
  }
  pen.fillStyle = colour("muted");
  pen.textAlign = "right";
  pen.textBaseline = "middle";
  if (places.some((place) => !plotted(metric.values[place]) && metric.values[place] > ZERO)) {
    pen.fillText(say("no_number"), plot.inner.left - 8, plot.height(NAN));
  }
}

const PAINT = {
  pass: (pen, x, y, size) => pen.fillRect(x - size / 2, y - size / 2, size, size),
  fail: (pen, x, y, size) => {
    diamond(pen, x, y, size * 1.35);
    pen.fill();
  },
  tie: (pen, x, y, size) => {
    line(pen, x - size, y - size / 2, x + size, y - size / 2);
    line(pen, x - size, y + size / 2, x + size, y + size / 2);
  },
  inherited: (pen, x, y, size) => {
    diamond(pen, x, y, size * 1.1);
    pen.stroke();
  },
  known: (pen, x, y, size) => pen.strokeRect(x - size, y - size, 2 * size, 2 * size),
  incomparable: (pen, x, y, size) => {
    line(pen, x - size, y - size, x + size, y + size);
    line(pen, x - size, y + size, x + size, y - size);
  },
};

function diamond(pen, x, y, size) {
  pen.beginPath();
  pen.moveTo(x, y - size);
  pen.lineTo(x + size, y);
  pen.lineTo(x, y + size);
  pen.lineTo(x - size, y);
  pen.closePath();
}

/** The number of the root that a row is of, from 0, by the place of the row: one for each step of a root. */
function rootNumbers() {
  const roots = head.diagnosis === null ? [] : head.diagnosis.roots;
  const found = roots.flatMap((root, number) => root.places.map((place) => [place, number]));
  return new Map(found.sort(([one], [other]) => one - other));
}

/** A flag for each root that is drawn; where two stand close, the second says only its number, or nothing. */
function drawRootFlags(pen, plot) {
  pen.textBaseline = "middle";
  pen.textAlign = "left";
  let free = -Infinity;
  rootNumbers().forEach((number, place) => {
    const position = plot.places.indexOf(place);
    if (position < 0) return;
    const x = Math.round(plot.x(position)) + 0.5;
    pen.strokeStyle = pen.fillStyle = colour("fail");
    pen.lineWidth = 1;
    pen.globalAlpha = 0.55;
    line(pen, x, 14, x, plot.inner.bottom);
    pen.globalAlpha = 1;
    const text = x < free ? String(number + 1) : say("root_n", number + 1);
    const needed = pen.measureText(text).width + 10;
    const left = Math.max(Math.min(x, plot.width - needed), free);
    if (left > x + 24 || left + needed > plot.width) return;
    pen.fillRect(left, 2, needed, 16);
    pen.fillStyle = colour("paper");
    pen.fillText(text, left + 5, 10.5);
    free = left + needed + 2;
  });
}

/** A ring around the open row, and one around the row that the keyboard is at. */
function drawChosen(pen, plot) {
  const open = state.row === null ? -1 : plot.places.indexOf(state.row);
  for (const position of new Set([open, network.focus - network.from])) {
    if (position < 0 || position >= plot.places.length) continue;
    pen.strokeStyle = colour("ink");
    pen.lineWidth = 1.6;
    pen.beginPath();
    pen.arc(plot.x(position), plot.height(plot.metric.values[plot.places[position]]), 8, 0, 2 * Math.PI);
    pen.stroke();
  }
  if (network.dragged !== null) {
    const [from, to] = network.dragged;
    pen.fillStyle = colour("ink");
    pen.globalAlpha = 0.12;
    pen.fillRect(Math.min(from, to), PLOT.top, Math.abs(to - from), plot.inner.bottom - PLOT.top);
    pen.globalAlpha = 1;
  }
}

/** What the tip and the screen reader say of a row. */
function rowLines(place) {
  const metric = rows.metrics[state.metric];
  const where = [rows.text("type", place), rows.text("layer", place), stepText(rows.text("step", place))];
  const lines = [
    rows.text("name", place),
    where.filter(Boolean).join(" · "),
    `${say(rows.verdict(place))}, ${times(rows.closeness(place))} ${say("allowed")}`,
  ];
  if (state.metric) {
    const value = short(rows.value(metric.values[place])), allowed = rows.value(metric.allowed[place]);
    const name = metric.fromOne ? say("from_one", metric.name) : metric.name;
    lines.push(`${name}: ${value}${allowed === null ? "" : ` (${say("allowed")} ${short(allowed)})`}`);
  }
  return lines;
}

/** The position of the mark nearest to a point of the canvas, or -1 where none is near. */
function nearest(plot, x, y) {
  const reach = Math.ceil(10 / plot.step);
  const middle = Math.round((x - plot.inner.left) / plot.step - 0.5);
  let best = -1, distance = 14 ** 2;
  const last = Math.min(plot.places.length - 1, middle + reach);
  for (let position = Math.max(0, middle - reach); position <= last; position += 1) {
    const value = plot.metric.values[plot.places[position]];
    if (value === NOTHING) continue;
    const found = (plot.x(position) - x) ** 2 + (plot.height(value) - y) ** 2;
    if (found < distance || (found === distance && rows.verdicts[plot.places[position]] !== PASS)) {
      [best, distance] = [position, found];
    }
  }
  return best;
}

function networkEvents() {
  const at = (event) => {
    const frame = network.canvas.getBoundingClientRect();
    return [event.clientX - frame.left, event.clientY - frame.top];
  };
  return {
    pointerdown: (event) => {
      const [x] = at(event);
      network.dragged = [x, x];
      network.canvas.setPointerCapture(event.pointerId);
    },
    pointermove: (event) => {
      const [x, y] = at(event);
      if (network.dragged !== null) {
        network.dragged[1] = x;
        drawNetwork();
        return;
      }
      const plot = geometry(), position = nearest(plot, x, y);
      network.canvas.style.cursor = position < 0 ? "" : "pointer";
      tip(position < 0 ? [] : rowLines(plot.places[position]), event.clientX, event.clientY);
    },
    pointerup: (event) => {
      const [from, to] = network.dragged ?? [0, 0];
      network.dragged = null;
      const plot = geometry();
      if (Math.abs(to - from) > 12) {
        const position = (x) => Math.round((x - plot.inner.left) / plot.step);
        const first = Math.max(0, position(Math.min(from, to))) + network.from;
        const last = Math.min(plot.places.length, position(Math.max(from, to))) + network.from;
        if (last - first >= 2) zoom(first, last);
        else drawNetwork();
        return;
      }
      const found = nearest(plot, ...at(event));
      if (found >= 0) openRow(plot.places[found]);
      else drawNetwork();
    },
    pointerleave: () => tip([]),
    blur: () => tip([]),
    keydown: moveAlong,
  };
}

/** The keyboard on the chart. */
function moveAlong(event) {
  const { from, to, places } = network;
  const notable = (position) => rows.verdicts[places[position]] !== PASS;
  const seek = (position, step) => {
    while (position >= from && position < to && !notable(position)) position += step;
    return position;
  };
  const here = network.focus;
  const goals = {
    ArrowRight: here < 0 ? from : here + 1,
    ArrowLeft: here < 0 ? from : here - 1,
    ArrowDown: seek(here < 0 ? from : here + 1, 1),
    ArrowUp: seek(here < 0 ? from : here - 1, -1),
    Home: from,
    End: to - 1,
  };
  if (event.key === "Enter" && here >= 0) openRow(places[here]);
  else if (event.key === "Escape" && to - from < places.length) zoom(0, places.length);
  else if (!(event.key in goals)) return;
  else if (goals[event.key] >= from && goals[event.key] < to) {
    network.focus = goals[event.key];
    const lines = rowLines(places[network.focus]);
    $("network-status").textContent = lines.join(". ");
    drawNetwork();
    const plot = geometry(), frame = network.canvas.getBoundingClientRect();
    const position = network.focus - from;
    const value = plot.metric.values[plot.places[position]];
    tip(lines, frame.left + plot.x(position), frame.top + plot.height(value));
  }
  event.preventDefault();
}

function drawNetworkLegend() {
  const present = new Set(rows.verdicts);
  replace(
    $("network-legend"),
    VERDICTS.filter((verdict, code) => present.has(code) && !ALONE.has(verdict)).map((verdict) => badge(verdict)),
    make("span", { class: "badge" }, make("i", { class: "dash", "aria-hidden": "true" }), say("allowed")),
    make("span", { class: "muted", text: say("zoom_hint") }),
  );
}
