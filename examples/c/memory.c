/* The distinct values of a top-k, on any device, in memory that the library allocates:
 * all that there is on wgpu, whose memory has no addresses.
 *
 *     cc -std=c99 memory.c $(pkg-config --cflags --libs spec) -o memory && ./memory wgpu
 */
#include <spec.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void check(spec_status status) {
    char words[512];
    if (status == SPEC_STATUS_SUCCESS) {
        return;
    }
    spec_last_error(words, sizeof words);
    fprintf(stderr, "%s\n", words);
    exit(EXIT_FAILURE);
}

static spec_tensor matrix(int64_t rows, int64_t cols) {
    spec_tensor tensor = {0};
    tensor.dtype = SPEC_DTYPE_I32;
    tensor.rank = 2;
    tensor.shape[0] = rows;
    tensor.shape[1] = cols;
    return tensor;
}

/* Memory of the library's, and what stands for it in a call: its address, or the memory
 * itself on wgpu. */
struct memory {
    spec_memory *memory;
    void *argument;
};

static struct memory allocate(spec_handle *device, size_t bytes) {
    struct memory made = {NULL, NULL};
    check(spec_allocate(device, bytes, &made.memory));
    if (spec_memory_address(made.memory, &made.argument) == SPEC_STATUS_NOT_IMPLEMENTED) {
        made.argument = made.memory;
    }
    return made;
}

int main(int count, char **words) {
    enum { STEPS = 2, K = 4 };
    const int32_t indices[STEPS * K] = {3, 1, 7, -1, 1, 9, 3, 4};
    const int32_t expected[STEPS * K] = {1, 3, 4, 7, 9, -1, -1, -1};
    int32_t unique[STEPS * K];

    spec_handle *device = NULL;
    check(spec_open(count > 1 ? words[1] : "auto", &device));
    spec_device about;
    check(spec_handle_device(device, &about));
    printf("%s: %s\n", about.name, about.description);

    spec_deduplicate_topk_params params = {0};
    params.size = sizeof params;
    params.mtp_step = STEPS;
    spec_deduplicate_topk_tensors tensors = {0};
    tensors.size = sizeof tensors;
    tensors.indices = matrix(STEPS, K);
    tensors.unique = matrix(1, STEPS * K);
    spec_descriptor *distinct = NULL;
    check(spec_deduplicate_topk_create(device, &params, &tensors, &distinct));

    size_t bytes = 0;
    check(spec_workspace_size(distinct, &bytes));
    struct memory workspace = allocate(device, bytes);
    struct memory in = allocate(device, sizeof indices);
    struct memory out = allocate(device, sizeof unique);
    check(spec_write(in.memory, 0, indices, sizeof indices));

    /* The stream that memory of the library's is ordered by; NULL but on CUDA. */
    void *stream = NULL;
    check(spec_handle_stream(device, &stream));
    spec_deduplicate_topk_buffers buffers = {0};
    buffers.size = sizeof buffers;
    buffers.indices = in.argument;
    buffers.unique = out.argument;
    check(spec_deduplicate_topk_calculate(distinct, workspace.argument, bytes, &buffers, stream));

    /* Waits for the work. */
    check(spec_read(out.memory, 0, unique, sizeof unique));
    for (int i = 0; i < STEPS * K; i++) {
        printf("%d ", (int)unique[i]);
    }
    printf("\n");

    check(spec_free(in.memory));
    check(spec_free(out.memory));
    check(spec_free(workspace.memory));
    check(spec_destroy(distinct));
    check(spec_close(device));
    return memcmp(unique, expected, sizeof unique) == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
