/* The experts of two tokens, on the CPU, in memory of one's own.
 *
 *     cc -std=c99 router.c $(pkg-config --cflags --libs spec) -o router && ./router
 */
#include <spec.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

/* Ends the program with the library's own words for what went wrong. */
static void check(spec_status status) {
    char words[512];
    if (status == SPEC_STATUS_SUCCESS) {
        return;
    }
    spec_last_error(words, sizeof words);
    fprintf(stderr, "%s\n", words);
    exit(EXIT_FAILURE);
}

/* A packed matrix. */
static spec_tensor matrix(uint32_t dtype, int64_t rows, int64_t cols) {
    spec_tensor tensor = {0};
    tensor.dtype = dtype;
    tensor.rank = 2;
    tensor.shape[0] = rows;
    tensor.shape[1] = cols;
    return tensor;
}

int main(void) {
    /* What a router of eight experts says of two tokens. */
    enum { TOKENS = 2, EXPERTS = 8, TOPK = 2 };
    const float logits[TOKENS * EXPERTS] = {
        0.1f, 2.0f, 0.3f, 0.4f, 1.5f, 0.0f, -1.0f, 0.2f, /* experts 1 and 4 */
        3.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f,  3.5f, /* experts 7 and 0 */
    };
    const int32_t expected[TOKENS * TOPK] = {1, 4, 7, 0};
    float weights[TOKENS * TOPK];
    int32_t indices[TOKENS * TOPK];

    spec_handle *cpu = NULL;
    check(spec_open("cpu", &cpu));

    /* Parameters: those of a published model, or `spec_topk_router_defaults` and what
     * differs from them. */
    spec_topk_router_params params = {0};
    params.size = sizeof params;
    check(spec_topk_router_preset("Mixtral", &params, NULL, NULL));

    /* Tensors: those that are not described are absent. */
    spec_topk_router_tensors tensors = {0};
    tensors.size = sizeof tensors;
    tensors.x = matrix(SPEC_DTYPE_F32, TOKENS, EXPERTS);
    tensors.weights = matrix(SPEC_DTYPE_F32, TOKENS, TOPK);
    tensors.indices = matrix(SPEC_DTYPE_I32, TOKENS, TOPK);

    /* Created once for a shape: this checks everything. */
    spec_descriptor *router = NULL;
    check(spec_topk_router_create(cpu, &params, &tensors, &router));

    size_t bytes = 0;
    check(spec_workspace_size(router, &bytes));
    void *workspace = malloc(bytes > 0 ? bytes : 1);

    /* Called as often as there are tokens to route. */
    spec_topk_router_buffers buffers = {0};
    buffers.size = sizeof buffers;
    buffers.x = logits;
    buffers.weights = weights;
    buffers.indices = indices;
    check(spec_topk_router_calculate(router, workspace, bytes, &buffers, NULL));

    int wrong = 0;
    for (int pick = 0; pick < TOKENS * TOPK; pick++) {
        printf("token %d: expert %d, weight %.4f\n", pick / TOPK, (int)indices[pick], weights[pick]);
        wrong |= indices[pick] != expected[pick];
    }

    free(workspace);
    check(spec_destroy(router));
    check(spec_close(cpu));
    return wrong ? EXIT_FAILURE : EXIT_SUCCESS;
}
