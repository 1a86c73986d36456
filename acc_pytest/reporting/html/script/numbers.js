/* Numbers for people. */

/** Four digits; small and large ones as 1.23e-5. Words (NaN, Infinity) as they are. */
function short(value) {
  if (value === null || value === undefined) return "–";
  if (typeof value === "boolean") return String(value);
  if (typeof value === "string") return value === "Infinity" ? "∞" : value === "-Infinity" ? "−∞" : value;
  if (value === Infinity) return "∞";
  if (value === -Infinity) return "−∞";
  if (Number.isNaN(value)) return "NaN";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (Number.isInteger(value) && size < 1e7) return String(value);
  if (size >= 1e-3 && size < 1e5) return String(Number(value.toPrecision(4)));
  return value.toExponential(2).replace("e+", "e");
}

/** A value near 1 that four digits would call 1: `1 − 2.3e-9`. */
function nearOne(value) {
  if (typeof value === "number" && value < 1 && 1 - value < 5e-5) return `1 − ${short(1 - value)}`;
  return short(value);
}

/** How many times the allowed error: `12×`. */
function times(value) {
  if (value === null || value === undefined) return "–";
  if (value === Infinity || value === "Infinity") return "∞";
  if (typeof value === "string" || Number.isNaN(value)) return "NaN";
  if (value >= 1e5) return `${value.toExponential(0).replace("e+", "e")}×`;
  if (value >= 100) return `${Math.round(value)}×`;
  if (value < 0.005) return value === 0 ? "0×" : "<0.01×";
  const two = Number(value.toPrecision(2));
  return two === 1 && value > 1 ? ">1×" : `${two}×`;
}

function percent(share) {
  return share > 0.9995 ? "100%" : `${(100 * share).toFixed(share < 0.01 ? 2 : 1)}%`;
}

function count(value) {
  return value.toLocaleString(state.language === "zh" ? "zh-CN" : "en-US");
}
