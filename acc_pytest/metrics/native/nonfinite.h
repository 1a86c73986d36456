// What is not finite in a tile: counted, and left out of everything else.
#pragma once

#include "summing.h"

namespace {

// Counts what is not finite and leaves zeros there, on both sides, that are not kept. `kept` tells of golden's
// values that are.
void Block::exclude(int64_t start, Extent &golden, Extent &mine, Extent &kept) {
    golden = mine = kept = Extent{};
    Ints counts[9] = {}, infinite = Ints{} + _golden.infinite, mine_infinite = Ints{} + _mine.infinite;
    for (int at = 0; at < _tile.rows * _tile.padded; at += LANES) {
        Ints there = lane_numbers() + at % _tile.padded < _tile.columns;
        Floats g = load<Floats>(_tile.golden + at), m = load<Floats>(_tile.mine + at);
        Ints g_size = size_bits(g), m_size = size_bits(m);
        Ints g_finite = (g_size < infinite) & there, m_finite = (m_size < mine_infinite) & there;
        Ints g_nan = (g_size > infinite) & there, m_nan = (m_size > mine_infinite) & there;
        Ints both = g_finite & m_finite, neither = there & ~g_finite & ~m_finite;
        Ints same_nan = g_nan & m_nan, same_inf = neither & ~g_nan & ~m_nan & ((as_ints(g) ^ as_ints(m)) >= 0);
        Ints lost = m_finite & ~g_finite, fresh = g_finite & ~m_finite, changed = neither & ~same_nan & ~same_inf;
        Ints flags[9] = {both, g_finite, m_finite, g_nan, m_nan, same_nan, same_inf, fresh, lost};
        for (int i = 0; i < 9; i++) counts[i] += flags[i];
        golden.add_where(g, g_finite), mine.add_where(m, m_finite), kept.add_where(g, both);
        if (folded(lost | fresh | changed, false)) disagree(start, at, lost | fresh | changed, g, g_finite, m, m_finite);
        store(_tile.golden + at, as_floats(as_ints(g) & both));
        store(_tile.mine + at, as_floats(as_ints(m) & both));
        store(_tile.keep + at, as_floats(as_ints(all(1.0f)) & both));
    }
    Result &r = _result;
    int64_t n[9], elements = int64_t(_tile.rows) * _tile.columns;
    for (int i = 0; i < 9; i++) n[i] = count(counts[i]);
    r.compared += n[0], r.golden_count += n[1], r.mine_count += n[2], r.golden_nan += n[3], r.mine_nan += n[4];
    r.golden_inf += elements - n[1] - n[3], r.mine_inf += elements - n[2] - n[4];
    r.common_nan += n[5], r.common_inf += n[6], r.fresh += n[7], r.lost += n[8];
    r.changed += elements - n[0] - n[5] - n[6] - n[7] - n[8];
}

// Where the sides disagree: the first place, and the sums of what is finite on one side only.
void Block::disagree(int64_t start, int at, Ints where, Floats g, Ints g_finite, Floats m, Ints m_finite) {
    for (int i = 0; i < LANES; i++) {
        if (!where[i]) continue;
        int64_t flat = start + _tile.flat(at + i);
        if (_result.first_disagreeing < 0 || flat < _result.first_disagreeing) _result.first_disagreeing = flat;
        if (g_finite[i]) _result.golden_total += g[i];
        if (m_finite[i]) _result.mine_total += m[i];
    }
}

}  // namespace
