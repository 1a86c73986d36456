/* The rows: columns of small integers in, typed arrays and their texts out. See columns.py for the codes. */

const VERDICTS = ["pass", "tie", "fail", "inherited", "known", "incomparable", "unmapped", "incomplete"];
const ALONE = new Set(["unmapped", "incomplete"]);  // rows of no comparison
const PASS = 0, TIE = 1;
const NOTHING = 0, ZERO = 1, NAN = 2, INFINITE = 3, MINUS_INFINITE = 4, FIRST = 10, SMALLEST = -60;

/** Read what stands in the page. Throws where the browser cannot unpack it. */
async function readRows() {
  const element = $("body-data");
  let text = element.textContent;
  if (element.dataset.encoding === "gzip") {
    const stream = new Blob([bytesOf(text)]).stream().pipeThrough(new DecompressionStream("gzip"));
    text = await new Response(stream).text();
  }
  element.remove();
  return new Rows(JSON.parse(text));
}

function bytesOf(base64) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(base64);
  const letters = atob(base64);
  const bytes = new Uint8Array(letters.length);
  for (let place = 0; place < letters.length; place += 1) bytes[place] = letters.charCodeAt(place);
  return bytes;
}

/** All rows, in execution order. A row is known by its place. */
class Rows {
  constructor(body) {
    this.length = body.length;
    this.leftOut = body.left_out;
    this.details = body.details;
    this.graph = body.graph ?? null;
    this.history = body.history;
    this.stepsPerDecade = body.steps_per_decade;
    this.verdicts = Uint8Array.from(body.verdicts);
    this.numbers = summed(body.numbers);
    this.roots = summed(body.roots);
    this.texts = {};
    for (const [name, { texts, codes }] of Object.entries(body.texts)) {
      this.texts[name] = { texts, codes: summed(codes) };
    }
    const closeness = Int16Array.from(body.closeness);
    const one = new Int16Array(body.length).fill(FIRST - SMALLEST * this.stepsPerDecade);
    this.metrics = [{ name: "", values: closeness, allowed: one, fromOne: false, atLeast: false }];
    for (const metric of body.metrics) {
      this.metrics.push({
        name: metric.name,
        fromOne: metric.from_one,
        atLeast: metric.at_least === true && !metric.from_one,
        values: Int16Array.from(metric.values),
        allowed: Int16Array.from(metric.allowed),
      });
    }
  }

  text(name, place) {
    const column = this.texts[name];
    return column.texts[column.codes[place]];
  }

  verdict(place) {
    return VERDICTS[this.verdicts[place]];
  }

  /** The place of the row with this number in execution order, or -1. */
  find(number) {
    let low = 0, high = this.length - 1;
    while (low <= high) {
      const middle = (low + high) >> 1;
      const found = this.numbers[middle] < 0 ? Infinity : this.numbers[middle];
      if (found === number) return middle;
      if (found < number) low = middle + 1;
      else high = middle - 1;
    }
    return -1;
  }

  /** Share of the allowed error, of the worst check. */
  closeness(place) {
    return this.value(this.metrics[0].values[place]);
  }

  /** The number behind a code; null for none. */
  value(code) {
    switch (code) {
      case NOTHING: return null;
      case ZERO: return 0;
      case NAN: return NaN;
      case INFINITE: return Infinity;
      case MINUS_INFINITE: return -Infinity;
      default: return Math.sign(code) * 10 ** this.decade(code);
    }
  }

  /** log10 of the magnitude behind a code that has one. */
  decade(code) {
    return (Math.abs(code) - FIRST) / this.stepsPerDecade + SMALLEST;
  }

  /** The id of the row's test; empty where it is not known. */
  testId(place) {
    const home = this.text("home", place), leaf = this.text("leaf", place);
    return home ? `${home}::${leaf}` : leaf;
  }
}

function summed(differences) {
  const values = new Int32Array(differences.length);
  let sum = 0;
  for (let place = 0; place < values.length; place += 1) values[place] = sum += differences[place];
  return values;
}

/** Whether a code is a number that a log scale can show. */
const plotted = (code) => code >= FIRST || code <= -FIRST;
