/* The error over earlier runs and this one, of the run and of one comparison. */

/** A line of errors as multiples of the bound, this run last; null where a run did not compare. */
function timeline(errors) {
  const times = [...head.history.times, say("history_now")];
  const values = errors.map((value) => (value === "Infinity" ? Infinity : value));
  const width = 320, height = 60, middle = height / 2;
  const x = (place) => 8 + (place * (width - 16)) / Math.max(1, values.length - 1);
  const y = (value) => middle - Math.max(-3, Math.min(3, Math.log10(value))) * (middle - 6) / 3;
  const measured = values.map((value, place) => [place, value]).filter(([, value]) => typeof value === "number" && !Number.isNaN(value));
  const drawing = svg(width, height, say("history_title"),
    draw("line", { class: "diagonal", x1: 0, x2: width, y1: middle, y2: middle }),
    draw("polyline", { class: "axis", fill: "none", points: measured.map(([place, value]) => `${x(place)},${y(value)}`).join(" ") }),
    measured.map(([place, value]) => draw("circle", { class: value > 1 ? "spot broken" : "spot", cx: x(place), cy: y(value), r: 3 },
      draw("title", { text: say("count_at", times[place], `${short(value)}×`) }))));
  const sizes = measured.map(([, value]) => value);
  const text = say("history_said", count(values.length), times[0], short(Math.min(...sizes)), short(Math.max(...sizes)));
  return make("div", { class: "pair" }, make("figure", {}, drawing, make("figcaption", { text })));
}
