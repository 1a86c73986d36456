// The sums that the divergence of the two softmaxes follows from.
#pragma once

#include "summing.h"

namespace {

constexpr float SMALL = 1.0f / 16;  // up to this |d| four terms of a series are enough
constexpr float STEEP = 16.0f;      // beyond this d, e^d is summed in float64, with an exponent beside it
constexpr float FAINT = 100.0f;  // what lies this far below the shift, on either side, has no weight: e^-100
constexpr float NARROW = 10.0f;     // softmax needs no shift while golden is within this of zero
constexpr float ROOM = 20.0f;       // how far above the shift golden may be

// Moves the shift of softmax(golden) up to `top` where weights would overflow, and sets it first.
void Block::shift(float top, int64_t compared) {
    if (isnan(_scale)) {
        _scale = fabsf(top) <= NARROW ? 0 : top;
        _curved_scale = _scale;
        if (!isnan(_center)) return;
        double offset = 0, squares = 0;
        for (int i = 0; i < _tile.rows * _tile.padded; i++) {
            offset += _tile.difference[i];
            squares += double(_tile.difference[i]) * _tile.difference[i];
        }
        // Most of the difference is one common offset.
        _center = 4 * offset * offset > squares * compared ? float(offset / compared) : 0;
    } else if (top > _scale + ROOM) {
        double factor = exp(double(_scale) - top);
        for (int which = WEIGHT; which <= CURVED; which++)
            for (double &lane : _sums[which]) lane *= factor;
        _scale = top;
    }
}

// Sums of w, w d and w (e^d - 1 - d), with weights w = e^(golden - shift) and d measured from the centre.
template <bool WIDE, bool MASKED> void Block::divergence(float furthest) {
    Floats weight{}, first{}, curved{};
    int vectors = _tile.vectors();
    // Squares of small d would vanish.
    double long_by = WIDE ? 1 : lever(furthest), back = 1 / long_by;
    for (int v = 0; v < vectors; v++) {
        Floats g = load<Floats>(_tile.golden + v * LANES), d = load<Floats>(_tile.difference + v * LANES) - _center;
        Floats w = exponential(g - _scale);
        if (MASKED) w *= load<Floats>(_tile.keep + v * LANES);
        Floats d_long = d * float(long_by), wd = w * d_long;
        weight += w, first += wd;
        if (WIDE) {
            // With d = n log(2) + r: e^d - 1 - d = 2^n (e^r - 1 - r) + (2^n (1 + r) - (1 + d)).
            Power p = reduced(larger(d, all(-87.0f)));
            Floats two = times(all(1.0f), p.shift);
            Floats rest = two * (1.0f + p.r) - (1.0f + d);
            curved += w * (two * ((p.r * p.r) * bend(p.r)) + rest);
        } else {
            curved += wd * (d_long * (((d * (1.0f / 120) + 1.0f / 24) * d + 1.0f / 6) * d + 0.5f));
        }
        if (v % CHAIN == CHAIN - 1 || v == vectors - 1)
            empty(WEIGHT, weight), empty(FIRST, first, back), empty(CURVED, curved, back * back);
    }
}

// The same in float64 where d is large: rounded to float32 it would not do as an exponent.
void Block::steep(int64_t start, bool masked) {
    Extent m, apart;
    if (!_excluded) _mine.widen(start, _tile, nullptr, _tile.mine, m, apart);
    double top = -INFINITY;
    int elements = _tile.rows * _tile.padded;
    for (int i = 0; i < elements; i++) {
        double d = double(_tile.mine[i]) - _center;
        if (d > top && (!masked || _tile.keep[i])) top = d;
    }
    if (top > _curved_scale) _steep *= exp(_curved_scale - top), _curved_scale = top;
    float least = float(_scale) - FAINT, mine_least = float(_curved_scale + _center) - FAINT;
    for (int at = 0; at < elements; at += LANES) {
        Ints seen = (load<Floats>(_tile.golden + at) >= least) | (load<Floats>(_tile.mine + at) >= mine_least);
        if (!folded(seen, false)) continue;
        for (int i = at; i < at + LANES; i++) {
            if (masked && !_tile.keep[i]) continue;
            double g = _tile.golden[i], d = double(_tile.mine[i]) - g - _center, w = exp(g - _scale);
            _sums[WEIGHT][i - at] += w, _sums[FIRST][i - at] += w * d;
            if (d > STEEP)
                _steep += exp(g + d - _curved_scale) - exp(g - _curved_scale) * (1 + d);
            else
                _sums[CURVED][i - at] += w * (expm1(d) - d);
        }
    }
}

}  // namespace
