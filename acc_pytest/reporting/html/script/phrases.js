/* Sentences that are no reasons yet, said in Chinese: [English, Chinese]. The others are in `base/zh.json`.

   {0} is anything, and is told in turn; {0,} is a list, of which each part is told. Parts between semicolons are
   sentences of their own. What is not here stays as it is: names, options, texts of other programs. */

const PHRASES = [
  ["computed as {0} does, which the dump is of: on {1}, {2}", "按转储所属的 {0} 计算：在 {1} 上，{2}"],
  // The verdict of a run (run_verdict.py).
  ["Incomplete, and already broken: {0}", "运行不完整，但已发现问题：{0}"],
  // What is said before the verdict (caveats.py).

  // What the thresholds say of a pair.
  ["{0} is {1}, where no error is allowed", "{0} 为 {1}，此处不允许任何误差"],
  ["NaN or infinite on one side only, in {0}", "仅一侧为 NaN 或无穷（位于 {0}）"],
  ["the last output of golden's model was not compared: {0}", "未比较标杆模型的最后输出：{0}"],
  ["the dump names {0,}, which is not there", "转储记录了 {0}，但文件不存在"],
  ["the dump names {0,}, which are not there", "转储记录了 {0}，但这些文件不存在"],

  // Why a bound is what it is.
  ["{0} plus {1} for printing six decimals", "{0}，另加 {1}（打印六位小数）"],
  ["{0}, which no mean error can exceed,", "{0}（平均误差不可能超过它）"],
  ["by itself {0}", "其自身：{0}"],
  ["T = {0} set by {1}", "T = {0}，由 {1} 设置"],
  ["set by {0}", "由 {0} 设置"],
  ["switched off by {0}", "由 {0} 关闭"],
  ["{0}: whole numbers are exact", "{0}：整数必须精确"],
  ["{0}: one step of the quantised value", "{0}：量化值的一个步长"],
  ["{0}: one step of the type", "{0}：该类型的一个步长"],
  ["{0}, sums of {1}: {2}", "{0}，{1} 项求和：{2}"],
  ["{0}, times {1} by a marker", "{0}，由标记放大 {1} 倍"],
  ["the noise run ({0})", "噪声运行（{0}）"],
  ["baseline: {0} accepted", "基线：已接受 {0}"],
  ["known: {0}", "已知差异：{0}"],

  // Where an error starts (diagnosis).
  ["the operator is right on its own inputs, but {0}", "该算子对自身输入的计算正确，但{0}"],
  ["the first that differs in {0}, as no inputs were dumped", "输入未转储，按 {0} 它是第一个有差异的"],
  ["{0}, but for ties and accumulated rounding", "{0}，平局与累积舍入除外"],
  ["it has {0} elements, too many to compute it again", "它有 {0} 个元素，过多而不再重新计算"],
  ["what a pair computes from is known by {0}", "每个比较的来源由{0}得知"],
  ["{0} of {1} pairs by {2}", "{1} 个比较对中有 {0} 个按{2}得知"],

  // What the run was fed.
  ["weight {0} of {1} differs", "{1} 的权重 {0} 不同"],
  ["{0} differ at step {1}: {2}", "{0} 在第 {1} 步不同：{2}"],
  ["weights of {0} modules differ: {1}", "{0} 个模块的权重不同：{1}"],
  ["buffers of {0} modules differ: {1}", "{0} 个模块的缓冲区不同：{1}"],
  ["{0} differ: {1}", "{0} 不同：{1}"],
  ["{0} differs: {1}", "{0} 不同：{1}"],
  ["the argmax of step {0} diverged", "第 {0} 步的 argmax 已分歧"],
  ["the argmax of mine at step {0} is {1}", "待测在第 {0} 步的 argmax 为 {1}"],

  // How the two were matched, and brought to one shape.
  ["both are {0}", "两侧均为 {0}"],
  ["part {0} of every head of {1}", "{1} 每个头的第 {0} 部分"],
  ["part of {0}", "{0} 的一部分"],
  ["{0} is what the cache got at this step", "{0} 是本步写入缓存的内容"],
  ["the rows that were written are {0}", "写入的行是 {0}"],
  ["with the bias it is {0}", "加上偏置后为 {0}"],
  ["summed over ranks it is {0}", "各卡求和后为 {0}"],
  ["the graph feeds it from {0}", "图中由 {0} 供给"],
  ["FX dumped no call {0}", "FX 没有转储调用 {0}"],
  ["golden has no {0} of this name", "标杆没有同名的 {0}"],
  ["not known which input this is: {0}", "不知道这是哪个输入：{0}"],
  ["a constant of the graph ({0})", "图中的常量（{0}）"],
  ["{0} was not dumped, so it is not compared there", "{0} 未转储，因此在该处不比较"],
  ["its exact value is {0}", "其精确值为 {0}"],
  ["cannot judge: {0}", "无法判定：{0}"],
  ["{0}: holds no tensors of {1} (before, after)", "{0}：没有 {1} 的张量（before、after）"],
  ["input {0} of {1} ({2}) has no file in {3}", "{1} 的输入 {0}（{2}）在 {3} 中没有文件"],

  // The plan, and the files.
  ["ranks: golden {0}, mine {1}", "卡数：标杆 {0}，待测 {1}"],
  ["ranks: {0} on both sides, compared rank by rank", "卡数：两侧均为 {0}，逐卡比较"],
  ["all ranks at once in {0} pairs", "{0} 个比较对一次比较所有卡"],
  ["token policy {0}: one model, directory d is step d ({1})", "token 策略 {0}：单个模型，目录 d 即第 d 步（{1}）"],
  ["token policy {0}: directory 0 is a warm-up run, 1 holds prefill and decode 1, k decode k ({1})", "token 策略 {0}：目录 0 为预热，1 含预填充与第 1 次解码，k 为第 k 次解码（{1}）"],
  ["the prefill model ran again in directory {0}", "预填充模型在目录 {0} 中再次运行"],
  ["{0} holds no {1}", "{0} 中没有 {1}"],
  ["layers: only the {0} of {1} have a counterpart", "层：只有 {1} 的 {0} 有对应"],
  ["incomplete: no file is of shard {0}", "不完整：缺少分片 {0} 的文件"],
  ["lock: {0} thresholds of {1} comparisons are looser than in {2}", "锁定：{1} 项比较的 {0} 个阈值比 {2} 中宽松"],
  ["input {0}", "输入 {0}"],
  ["weight {0}", "权重 {0}"],
  ["buffer {0}", "缓冲区 {0}"],
  ["cache {0}", "缓存 {0}"],
  ["mask {0}", "掩码 {0}"],
  ["positions {0}", "位置编号 {0}"],
  ["{0} is not {1}", "{0}，不满足 {1}"],
];

