// The kernel as a program that a test talks to through pipes: sizes and both sides in, what was found out.
#include "../../../acc_pytest/metrics/native/block.h"

#include <stdio.h>
#include <stdlib.h>

extern "C" Kernel BLOCK;

struct Sizes {
    int64_t golden_bytes, mine_bytes, rows;  // of rows none where they are not asked for
};

static char *received(int64_t bytes) {
    // One byte off, as mapped tensors may lie, with nothing behind the last one.
    char *data = static_cast<char *>(malloc(bytes + 1)) + 1;
    if (fread(data, 1, bytes, stdin) != size_t(bytes)) exit(1);
    return data;
}

int main() {
    Request request;
    Sizes sizes;
    while (fread(&sizes, sizeof sizes, 1, stdin) == 1 && fread(&request, sizeof request, 1, stdin) == 1) {
        char *golden = received(sizes.golden_bytes), *mine = received(sizes.mine_bytes);
        request.golden = golden, request.mine = mine, request.rows = request.columns = nullptr;
        int64_t columns = sizes.rows ? 3 * request.channels : 0;
        double *sums = static_cast<double *>(calloc(3 * sizes.rows + columns + 1, sizeof(double)));
        if (sizes.rows) request.rows = sums, request.columns = sums + 3 * sizes.rows;
        Result result;
        int64_t taken = BLOCK(request, result);
        fwrite(&taken, sizeof taken, 1, stdout), fwrite(&result, sizeof result, 1, stdout);
        fwrite(sums, sizeof(double), 3 * sizes.rows + columns, stdout);
        fflush(stdout);
        free(golden - 1), free(mine - 1), free(sums);
    }
}
