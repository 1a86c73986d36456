/* Sentences that were written with the rows, said in Chinese. */

/** A sentence of the run in the current language. */
function tell(text) {
  return text;
}