const SLOT = /\{(\d)(,?)\}/g;

/** A phrase ready to be looked for: what it looks like, the order of its slots, and which of these are lists. */
function patternOf([english, chinese]) {
  const slots = [...english.matchAll(SLOT)].map(([, number, list]) => [Number(number), list === ","]);
  const literals = english.split(/\{\d,?\}/);
  const escaped = literals.map((literal) => literal.replace(/[.*+?^${}()|[\]\\]/g, "\\$&"));
  const longest = literals.reduce((one, other) => (other.length > one.length ? other : one)).toLowerCase();
  return { chinese, slots, longest, pattern: new RegExp(`^${escaped.join("(.+?)")}$`, "is") };
}

const CATALOGUE = new Map(Object.entries(CHINESE));
let phraseBook = null;

/** A sentence of the run in the current language: its template, filled with what is told in turn. */
function tell(text) {
  if (state.language !== "zh" || !text) return text;
  const [code, ...pieces] = REASONS.get(text) ?? [text];
  const sentence = CATALOGUE.get(code) ?? (REASONS.has(text) ? code.replaceAll("; ", "；") : undefined);
  let place = 0;
  if (sentence !== undefined) return sentence.replace(/\{(\d*)[^{}]*\}/g, (_, number) => tell(pieces[number || place++]));
  phraseBook ??= PHRASES.map(patternOf);
  return sentencesOf(text).map(told).join("；");
}

/** The parts between semicolons, but for those inside of brackets. */
function sentencesOf(text) {
  const found = [""];
  let depth = 0;
  for (const piece of text.split(/(; |[()])/)) {
    if (piece === "(") depth += 1;
    if (piece === ")") depth -= 1;
    if (piece === "; " && depth <= 0) found.push("");
    else found[found.length - 1] += piece;
  }
  return found;
}

function told(text) {
  if (CATALOGUE.has(text) || REASONS.has(text)) return tell(text);
  const lower = text.toLowerCase();
  for (const { pattern, slots, longest, chinese } of phraseBook) {
    if (!lower.includes(longest)) continue;
    const found = pattern.exec(text);
    if (found === null) continue;
    const values = [];
    slots.forEach(([number, list], place) => {
      values[number] = list ? found[place + 1].split(", ").map(tell).join("，") : tell(found[place + 1]);
    });
    return chinese.replace(SLOT, (_, number) => values[Number(number)]);
  }
  return text;
}
