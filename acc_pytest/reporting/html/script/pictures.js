/* Pictures of the values of one pair: sizes of errors, golden against mine, largest error by place. */

function drawPictures(pictures) {
  if (pictures === undefined) return [make("p", { class: "muted", text: say("pictures_not_made") })];
  if (pictures.absent !== undefined) return [make("p", { class: "muted", text: say("pictures_absent", tell(pictures.absent)) })];
  if (pictures.empty) return [];
  return [
    pictures.replica ? make("p", { class: "muted", text: say("replica", tell(pictures.replica)) }) : null,
    figure("histogram_title", histogram(pictures), [
      say("histogram_axis", count(pictures.errors.equal), count(pictures.count)),
      pictures.onesided ? say("onesided", count(pictures.onesided)) : "",
    ]),
    make("div", { class: "pair" },
      pictures.scatter ? figure("scatter_title", scatter(pictures.scatter), []) : null,
      figure("map_title", errorMap(pictures.map), [mapAxes(pictures)])),
    pictures.worst.length ? worstList(pictures.worst) : null,
  ];
}

function figure(title, drawing, captions) {
  return make("figure", {}, make("h4", { text: say(title) }), drawing,
    captions.filter(Boolean).map((text) => make("figcaption", { text })));
}

function svg(width, height, label, ...children) {
  return draw("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label, class: "drawing" }, children);
}

/** Bars by power of two, the height on a log scale so that one element in a million is seen. */
function histogram({ errors }) {
  const { bins, lowest } = errors;
  const width = 560, height = 130, bottom = 108, left = 10;
  if (bins.length === 0) return make("p", { class: "muted", text: "0" });
  const step = Math.min(24, (width - 2 * left) / bins.length);
  const top = Math.log2(Math.max(...bins) + 1);
  const bars = bins.map((size, place) => {
    const tall = size ? Math.max(2, (Math.log2(size + 1) / top) * (bottom - 12)) : 0;
    return draw("rect", {
      class: "bar-fill", x: left + place * step + 0.5, y: bottom - tall, width: Math.max(1, step - 1), height: tall,
    }, draw("title", { text: say("count_at", `${short(2 ** (lowest + place))} ≤ |d| < ${short(2 ** (lowest + place + 1))}`, count(size)) }));
  });
  const every = Math.max(1, Math.ceil(bins.length / 9));
  const labels = bins.map((_, place) => place).filter((place) => place % every === 0).map((place) =>
    draw("text", { class: "tick", x: left + (place + 0.5) * step, y: bottom + 14, "text-anchor": "middle", text: power(2, lowest + place) }));
  return svg(width, height, say("histogram_title"), bars,
    draw("line", { class: "axis", x1: left, x2: width - left, y1: bottom + 0.5, y2: bottom + 0.5 }), labels);
}

/** Golden to the right, mine upwards; the diagonal is where they are equal. */
function scatter({ low, high, size, cells }) {
  const side = 240, margin = 26, cell = (side - margin - 4) / size;
  const top = Math.log2(Math.max(...cells.map((one) => one[2])) + 1);
  const marks = cells.map(([x, y, number]) => draw("rect", {
    class: "spot",
    x: margin + x * cell, y: side - margin - (y + 1) * cell, width: cell, height: cell,
    "fill-opacity": 0.25 + 0.75 * (Math.log2(number + 1) / top),
  }, draw("title", { text: count(number) })));
  const far = margin + size * cell, bottom = side - margin;
  return svg(side, side, say("scatter_title"),
    draw("rect", { class: "frame", x: margin, y: 4, width: size * cell, height: size * cell }),
    draw("line", { class: "diagonal", x1: margin, y1: bottom, x2: far, y2: bottom - size * cell }),
    marks,
    draw("text", { class: "tick", x: margin, y: side - 12, text: short(low) }),
    draw("text", { class: "tick", x: far, y: side - 12, "text-anchor": "end", text: short(high) }),
    draw("text", { class: "tick", x: (margin + far) / 2, y: side - 12, "text-anchor": "middle", text: `${say("golden")} →` }),
    draw("text", { class: "tick", x: 14, y: bottom / 2, transform: `rotate(-90 14 ${bottom / 2})`, "text-anchor": "middle", text: `${say("mine")} →` }));
}

/** The largest error of each cell; darker is larger, on a log scale over three decades below the largest. */
function errorMap({ cells, rows: tall, columns: wide }) {
  const width = 320, height = Math.max(60, Math.min(240, cells.length * 12));
  const x = width / cells[0].length, y = height / cells.length;
  const finite = cells.flat().filter((value) => typeof value === "number");
  const top = Math.max(...finite, 0);
  const marks = [];
  cells.forEach((line, down) => line.forEach((value, right) => {
    if (value === null || value === 0) return;
    const infinite = value === "Infinity";
    const share = infinite ? 1 : Math.max(0, 1 + Math.log10(value / top) / 3);
    const where = `[${Math.floor((down * tall) / cells.length)}, ${Math.floor((right * wide) / line.length)}]`;
    marks.push(draw("rect", {
      class: infinite ? "spot broken" : "spot", x: right * x, y: down * y, width: x + 0.2, height: y + 0.2,
      "fill-opacity": 0.06 + 0.94 * share,
    }, draw("title", { text: say("count_at", where, short(value)) })));
  }));
  return svg(width, height, say("map_title"), draw("rect", { class: "frame", x: 0, y: 0, width, height }), marks);
}

function mapAxes({ shape, map }) {
  if (map.split < 0) return say("map_folded", shape.join("×"));
  const named = (from, sizes) => sizes.length
    ? say("map_dimensions", sizes.length > 1 ? `${from}–${from + sizes.length - 1}` : from, sizes.join("×")) : "1";
  return say("map_axis", named(0, shape.slice(0, map.split)), named(map.split, shape.slice(map.split)));
}

function worstList(worst) {
  return make("figure", {}, make("h4", { text: say("worst_list") }), plainTable(
    ["index", "golden", "mine", "error"],
    worst.map(([index, golden, mine, error]) => [make("code", { text: index }), short(golden), short(mine), short(error)]),
    ["", "right number", "right number", "right number"],
  ));
}

/** A small table: keys of the heads, lines of texts or elements, classes of the columns. */
function plainTable(heads, lines, classes = []) {
  return make("table", { class: "plain" },
    make("thead", {}, make("tr", {}, heads.map((key, place) =>
      make("th", { scope: "col", class: classes[place] ?? "", text: key ? say(key) : "" })))),
    make("tbody", {}, lines.map((cells) => make("tr", {}, cells.map((cell, place) =>
      make("td", { class: classes[place] ?? "" }, cell))))));
}
