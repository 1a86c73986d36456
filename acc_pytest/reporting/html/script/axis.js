/* Which rows the chart and the heat map show, and the scale of the chart. */

/** Places of the rows of the chosen step and rank, in execution order. */
function stepRows() {
  const step = state.step === "" ? -1 : codeOf("step", state.step);
  const rank = state.rank === "" ? -1 : codeOf("rank", state.rank);
  const steps = rows.texts.step.codes, ranks = rows.texts.rank.codes;
  const found = new Int32Array(rows.length);
  let length = 0;
  for (let place = 0; place < rows.length; place += 1) {
    if (state.step !== "" && steps[place] !== step) continue;
    if (state.rank !== "" && ranks[place] !== rank) continue;
    if (ALONE.has(VERDICTS[rows.verdicts[place]])) continue;
    found[length] = place;
    length += 1;
  }
  return found.subarray(0, length);
}

/** The code of a text in a column; -2 for one that is not there, which equals no code. */
function codeOf(column, text) {
  const place = rows.texts[column].texts.indexOf(text);
  return place < 0 ? -2 : place;
}

/** The distinct texts of a column, empty ones left out, in order of execution. */
function distinct(column) {
  return rows.texts[column].texts.filter((text) => text !== "");
}

/**
 * The decades that a chart of `places` spans: [lowest, highest], at least two. Bounds count, but not those far
 * above everything measured.
 */
function decades(metric, places) {
  let low = Infinity, high = -Infinity, bound = -Infinity;
  for (const place of places) {
    const code = metric.values[place], allowed = metric.allowed[place];
    if (plotted(code)) {
      const decade = rows.decade(code);
      if (decade < low) low = decade;
      if (decade > high) high = decade;
    }
    if (plotted(allowed)) bound = Math.max(bound, rows.decade(allowed));
  }
  if (high === -Infinity) return null;
  if (bound > -Infinity && bound < high + 3) high = Math.max(high, bound);
  low = Math.max(Math.floor(low - 0.1), Math.ceil(high) - 16);
  high = Math.ceil(high + 0.1);
  return [Math.min(low, high - 2), high];
}

/** A power of ten as people write it on an axis. */
function powerOfTen(exponent) {
  if (exponent >= -2 && exponent <= 3) return String(Number(`1e${exponent}`));
  return power(10, exponent);
}

/** `2⁻¹²`. */
function power(base, exponent) {
  const digits = String(Math.abs(exponent)).replace(/\d/g, (digit) => "⁰¹²³⁴⁵⁶⁷⁸⁹"[digit]);
  return `${base}${exponent < 0 ? "⁻" : ""}${digits}`;
}

/** Where on the x axis groups (layers, or steps where several are shown) begin: [position, name]. */
function groups(places) {
  const several = state.step === "" && distinct("step").length > 1;
  const column = rows.texts[several ? "step" : "layer"];
  const found = [];
  let last = -1;
  places.forEach((place, position) => {
    const code = column.codes[place];
    if (code !== last) {
      const text = column.texts[code];
      found.push([position, several && text === "0" ? stepText(text) : text]);
    }
    last = code;
  });
  return found;
}
