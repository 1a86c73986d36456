/* The error over earlier runs and this one, of the run and of one comparison. */

function historyPart(place) {
  const earlier = rows.history[rows.testId(place)] ?? [];
  return earlier.some((error) => error !== null) ? part("history_title", timeline([...earlier, rows.closeness(place)])) : null;
}

/** A line of errors as multiples of the bound, this run last; null where a run did not compare. */
function timeline(errors) {
  const width = 320, height = 60, middle = height / 2, { times: runs } = head.history;
  const marks = errors.map((error, place) => [place, error === "Infinity" ? Infinity : error]).filter(([, error]) => error !== null);
  const sizes = marks.map(([, error]) => error);
  const x = (place) => 8 + (place * (width - 16)) / (errors.length - 1);
  const y = (error) => middle - (Math.max(-3, Math.min(3, Math.log10(error))) * (middle - 6)) / 3;
  const text = say("history_said", count(errors.length), runs[0], times(Math.min(...sizes)), times(Math.max(...sizes)));
  return make("div", { class: "pair" }, make("figure", {}, svg(width, height, text,
    draw("line", { class: "diagonal", x1: 0, x2: width, y1: middle, y2: middle }),
    draw("polyline", { class: "axis", fill: "none", points: marks.map(([place, error]) => `${x(place)},${y(error)}`).join(" ") }),
    marks.map(([place, error]) => draw("circle", { class: error > 1 ? "spot broken" : "spot", cx: x(place), cy: y(error), r: 3 },
      draw("title", { text: say("count_at", runs[place], times(error)) })))), make("figcaption", { text })));
}
