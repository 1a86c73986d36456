/* Where the nodes of one box of the graph stand: layers from top to bottom, few crossings, edges as routes. */

const CELL = { width: 172, height: 40, across: 22, down: 34, bend: 14, most: 6 };
/* A node, the gaps around it, the room of an edge that passes a row, and how many nodes stand in one row. */

const STIFF = 1000; // how much more a bend is held in place than a node, so that long edges are straight
const SWEEPS = 13; // the last one goes down, so that chains hang straight below what they begin at

/**
 * The layout of `count` nodes with edges from[i] -> to[i], each from a smaller to a larger number; `first` and
 * `last` are the nodes that edges from outside end at, and edges to the outside begin at.
 *
 * Returns centres x and tops y of the nodes, the nodes of each row from left to right, the row of each, width,
 * height, and of each edge the x at which it passes the rows between its ends (none where it goes straight).
 * `enter` is the same for the edges to `first`, `leave` for those from `last`, each with a port: the x where
 * it crosses the rim.
 */
function layered(count, from, to, first = [], last = []) {
  const ports = { top: count, bottom: count + 1 };
  const inner = from.length;
  const starts = [...from, ...first.map(() => ports.top), ...last];
  const ends = [...to, ...first, ...last.map(() => ports.bottom)];
  const rank = ranked(count, from, to);
  const { row, rows: lines } = inRows(count, rank);
  if (first.length) {
    lines.unshift([ports.top]);
    row.forEach((_, node) => { row[node] += 1; });
  }
  row[ports.top] = 0;
  row[ports.bottom] = lines.length;
  if (last.length) lines.push([ports.bottom]);
  const bent = withBends(count + 2, lines, row, starts, ends);
  orderRows(lines, bent.above, bent.below);
  const x = placed(count, bent.nodes.length, lines, bent.above, bent.below);
  return framed(count, x, row, lines, bent.passes, inner, first.length);
}

/** The result of `layered`, with x counted from the middle of all, and rows from the first that has a node. */
function framed(count, x, row, lines, passes, inner, many) {
  let left = Infinity, right = -Infinity;
  for (const line of lines) {
    for (const node of line) {
      const half = node < count ? CELL.width / 2 : 0;
      left = Math.min(left, x[node] - half);
      right = Math.max(right, x[node] + half);
    }
  }
  const middle = (left + right) / 2, pitch = CELL.height + CELL.down, above = many ? 1 : 0;
  const through = passes.map((bends) => bends.map((bend) => x[bend] - middle));
  const rows = lines.map((line) => line.filter((node) => node < count)).filter((line) => line.length);
  return {
    x: Float32Array.from({ length: count }, (_, node) => x[node] - middle),
    y: Float32Array.from({ length: count }, (_, node) => (row[node] - above) * pitch),
    row: Int32Array.from({ length: count }, (_, node) => row[node] - above),
    rows,
    width: right - left,
    height: rows.length * pitch - CELL.down,
    bends: through.slice(0, inner),
    enter: through.slice(inner, inner + many),
    leave: through.slice(inner + many),
    top: x[count] - middle,
    bottom: x[count + 1] - middle,
  };
}

/** The longest way from the top to each node; what has nothing above it stands just above what reads it. */
function ranked(count, from, to) {
  const rank = new Int32Array(count), fed = new Uint8Array(count), first = new Int32Array(count).fill(-1);
  const order = Array.from(from, (_, edge) => edge).sort((one, other) => from[one] - from[other]);
  for (const edge of order) {
    rank[to[edge]] = Math.max(rank[to[edge]], rank[from[edge]] + 1);
    fed[to[edge]] = 1;
  }
  for (const edge of order) {
    const node = from[edge], wanted = rank[to[edge]] - 1;
    if (!fed[node] && (first[node] < 0 || wanted < first[node])) first[node] = wanted;
  }
  return rank.map((one, node) => (first[node] > 0 ? first[node] : one));
}

/** Rows of at most `CELL.most` nodes: a wide rank becomes several. */
function inRows(count, rank) {
  const ranks = [];
  for (let node = 0; node < count; node += 1) (ranks[rank[node]] ??= []).push(node);
  const rows = [], row = new Int32Array(count + 2);
  for (const nodes of ranks) {
    if (nodes === undefined) continue;
    const lines = Math.ceil(nodes.length / CELL.most), each = Math.ceil(nodes.length / lines);
    for (let start = 0; start < nodes.length; start += each) {
      const line = nodes.slice(start, start + each);
      for (const node of line) row[node] = rows.length;
      rows.push(line);
    }
  }
  return { row, rows };
}

/**
 * An edge over several rows passes each in a bend, which it shares with the other edges of that one of its ends
 * that has more of them. Where this would make more bends than the drawing is worth, long edges go straight.
 */
