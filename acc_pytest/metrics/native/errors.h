// The sums of a tile's values, errors and products, over all and by row and column.
#pragma once

#include "summing.h"

namespace {

constexpr float NEAR_ZERO = 0x1p-23f;
constexpr float PLAIN = 0x1p-100f;  // an atol from here on does not tell a subnormal number from 0
constexpr float CLOSE = 0.25f;  // up to this |d|^2 / |g|^2 products with mine follow from those with d

// The place of the largest error, the first one of several.
void Block::locate(float peak, int64_t start) {
    if (!(peak > 0 && peak >= _result.peak)) return;
    for (int i = 0; i < _tile.rows * _tile.padded; i++)
        if (fabsf(_tile.difference[i]) == peak) {
            int64_t flat = start + _tile.flat(i);
            if (peak > _result.peak || flat < _result.peak_at) _result.peak_at = flat;
            break;
        }
    _result.peak = peak;
}

// The |golden| up to which a tile is near zero: 0 until something is larger than NEAR_ZERO, which then makes all
// before it near zero.
float Block::floor(float golden_peak, int64_t before) {
    bool seen = _result.golden_peak > NEAR_ZERO;
    _result.golden_peak = fmax(_result.golden_peak, golden_peak);
    if (!(_result.golden_peak > NEAR_ZERO)) return 0;
    if (!seen) {
        for (double &lane : _sums[RELATIVE]) lane = 0;
        _relative_peak = Floats{};
        _result.near_zero = before;
    }
    return NEAR_ZERO;
}

// Sums of all but the divergence. Subnormal numbers are flushed meanwhile: a million of 2^-126 are nothing beside a
// largest error and golden value from SMALLEST on, nor beside its square. An error relative to what is not near
// zero is no subnormal number, as float32 has no such steps there. Where that or `atol` does not hold, values are
// EXACT: lifted to where they are normal before they are divided and compared.
template <bool EXACT> void Block::errors(float floor, int64_t row) {
    const Tile &tile = _tile;
    float rtol = _request.rtol, atol = _request.atol * (EXACT ? ldexpf(1, LIFT) : 1);
    float nearest = floor * (EXACT ? ldexpf(1, LIFT) : 1), g_lever = float(_g_lever), d_lever = float(_d_lever);
    int64_t all_rows = _request.elements / _request.channels;
    double levers[3] = {_g_lever * _g_lever, _g_lever * _d_lever, _d_lever * _d_lever};
    int vectors = tile.padded / LANES, chained = 0;
    Floats golden{}, difference{}, absolute{}, relative{};
    Floats relative_peak = _relative_peak, scaled_peak = _scaled_peak;
    Ints near{}, beyond{};
    for (int r = 0; r < tile.rows; r++) {
        double of_row[3] = {};
        for (int first = 0; first < vectors; first += CHAIN) {
            Floats gg{}, gd{}, dd{};
            int last = first + CHAIN < vectors ? first + CHAIN : vectors;
            for (int v = first; v < last; v++) {
                int at = r * tile.padded + v * LANES;
                Floats g = load<Floats>(tile.golden + at), d = load<Floats>(tile.difference + at);
                Floats length = size(g), error = size(d);
                golden += g, difference += d, absolute += error;
                Floats g_long = g * g_lever, d_long = d * d_lever;
                gg += g_long * g_long, gd += g_long * d_long, dd += d_long * d_long;
                Floats whole = EXACT ? lifted(length) : length, apart = EXACT ? lifted(error) : error;
                Floats allowed = whole * rtol;
                KEEP_ROUNDED(allowed);
                beyond += apart > allowed + atol;
                Ints zero = whole <= nearest;
                near += zero;
                Floats quotient = apart / whole;
                scaled_peak = larger(smaller(quotient, error), scaled_peak);
                quotient = as_floats(as_ints(quotient) & ~zero);
                relative += quotient;
                relative_peak = larger(quotient, relative_peak);
            }
            of_row[0] += total(gg), of_row[1] += total(gd), of_row[2] += total(dd);
            chained += last - first;
            if (chained + vectors > CHAIN) {
                empty(GOLDEN, golden), empty(DIFFERENCE, difference);
                empty(ABSOLUTE, absolute), empty(RELATIVE, relative);
                chained = 0;
            }
        }
        for (int k = 0; k < 3; k++) {
            of_row[k] /= levers[k];
            _products[k] += of_row[k];
            if (_request.rows) _request.rows[k * all_rows + row + r] += of_row[k];
        }
    }
    empty(GOLDEN, golden), empty(DIFFERENCE, difference), empty(ABSOLUTE, absolute), empty(RELATIVE, relative);
    _relative_peak = relative_peak, _scaled_peak = scaled_peak;
    _result.near_zero += count(near), _result.beyond += count(beyond);
}

// Sums of the products by column.
void Block::columns(int64_t column) {
    const Tile &tile = _tile;
    float g_lever = float(_g_lever), d_lever = float(_d_lever);
    double levers[3] = {g_lever * _g_lever, g_lever * _d_lever, d_lever * _d_lever};
    for (int top = 0; top < tile.rows; top += CHAIN) {
        int bottom = top + CHAIN < tile.rows ? top + CHAIN : tile.rows;
        for (int at = 0; at < tile.padded; at += LANES) {
            Floats products[3] = {};
            for (int r = top; r < bottom; r++) {
                Floats g = load<Floats>(tile.golden + r * tile.padded + at);
                Floats d = load<Floats>(tile.difference + r * tile.padded + at);
                g *= g_lever, d *= d_lever;
                products[0] += g * g, products[1] += g * d, products[2] += d * d;
            }
            int width = tile.columns - at < LANES ? tile.columns - at : LANES;
            for (int k = 0; k < 3; k++) {
                double *to = _request.columns + k * _request.channels + column + at;
                double back = 1 / levers[k];
                float lanes[LANES];
                store(lanes, products[k]);
                if (width == LANES)
                    for (int i = 0; i < LANES; i++) to[i] += lanes[i] * back;
                else
                    for (int i = 0; i < width; i++) to[i] += lanes[i] * back;
            }
        }
    }
}

// What follows from the products; those with mine of unrelated sides would cancel, so they are summed.
void Block::add_products(int64_t start) {
    double gg = _products[0], gd = _products[1], dd = _products[2];
    _result.golden_squared += gg, _result.golden_difference += gd, _result.difference_squared += dd;
    if (dd <= CLOSE * gg) {
        _result.golden_mine += gg + gd, _result.mine_squared += gg + 2 * gd + dd;
        return;
    }
    Extent m, d;
    if (!_excluded) _mine.widen(start, _tile, nullptr, _tile.mine, m, d);
    double with_golden[LANES] = {}, squared[LANES] = {};
    for (int i = 0; i < _tile.rows * _tile.padded; i += LANES)
        for (int lane = 0; lane < LANES; lane++) {
            double own = _tile.mine[i + lane], other = _tile.golden[i + lane];
            with_golden[lane] += own * other, squared[lane] += own * own;
        }
    for (int lane = 0; lane < LANES; lane++)
        _result.golden_mine += with_golden[lane], _result.mine_squared += squared[lane];
}

}  // namespace
