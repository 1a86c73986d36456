/* Sentences that were written with the rows, said in Chinese: [English, Chinese].

   {0} is anything, and is told in turn; {0,} is a list, of which each part is told. Parts between semicolons are
   sentences of their own. What is not here stays as it is: names, options, texts of other programs. */

const PHRASES = [
  ["computed as {0} does, which the dump is of: on {1}, {2}", "按 dump 所属的 {0} 计算：在 {1} 上，{2}"],
  // The verdict of a run (run_verdict.py).
  ["Incomplete, and already broken: {0}", "运行不完整，但已发现问题：{0}"],
  ["Incomplete: {0} of {1} {2} were compared, none fails", "运行不完整：{1} 个{2}中已比较 {0} 个，尚无失败"],
  ["Incomplete: {0} {1} were compared, none fails", "运行不完整：已比较 {0} 个{1}，尚无失败"],
  ["Nothing was compared: none of {0} {1} could be", "没有进行任何比较：{0} 个{1}均无法比较"],
  ["No difference beyond its bound: {0} {1}, but the run fails", "没有超出允许值的差异（{0} 个{1}），但运行未通过"],
  ["No difference beyond its bound: {0} {1}", "没有超出允许值的差异：{0} 个{1}"],
  ["{0} of them differ in a way that is known and accepted.", "其中 {0} 个存在已知并已接受的差异。"],
  ["only {0} of the nodes could be mapped, the floor is {1}", "只映射了 {0} 的节点，低于下限 {1}"],
  ["pytest ended with exit status {0}.", "pytest 的退出码为 {0}。"],
  // What is said before the verdict (caveats.py).
  ["golden is not finite from {0} on, so the run fails", "标杆自 {0} 起含有 NaN 或 Inf，运行未通过"],
  ["partial: {0} % of golden's tensors were compared", "部分比较：仅比较了标杆张量的 {0} %"],
  ["{0} of {1} results are empty", "{1} 个结果中有 {0} 个为空"],
  ["{0} of {1} results are nothing but zeros", "{1} 个结果中有 {0} 个全为零"],
  ["The models differ: {0}", "两侧的模型不同：{0}"],
  ["The run was fed something else: {0}", "两侧的输入不同：{0}"],
  ["Breaks at {0,}: {1}", "误差始于 {0}：{1}"],
  ["Fails at {0,}: {1}", "{0} 失败：{1}"],
  ["{0} of {1} {2} fail, the worst: {3,}: {4}", "{1} 个{2}中有 {0} 个失败，最差的是 {3}：{4}"],
  ["{0} of {1} tests fail", "{1} 个测试中有 {0} 个失败"],
  ["{0} of {1} {2} fail on their own", "{1} 个{2}中有 {0} 个自身失败"],
  ["{0} of {1} {2} fails on its own", "{1} 个{2}中有 {0} 个自身失败"],
  ["{0} more inherit from what fails.", "另有 {0} 个受其影响。"],
  ["{0} more inherits from what fails.", "另有 {0} 个受其影响。"],
  ["{0} of {1} {2} fail.", "{1} 个{2}中有 {0} 个失败。"],
  ["{0} of {1} {2} fails.", "{1} 个{2}中有 {0} 个失败。"],
  ["and {0} more", "另有 {0} 处"],
  ["{0} times its bound", "为允许值的 {0} 倍"],
  ["decode {0}", "第 {0} 次解码"],
  ["step {0}", "第 {0} 步"],
  ["rank {0}", "第 {0} 卡"],

  // What the thresholds say of a pair.
  ["{0} (statistics only)", "{0}（仅有统计量）"],
  ["all {0} bounds hold", "{0} 项阈值全部满足"],
  ["closest is {0} at {1} of the allowed {2}", "最接近的是 {0}，为允许值 {2} 的 {1}"],
  ["closest is {0} at {1} of {2}", "最接近的是 {0}，为允许值 {2} 的 {1}"],
  ["closest is {0} at {1}", "最接近的是 {0}：{1}"],
  ["also beyond its bound: {0}", "同时超出允许值的还有：{0}"],
  ["{0} is {1} times the allowed {2}", "{0}，为允许值 {2} 的 {1} 倍"],
  ["{0} is below the required {1}", "{0}，低于要求的 {1}"],
  ["{0} is above the allowed {1}", "{0}，高于允许值 {1}"],
  ["{0} is {1}, where no error is allowed", "{0} 为 {1}，此处不允许任何误差"],
  ["{0} is NaN, so its bound {1} cannot hold", "{0} 为 NaN，无法满足 {1}"],
  ["{0} is not defined for these tensors, so its bound {1} cannot hold", "{0} 对这些张量没有定义，无法满足 {1}"],
  ["{0} of {1} elements are {2}, none may be", "{1} 个元素中有 {0} 个{2}，一个都不允许"],
  ["{0} of {1} elements are {2}, {3} may be", "{1} 个元素中有 {0} 个{2}，最多允许 {3}"],
  ["{0} of {1} elements are beyond it, in {2}", "{1} 个元素中有 {0} 个超出，位于 {2}"],
  ["{0} of {1} elements are beyond it", "{1} 个元素中有 {0} 个超出"],
  ["{0} of {1} elements are NaN or infinite", "{1} 个元素中有 {0} 个为 NaN 或无穷"],
  ["{0} of {1} elements are not those it moves", "{1} 个元素中有 {0} 个不是它应搬移的值"],
  ["{0} of {1} elements are not those of the operator", "{1} 个元素中有 {0} 个与该算子的结果不同"],
  ["NaN or infinite on one side only, in {0}", "仅一侧为 NaN 或无穷（位于 {0}）"],
  ["data shape doesn't match: golden {0}, mine {1}", "形状不一致：标杆 {0}，待测 {1}"],
  ["not compared: {0}", "未比较：{0}"],
  ["unmapped golden node: {0}", "标杆侧未映射的节点：{0}"],
  ["unmapped mine node: {0}", "待测侧未映射的节点：{0}"],
  ["incomplete golden: {0}", "标杆侧不完整：{0}"],
  ["incomplete mine: {0}", "待测侧不完整：{0}"],
  ["the last output of golden's model was not compared: {0}", "未比较标杆模型的最后输出：{0}"],
  ["step {0} was to be dumped and is not there: was the capture interrupted?", "第 {0} 步本应保存却不存在：采集是否中断？"],
  ["the dump names {0,}, which is not there", "dump 记录了 {0}，但文件不存在"],
  ["the dump names {0,}, which are not there", "dump 记录了 {0}，但这些文件不存在"],
  ["rank {0} of {1} has no tensors at step {2}", "{1} 张卡中的第 {0} 卡在第 {2} 步没有张量"],
  ["nearest: {0}", "最接近的是：{0}"],
  ["{0} of {1} choices differ", "{1} 个选择中有 {0} 个不同"],
  ["{0}, among values up to {1} apart (of a tie at most {2})", "{0}，所选数值最多相差 {1}（并列最多为 {2}）"],
  ["{0}, each among values at most {1} apart (allowed {2})", "{0}，均在相差不超过 {1} 的数值之间选择（允许 {2}）"],
  ["{0}, each among equal values (allowed {1})", "{0}，均在相等的数值之间选择（允许 {1}）"],

  // Why a bound is what it is.
  ["{0} plus {1} for printing six decimals", "{0}，另加 {1}（打印六位小数）"],
  ["{0}, which no mean error can exceed,", "{0}（平均误差不可能超过它）"],
  ["default: {0}", "默认：{0}"],
  ["ascend: {0}", "ascend：{0}"],
  ["open: {0}", "open：{0}"],
  ["three-way: {0}", "three-way：{0}"],
  ["torch: {0}", "torch：{0}"],
  ["T times {0} = {1}: no element may leave the noise of the whole", "T 乘以 {0} = {1}：任何元素都不应超出整体噪声"],
  ["{0} times the error {1} of the rest of its row or channel", "其所在行或通道其余误差 {1} 的 {0} 倍"],
  ["by itself {0}", "其自身：{0}"],
  ["{0} T = {1}: half of the rows may not be further off", "{0} T = {1}：一半的行不应偏离更多"],
  ["{0} T = {1}: channels that are not golden's largest may not be further off", "{0} T = {1}：标杆最大通道以外的通道不应偏离更多"],
  ["min(4 T, max(1/2, 2 T)) = {0}, times {1} for the scatter of {2} elements", "min(4 T, max(1/2, 2 T)) = {0}，乘以 {2} 个元素的离散系数 {1}"],
  ["{0} times {1}, which nine of ten {2} stay within, times {3} for the scatter of {4} elements", "{1} 的 {0} 倍（十分之九的 {2} 不超过该值），乘以 {4} 个元素的离散系数 {3}"],
  ["{0} for one rounding to {1}, + {2} standard errors of {3}, + r^2/2 of r = {4}: other rounding has no direction", "一次舍入到 {1} 为 {0}，加 {2} 个标准误差 {3}，加 r = {4} 的 r^2/2：其余舍入没有方向"],
  ["T = {0} set by {1}", "T = {0}，由 {1} 设置"],
  ["T = {0} ({1,}), capped at {2}", "T = {0}（{1}），上限 {2}"],
  ["T = {0} ({1,})", "T = {0}（{1}）"],
  ["u = {0} of {1}, which it was computed from", "u = {0}（{1}，由其计算而来）"],
  ["u = {0}, the spacing of subnormal {1} against rms {2}", "u = {0}，次正规 {1} 的间隔相对于 rms {2}"],
  ["u = {0} of {1}", "{1} 的 u = {0}"],
  ["sums of {0} terms at {1}", "{0} 项求和，每项 {1}"],
  ["{0} layer before", "之前有 {0} 层"],
  ["{0} layers before", "之前有 {0} 层"],
  ["{0} for the scatter of only {1} elements", "仅 {1} 个元素，离散系数 {0}"],
  ["{0} for the spread of only {1} rows", "仅 {1} 行，各行舍入不同，系数 {0}"],
  ["{0} for the spread of only {1} row", "仅 {1} 行，各行舍入不同，系数 {0}"],
  ["{0} + {1} of position tables whose frequencies mine has rounded", "{0} + {1}，源于待测对位置编码频率的舍入"],
  ["factor {0} from {1}", "系数 {0}，来自 {1}"],
  ["capped at {0}", "上限 {0}"],
  ["set by {0}", "由 {0} 设置"],
  ["switched off by {0}", "由 {0} 关闭"],
  ["{0} values are exact: indices, masks, counts", "{0} 数值必须精确：下标、掩码、计数"],
  ["golden is all zero, so nothing is relative to it: the smallest normal {0} is the only value that flushing to zero can hide", "标杆全为零，无法取相对值：{0} 的最小正规数是冲零所能掩盖的唯一数值"],
  ["{0}: the result is exact", "{0}：结果必须精确"],
  ["{0}: whole numbers are exact", "{0}：整数必须精确"],
  ["{0}: one step of the quantised value", "{0}：量化值的一个步长"],
  ["{0}: one step of the type", "{0}：该类型的一个步长"],
  ["{0}, sums of {1}: {2}", "{0}，{1} 项求和：{2}"],
  ["mean relative error of {0} below T", "{0} 的平均相对误差低于 T"],
  ["{0}, times {1} by a marker", "{0}，由标记放大 {1} 倍"],
  ["the open standard's row {0}, T = {1}: mean relative error up to T", "公开标准的 {0} 行，T = {1}：平均相对误差不超过 T"],
  ["the open standard's row {0}, T = {1}: largest relative error up to {2} T", "公开标准的 {0} 行，T = {1}：最大相对误差不超过 {2} T"],
  ["T = {0} times {1}'s own error {2} = {3}", "T = {0} 倍的 {1} 自身误差 {2} = {3}"],
  ["the noise run ({0})", "噪声运行（{0}）"],
  ["baseline: {0} accepted", "基线：已接受 {0}"],
  ["known: {0}", "已知差异：{0}"],
  ["{0} ({1}, until {2})", "{0}（{1}，有效期至 {2}）"],

  // Where an error starts (diagnosis).
  ["inherited from {0} at step {1} by way of {2}: {3}", "由第 {1} 步的 {0} 引入，经过 {2}：{3}"],
  ["inherited from {0} at step {1}: {2}", "由第 {1} 步的 {0} 引入：{2}"],
  ["inherited from {0} at step {1} by way of {2}", "由第 {1} 步的 {0} 引入，经过 {2}"],
  ["inherited from {0} at step {1}", "由第 {1} 步的 {0} 引入"],
  ["other shapes follow from what the run was fed: {0}", "形状不同源于两侧的输入：{0}"],
  ["{0} (not computed again: {1})", "{0}（未重新计算：{1}）"],
  ["its inputs differ already, but {0}", "其输入已有差异，但{0}"],
  ["its error is {0} times that of what ran before it (rate of change)", "其误差为此前的 {0} 倍（按增长率判断）"],
  ["{0} lies between it and its inputs, is not compared, and is wrong on its own inputs", "位于它与其输入之间、未参与比较的 {0} 对自身输入计算有误"],
  ["the operator is right on its own inputs, but {0}", "该算子对自身输入的计算正确，但{0}"],
  ["{0} above it is wrong on its own, though within its thresholds", "其上游的 {0} 本身有误，尽管仍在阈值之内"],
  ["{0} above it is within its thresholds, but {1}", "其上游的 {0} 在阈值之内，但{1}"],
  ["{0}, and {1}: more error came from above than rounding makes", "{0}，且{1}：来自上游的误差超出舍入所能造成的"],
  ["{0}, between it and its inputs, is not compared: {1}", "位于它与其输入之间的 {0} 未参与比较：{1}"],
  ["its {0} is {1}, that of layer {2} is {3}", "其 {0} 为 {1}，而 layer {2} 的为 {3}"],
  ["{0}, and the operator is wrong on its own inputs: {1}", "{0}，且该算子对待测自身输入的计算有误：{1}"],
  ["{0}, and the operator is wrong on its own inputs", "{0}，且该算子对待测自身输入的计算有误"],
  ["the operator is wrong on its own inputs: {0}", "该算子对待测自身输入的计算有误：{0}"],
  ["{0} (not compared: {1})", "{0}（未比较：{1}）"],
  ["{0}, but for ties and accumulated rounding", "{0}，平局与累积舍入除外"],
  ["the fault is inside {0}, after {1} and before {2}: {3} differs, and {4}", "错误位于 {0} 内部，{1} 之后、{2} 之前：{3} 不同，而{4}"],
  ["the fault is inside {0}, after {1}: {2} differs, and {3}", "错误位于 {0} 内部，{1} 之后：{2} 不同，而{3}"],
  ["the fault is inside {0}, before {1}: {2} differs, and {3}", "错误位于 {0} 内部，{1} 之前：{2} 不同，而{3}"],
  ["the fault is inside {0}: {1} differs, and {2}", "错误位于 {0} 内部：{1} 不同，而{2}"],
  ["relative L2 error {0}", "相对 L2 误差 {0}"],
  ["relative L2 {0}", "相对 L2 误差 {0}"],
  ["{0} has no reference computation", "{0} 没有参考实现"],
  ["it has {0} elements, too many to compute it again", "它有 {0} 个元素，过多而不再重新计算"],
  ["it wrote {0} where the operator writes {1}", "它写出 {0}，而该算子应写出 {1}"],
  ["what a pair computes from is known by {0}", "每个比较的来源由{0}得知"],
  ["{0} of {1} could not be computed again on their own inputs", "{1} 个中有 {0} 个无法用待测自身输入重新计算"],
  ["{0}; {1} of {2} pairs by execution order", "{0}；其中 {2} 个比较对中的 {1} 个按执行顺序"],
  ["{0} of {1} pairs by {2}", "{1} 个比较对中有 {0} 个按{2}得知"],

  // What the run was fed.
  ["token ids differ at step {0}: {1}", "第 {0} 步的 token ids 不同：{1}"],
  ["token ids of {0} differ at step {1}: {2}", "{0} 的 token ids 在第 {1} 步不同：{2}"],
  ["positions differ at step {0}: {1}", "第 {0} 步的位置编号不同：{1}"],
  ["the mask differs at step {0}: {1}", "第 {0} 步的掩码不同：{1}"],
  ["weight {0} of {1} differs: {2}", "{1} 的权重 {0} 不同：{2}"],
  ["weight {0} of {1} differs", "{1} 的权重 {0} 不同"],
  ["buffer {0} of {1} differs: {2}", "{1} 的缓冲区 {0} 不同：{2}"],
  ["weight {0} differs at step {1}: {2}", "权重 {0} 在第 {1} 步不同：{2}"],
  ["weight {0} differs: {1}", "权重 {0} 不同：{1}"],
  ["input {0} differs at step {1}: {2}", "输入 {0} 在第 {1} 步不同：{2}"],
  ["cache {0} differs at step {1}: {2}", "缓存 {0} 在第 {1} 步不同：{2}"],
  ["{0} differs at step {1}: {2}", "{0} 在第 {1} 步不同：{2}"],
  ["{0} differ at step {1}: {2}", "{0} 在第 {1} 步不同：{2}"],
  ["weights of {0} modules differ: {1}", "{0} 个模块的权重不同：{1}"],
  ["buffers of {0} modules differ: {1}", "{0} 个模块的缓冲区不同：{1}"],
  ["{0} differ: {1}", "{0} 不同：{1}"],
  ["{0} differs: {1}", "{0} 不同：{1}"],
  ["prompts have {0} (golden) and {1} (mine) tokens", "提示词长度不同：标杆 {0} 个 token，待测 {1} 个"],
  ["{0} of {1}, the first at {2}: golden {3}, mine {4}", "{1} 个中有 {0} 个不同，第一个在 {2}：标杆 {3}，待测 {4}"],
  ["golden {0}, mine {1}", "标杆 {0}，待测 {1}"],
  ["golden is {0}, mine {1}", "标杆为 {0}，待测为 {1}"],
  ["the argmax of step {0} diverged", "第 {0} 步的 argmax 已分歧"],
  ["the argmax of mine at step {0} is {1}", "待测在第 {0} 步的 argmax 为 {1}"],
  ["masks in different forms: golden is {0}, mine {1}", "掩码形式不同：标杆 {0}，待测 {1}"],
  ["equal once both are rounded to {0}", "两侧都舍入到 {0} 后相等"],
  ["rounding of {0} to {1}", "{0} 到 {1} 的舍入"],

  // How the two were matched, and brought to one shape.
  ["both are {0}", "两侧均为 {0}"],
  ["{0} is part {1} of golden's packed {2} in every head", "{0} 是标杆打包的 {2} 在每个头中的第 {1} 部分"],
  ["{0} is part {1} of golden's packed {2}", "{0} 是标杆打包的 {2} 的第 {1} 部分"],
  ["{0} is part {1} of the packed {2}", "{0} 是打包的 {2} 的第 {1} 部分"],
  ["part {0} of the packed {1} of both, shard by shard", "两侧打包的 {1} 的第 {0} 部分，逐分片"],
  ["part {0} of every head of {1}", "{1} 每个头的第 {0} 部分"],
  ["part of {0}", "{0} 的一部分"],
  ["{0} is what the cache got at this step", "{0} 是本步写入缓存的内容"],
  ["the rows that were written are {0}", "写入的行是 {0}"],
  ["with the bias it is {0}", "加上偏置后为 {0}"],
  ["summed over ranks it is {0}", "各卡求和后为 {0}"],
  ["same place in the order of {0} operators, same shape", "在 {0} 类算子中次序相同、形状相同"],
  ["type {0} is {1}", "类型 {0} 对应 {1}"],
  ["{0} was optimised to {1} (view->reshape)", "{0} 被优化为 {1}（view->reshape）"],
  ["the FX name is on {0}, which hands the values on", "FX 名称在 {0} 上，它原样传递数值"],
  ["the graph feeds it from {0}", "图中由 {0} 供给"],
  ["whose FX name is known through {0}", "其 FX 名称经由 {0} 得知"],
  ["{0} turns the matrix that {1} turns", "{0} 转置的正是 {1} 转置的矩阵"],
  ["argument {0} of {1}, read by {2}", "{1} 的参数 {0}，由 {2} 读取"],
  ["argument {0} of {1}, read through {2} by {3}", "{1} 的参数 {0}，经 {2} 由 {3} 读取"],
  ["known as output {0} of {1}", "即 {1} 的输出 {0}"],
  ["input {0} of the graph, the only argument of {1} with its shape", "图的输入 {0}，{1} 中唯一具有该形状的参数"],
  ["fused of {0}", "由 {0} 融合而成"],
  ["fusion of {0}", "由 {0} 融合而成"],
  ["self-check, not GE against the other side: {0} hands on its own input", "自检（非 GE 与另一侧比较）：{0} 原样传递其输入"],
  ["golden dumped no call {0} of {1}", "标杆没有转储 {1} 的调用 {0}"],
  ["golden dumped no call of {0}", "标杆没有转储 {0} 的调用"],
  ["FX dumped no call {0}", "FX 没有转储调用 {0}"],
  ["FX dumped no output {0} of {1}", "FX 没有转储 {1} 的输出 {0}"],
  ["golden has no {0} of this name", "标杆没有同名的 {0}"],
  ["original_op {0}", "original_op {0}"],
  ["not compared with {0}: {1}", "未与 {0} 比较：{1}"],
  ["not known which tensor of the graph this output is ({0})", "不知道该输出是图中的哪个张量（{0}）"],
  ["not known which input this is: {0}", "不知道这是哪个输入：{0}"],
  ["shapes {0} and {1} do not agree", "形状 {0} 与 {1} 不一致"],
  ["{0} (statistics of {1} elements (golden) say nothing of {2} elements (mine))", "{0}（标杆 {1} 个元素的统计量不能说明待测的 {2} 个元素）"],
  ["{0} (same size, but nothing else says so)", "{0}（大小相同，但没有其他依据）"],
  ["{0} (data shape doesn't match: golden {1}, mine {2})", "{0}（形状不一致：标杆 {1}，待测 {2}）"],
  ["statistics of {0} elements (golden) say nothing of {1} elements (mine)", "标杆 {0} 个元素的统计量不能说明待测的 {1} 个元素"],
  ["only part of the tensor is compared, and the dump has statistics of the whole only ({0})", "只涉及张量的一部分，而没有转储该部分的统计量（{0}）"],
  ["statistics of different numbers of elements cannot be compared: {0}", "元素个数不同的统计量不可比较：{0}"],
  ["a constant of the graph ({0})", "图中的常量（{0}）"],
  ["a value inside of {0}, which FX computes in one go", "{0} 内部的值，FX 一次算出"],
  ["{0} was not dumped, so it is not compared there", "{0} 未转储，因此在该处不比较"],
  ["{0} shards concatenated along the last dimension", "{0} 个分片沿最后一维拼接"],
  ["{0} shards concatenated along the first dimension", "{0} 个分片沿第一维拼接"],
  ["{0}, each shard held by {1} ranks", "{0}，每个分片由 {1} 张卡持有"],
  ["elements {0} of each head of {1}", "每个头 {1} 个元素中的 {0}"],
  ["newest {0} of {1} tokens of the cache", "缓存 {1} 个 token 中最新的 {0} 个"],
  ["part {0} of {1}: columns {2} of {3}", "{1} 部分中的第 {0} 部分：{3} 列中的 {2}"],
  ["partial results of {0} ranks summed", "{0} 张卡的部分结果已求和"],
  ["{0}, the worst of {1} replicas", "{0}，{1} 个副本中最差的"],
  ["replicated on {0} ranks, every replica compared", "在 {0} 张卡上复制，每个副本都已比较"],
  ["rows {0} of a table of {1} positions", "{1} 个位置的表中的第 {0} 行"],
  ["{0} repeated {1} times, for the other run had a batch as many times as large", "{0} 重复 {1} 次，因为另一次运行的 batch 是其倍数"],
  ["golden holds {0} elements, mine {1}", "标杆有 {0} 个元素，待测有 {1} 个"],
  ["the worst element is {0} ULP of {1} from golden", "最差的元素与标杆相差 {0} 个 {1} ULP"],
  ["its exact value is {0}", "其精确值为 {0}"],
  ["not judged: {0}, written in place and not dumped after execution", "未判定：{0} 被原地写入，且执行后未转储"],
  ["dumped as {0}, written as {1}", "转储为 {0}，应写为 {1}"],
  ["{0} has the shape {1}, but the operator writes {2}", "{0} 的形状为 {1}，但该算子应写出 {2}"],
  ["{0} is {1}, but the operator writes {2} with these parameters and inputs", "{0} 为 {1}，但该算子在这些参数和输入下应写出 {2}"],
  ["{0} has no file in the dump, but the operator writes it", "dump 中没有 {0} 的文件，尽管该算子会写出它"],
  ["not supported: {0} has no reference computation: {1}", "不支持：{0} 没有参考实现：{1}"],
  ["not supported: {0} is not in the catalogue (acc opcheck --list)", "不支持：{0} 不是可计算的算子（acc opcheck --list）"],
  ["cannot judge: {0}", "无法判定：{0}"],
  ["if the dump is of that chip, add -o acc_opcheck_soc={0}", "如果 dump 来自该芯片，请加上 -o acc_opcheck_soc={0}"],
  ["{0} has no output that could be judged", "{0} 没有可判定的输出"],
  ["the dump has {0} outputs of {1}, but {2} with these parameters writes {3}", "dump 中 {1} 有 {0} 个输出，但 {2} 在这些参数下应写出 {3} 个"],
  ["{0}: computes on {1} ranks, but its files are not in a dump of all ranks", "{0}：在 {1} 张卡上计算，但其文件不在完整的 dump 中"],
  ["{0}: holds no tensors of {1} (before, after)", "{0}：没有 {1} 的张量（before、after）"],
  ["input {0} of {1} ({2}) has no file in {3}", "{1} 的输入 {0}（{2}）在 {3} 中没有文件"],
  ["the row expects the operator to fail with {0}, so it has no output to check", "该行期望算子以 {0} 失败，因此没有可检查的输出"],
  ["by the rules of {0} it passes", "按 {0} 的规则可以通过"],

  // The plan, and the files.
  ["ranks: golden {0}, mine {1}", "卡数：标杆 {0}，待测 {1}"],
  ["ranks: {0} on both sides, compared rank by rank", "卡数：两侧均为 {0}，逐卡比较"],
  ["all ranks at once in {0} pairs", "{0} 个比较对一次比较所有卡"],
  ["token policy {0}: one model, directory d is step d ({1})", "token 策略 {0}：单个模型，目录 d 即第 d 步（{1}）"],
  ["token policy {0}: directory 0 is a warm-up run, 1 holds prefill and decode 1, k decode k ({1})", "token 策略 {0}：目录 0 为预热，1 含预填充与第 1 次解码，k 为第 k 次解码（{1}）"],
  ["the prefill model ran again in directory {0}", "预填充模型在目录 {0} 中再次运行"],
  ["rank {0} was dumped by {1} only", "第 {0} 卡仅由 {1} 侧转储"],
  ["{0} was dumped by {1} only", "{0} 仅由 {1} 侧转储"],
  ["{0} holds no {1}", "{0} 中没有 {1}"],
  ["layers: only the {0} of {1} have a counterpart", "层：只有 {1} 的 {0} 有对应"],
  ["layers: golden has {0}, mine {1}", "层数：标杆 {0}，待测 {1}"],
  ["the first {0} are mapped", "已映射前 {0} 层"],
  ["weights: {0}", "权重：{0}"],
  ["{0} of golden and {1} of mine are not compared", "标杆 {0} 个、待测 {1} 个未比较"],
  ["{0} states none (weights.json)", "{0} 侧没有其描述（weights.json）"],
  ["no manifest vouches for weights.json of {0}", "没有 manifest 证实 {0} 侧的 weights.json"],
  ["judged again from {0}: no tensor is read", "由 {0} 重新判定：不读取张量"],
  ["the rows are of {0} of the {1} pairs of that run", "这些行涵盖该次运行 {1} 个比较对中的 {0} 个"],
  ["incomplete: no file is of shard {0}", "不完整：缺少分片 {0} 的文件"],
  ["{0} is incomplete: the run that wrote it was killed, or the file was cut, after line {1}, and what it had not yet compared is not in it", "{0} 不完整：写出它的运行被终止，或文件在第 {1} 行之后被截断，尚未比较的内容不在其中"],
  ["{0} is incomplete: the run that wrote it was stopped early, and what it had not yet compared is not in it", "{0} 不完整：写出它的运行提前停止，尚未比较的内容不在其中"],
  ["incomplete: {0} of {1} tests did not come to their end, the first {2}", "不完整：{1} 个测试中有 {0} 个没有结束，首个为 {2}"],
  ["{0} elements: no more than {1} are read for all pictures of a page", "{0} 个元素：一页的全部数值图最多读取 {1} 个"],
  ["lock: {0} thresholds of {1} comparisons are looser than in {2}", "锁定：{1} 项比较的 {0} 个阈值比 {2} 中宽松"],
  ["input {0}", "输入 {0}"],
  ["weight {0}", "权重 {0}"],
  ["buffer {0}", "缓冲区 {0}"],
  ["cache {0}", "缓存 {0}"],
  ["mask {0}", "掩码 {0}"],
  ["positions {0}", "位置编号 {0}"],
  ["{0} of each of {1} shards", "{1} 个分片中每片的 {0}"],
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
