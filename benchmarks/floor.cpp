// The least that a comparison could take: a list of pairs, one pass of all metrics over both files of each.
//
//     floor LIST        each line: golden file, offset, dtype, mine file, offset, dtype, elements; by tabs
//
// Seven metrics of each pair, NaN and Inf counted, nothing kept, one thread; prints a sum of all so that none is
// left out by the compiler.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fcntl.h>
#include <fstream>
#include <sstream>
#include <string>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#ifdef __F16C__
#include <immintrin.h>
using Half = uint16_t;
#else
using Half = __fp16;
#endif

constexpr int64_t BLOCK = 4096;

struct File {
    char *base;
    size_t bytes;
    explicit File(const std::string &path) {
        int file = open(path.c_str(), O_RDONLY);
        struct stat status;
        if (file < 0 || fstat(file, &status)) perror(path.c_str()), exit(1);
        bytes = status.st_size;
        base = static_cast<char *>(mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE | MAP_POPULATE, file, 0));
        close(file);
    }
    ~File() { munmap(base, bytes); }
};

void widened(const char *from, const std::string &dtype, int64_t first, int64_t count, float *into) {
    if (dtype == "float32") {
        memcpy(into, from + 4 * first, 4 * count);
        return;
    }
    const char *halves = from + 2 * first;
    if (dtype == "bfloat16") {
        for (int64_t i = 0; i < count; i++) {
            uint16_t half;
            memcpy(&half, halves + 2 * i, 2);
            uint32_t bits = uint32_t(half) << 16;
            memcpy(into + i, &bits, 4);
        }
        return;
    }
    int64_t i = 0;
#ifdef __F16C__
    for (; i + 8 <= count; i += 8)
        _mm256_storeu_ps(into + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(halves + 2 * i))));
#endif
    for (; i < count; i++) {
        Half half;
        memcpy(&half, halves + 2 * i, 2);
#ifdef __F16C__
        into[i] = _cvtsh_ss(half);
#else
        into[i] = half;
#endif
    }
}

struct Sums {
    double gg = 0, mm = 0, gm = 0, dd = 0, absolute = 0, relative = 0;
    double golden_exp = 0, mine_exp = 0, weighted = 0;  // relative to `top`
    float top = -INFINITY, peak = 0, relative_peak = 0;
    int64_t infinite = 0;

    void add(const float *g, const float *m, int64_t count) {
        float gg_ = 0, mm_ = 0, gm_ = 0, dd_ = 0, absolute_ = 0, relative_ = 0, high = top, largest = 0, ratio = 0;
        int32_t odd = 0;
        for (int64_t i = 0; i < count; i++) {
            float d = m[i] - g[i], size = fabsf(d), length = fabsf(g[i]);
            float share = length > 0x1p-23f ? size / length : 0;
            gg_ += g[i] * g[i], mm_ += m[i] * m[i], gm_ += g[i] * m[i], dd_ += d * d, absolute_ += size;
            relative_ += share, ratio = share > ratio ? share : ratio, largest = size > largest ? size : largest;
            high = g[i] > high ? g[i] : high;
            uint32_t bits;
            memcpy(&bits, m + i, 4);
            odd += (bits & 0x7f800000) == 0x7f800000;
        }
        double scale = std::exp(double(top) - high);
        float golden_ = 0, mine_ = 0, weighted_ = 0;
        for (int64_t i = 0; i < count; i++) {
            float weight = expf(g[i] - high);
            golden_ += weight, mine_ += expf(m[i] - high), weighted_ += weight * (g[i] - m[i]);
        }
        golden_exp = golden_exp * scale + golden_, mine_exp = mine_exp * scale + mine_;
        weighted = weighted * scale + weighted_, top = high, infinite += odd;
        gg += gg_, mm += mm_, gm += gm_, dd += dd_, absolute += absolute_, relative += relative_;
        peak = largest > peak ? largest : peak, relative_peak = ratio > relative_peak ? ratio : relative_peak;
    }

    double all(int64_t count) const {
        double divergence = weighted / golden_exp + std::log(mine_exp / golden_exp);
        return gm / std::sqrt(gg * mm) + std::sqrt(dd / gg) + (absolute + relative) / count + peak + relative_peak +
               divergence + infinite;
    }
};

int main(int, char **arguments) {
    std::ifstream list(arguments[1]);
    std::string line;
    double sum = 0;
    while (std::getline(list, line)) {
        std::string path[2], dtype[2], word;
        int64_t offset[2], count;
        std::istringstream words(line);
        for (int side = 0; side < 2; side++) {
            std::getline(words, path[side], '\t'), std::getline(words, word, '\t');
            offset[side] = std::stoll(word);
            std::getline(words, dtype[side], '\t');
        }
        words >> count;
        File golden(path[0]), mine(path[1]);
        Sums sums;
        float g[BLOCK], m[BLOCK];
        for (int64_t first = 0; first < count; first += BLOCK) {
            int64_t size = count - first < BLOCK ? count - first : BLOCK;
            widened(golden.base + offset[0], dtype[0], first, size, g);
            widened(mine.base + offset[1], dtype[1], first, size, m);
            sums.add(g, m, size);
        }
        sum += sums.all(count);
    }
    printf("%g\n", sum);
}