function withBends(count, rows, row, from, to) {
  const above = Array.from({ length: count }, () => []), below = Array.from({ length: count }, () => []);
  const nodes = Array.from({ length: count }, (_, node) => node);
  const many = new Int32Array(count), shared = new Map();
  for (const node of [...from, ...to]) many[node] += 1;
  const join = (one, other) => {
    if (!below[one].includes(other)) {
      below[one].push(other);
      above[other].push(one);
    }
  };
  const bendAt = (end, line) => {
    const key = end * rows.length + line;
    if (!shared.has(key)) {
      shared.set(key, nodes.length);
      rows[line].push(nodes.length);
      nodes.push(nodes.length);
      above.push([]);
      below.push([]);
    }
    return shared.get(key);
  };
  let room = 400 + 6 * count;
  const passes = Array.from(from, (start, edge) => {
    const end = to[edge], span = row[end] - row[start] - 1;
    if (span > room) return [];
    const known = nodes.length, common = many[start] >= many[end] ? start : end;
    const through = Array.from({ length: span }, (_, at) => bendAt(common, row[start] + 1 + at));
    [start, ...through].forEach((node, at) => join(node, through[at] ?? end));
    room -= nodes.length - known;
    return through;
  });
  return { nodes, above, below, passes };
}

/** Order each row by the middle of what it is joined to, downwards and upwards in turn. */
function orderRows(rows, above, below) {
  const spot = [];
  const number = (line) => line.forEach((node, place) => { spot[node] = place / Math.max(1, line.length - 1); });
  rows.forEach(number);
  for (let turn = 0; turn < 6; turn += 1) {
    const joined = turn % 2 ? below : above;
    for (const line of turn % 2 ? [...rows].reverse() : rows) {
      const wish = new Map(line.map((node) => [node, mean(joined[node], spot) ?? spot[node]]));
      line.sort((one, other) => wish.get(one) - wish.get(other) || one - other);
      number(line);
    }
  }
}

function mean(nodes, value) {
  if (nodes.length === 0) return null;
  let sum = 0;
  for (const node of nodes) sum += value[node];
  return sum / nodes.length;
}

/** Horizontal places: every node wants to stand where what it is joined to stands, in order and apart. */
function placed(count, total, rows, above, below) {
  const place = new Float64Array(total);
  const wide = (node) => (node < count ? CELL.width + CELL.across : CELL.bend);
  for (const line of rows) {
    let at = -line.reduce((sum, node) => sum + wide(node), 0) / 2;
    for (const node of line) {
      place[node] = at + wide(node) / 2;
      at += wide(node);
    }
  }
  for (let turn = 0; turn < SWEEPS; turn += 1) {
    for (const line of turn % 2 ? [...rows].reverse() : rows) {
      const wish = line.map((node) => {
        const joined = turn % 2 ? below[node] : above[node];
        const bends = node < count ? [] : joined.filter((one) => one >= count); // a long edge follows itself
        return median(bends.length ? bends : joined, place) ?? place[node];
      });
      settle(line, wish, line.map((node) => (node < count ? 1 : STIFF)), wide, place);
    }
  }
  for (const line of rows) {
    line.forEach((node, at) => { // what is joined to nothing stands beside its neighbour
      if (at && !above[node].length && !below[node].length) place[node] = place[line[at - 1]] + (wide(line[at - 1]) + wide(node)) / 2;
    });
  }
  return place;
}

/** The middle value, which leaves long edges straight where a mean would slant them. */
function median(nodes, value) {
  if (nodes.length === 0) return null;
  if (nodes.length === 1) return value[nodes[0]];
  const sorted = nodes.map((node) => value[node]).sort((one, other) => one - other);
  const half = sorted.length >> 1;
  return sorted.length % 2 ? sorted[half] : (sorted[half - 1] + sorted[half]) / 2;
}

/** The places nearest to `wish` (least squares) that keep the order and the room of each node. */
function settle(line, wish, weight, wide, place) {
  const blocks = []; // runs of nodes that touch: [sum of weighted places, sum of weights, first]
  let offset = 0;
  const offsets = line.map((node, index) => {
    if (index) offset += (wide(line[index - 1]) + wide(node)) / 2;
    return offset;
  });
  line.forEach((_, index) => {
    let block = [(wish[index] - offsets[index]) * weight[index], weight[index], index];
    for (let last = blocks.at(-1); last && last[0] / last[1] > block[0] / block[1]; last = blocks.at(-1)) {
      blocks.pop();
      block = [last[0] + block[0], last[1] + block[1], last[2]];
    }
    blocks.push(block);
  });
  blocks.forEach(([sum, weights, first], index) => {
    const end = blocks[index + 1]?.[2] ?? line.length;
    for (let at = first; at < end; at += 1) place[line[at]] = sum / weights + offsets[at];
  });
}
