// The sums of a tile's values, errors and products, over all and by row and column.
#pragma once

#include "summing.h"

namespace {

constexpr float NEAR_ZERO = 0x1p-23f;
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

void Block::errors(float floor, int64_t row, int64_t start) {
    const Tile &tile = _tile;
    float rtol = _request.rtol, atol = _request.atol;
    int64_t all_rows = _request.elements / _request.channels;
    int vectors = tile.padded / LANES, chained = 0;
    Floats golden{}, difference{}, absolute{}, relative{};
    Floats relative_peak = _relative_peak, scaled_peak = _scaled_peak;
    Ints near{}, beyond{};
    double products[3] = {};
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
                gg += g * g, gd += g * d, dd += d * d;
                Floats allowed = length * rtol;
                KEEP_ROUNDED(allowed);
                beyond += error > allowed + atol;
                Ints zero = length <= floor;
                near += zero;
                Floats quotient = error / length;
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
            products[k] += of_row[k];
            if (_request.rows) _request.rows[k * all_rows + row + r] += of_row[k];
        }
    }
    empty(GOLDEN, golden), empty(DIFFERENCE, difference), empty(ABSOLUTE, absolute), empty(RELATIVE, relative);
    _relative_peak = relative_peak, _scaled_peak = scaled_peak;
    _result.near_zero += count(near), _result.beyond += count(beyond);
    add_products(products[0], products[1], products[2], start);
}

// Sums of the products by column.
void Block::columns(int64_t column) {
    const Tile &tile = _tile;
    for (int top = 0; top < tile.rows; top += CHAIN) {
        int bottom = top + CHAIN < tile.rows ? top + CHAIN : tile.rows;
        for (int at = 0; at < tile.padded; at += LANES) {
            Floats products[3] = {};
            for (int r = top; r < bottom; r++) {
                Floats g = load<Floats>(tile.golden + r * tile.padded + at);
                Floats d = load<Floats>(tile.difference + r * tile.padded + at);
                products[0] += g * g, products[1] += g * d, products[2] += d * d;
            }
            int width = tile.columns - at < LANES ? tile.columns - at : LANES;
            for (int k = 0; k < 3; k++) {
                double *to = _request.columns + k * _request.channels + column + at;
                float lanes[LANES];
                store(lanes, products[k]);
                if (width == LANES)
                    for (int i = 0; i < LANES; i++) to[i] += lanes[i];
                else
                    for (int i = 0; i < width; i++) to[i] += lanes[i];
            }
        }
    }
}

// What follows from the products; those with mine of unrelated sides would cancel, so they are summed.
void Block::add_products(double gg, double gd, double dd, int64_t start) {
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
