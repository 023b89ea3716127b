/* A program that was compiled with an older header, whose structs have fewer fields, at the places
 * of that header. The structs are defined here and not taken from spec.h, so that this program's
 * results become wrong if a field moves in spec.h. */
#include <spec.h>
#include <stdio.h>
#include <string.h>

typedef struct {
    size_t size;
    uint64_t scoring, select;
    size_t groups, topk_groups;
    uint64_t group_score, masked;
    size_t topk;
} older_params;

typedef struct {
    size_t size;
    spec_tensor x, bias, num_tokens, replicas, replica_counts, weights, indices;
} older_tensors;

typedef struct {
    size_t size;
    const void *x, *bias, *num_tokens, *replicas, *replica_counts;
    void *weights, *indices;
} older_buffers;

static int fine(spec_status status, const char *call) {
    char words[512];
    if (status == SPEC_STATUS_SUCCESS) {
        return 1;
    }
    spec_last_error(words, sizeof words);
    fprintf(stderr, "%s: %s\n", call, words);
    return 0;
}

static spec_tensor matrix(uint32_t dtype, int64_t rows, int64_t cols) {
    spec_tensor made;
    memset(&made, 0, sizeof made);
    made.dtype = dtype;
    made.rank = 2;
    made.shape[0] = rows;
    made.shape[1] = cols;
    return made;
}

int main(void) {
    const float x[2][4] = {{1, 4, 2, 3}, {9, 8, 7, 6}};
    float weights[2][2];
    int32_t indices[2][2];
    spec_handle *cpu = NULL;
    spec_descriptor *router = NULL;
    older_params params;
    older_tensors tensors;
    older_buffers buffers;

    memset(&params, 0, sizeof params);
    params.size = sizeof params;
    memset(&tensors, 0, sizeof tensors);
    tensors.size = sizeof tensors;
    tensors.x = matrix(SPEC_DTYPE_F32, 2, 4);
    tensors.weights = matrix(SPEC_DTYPE_F32, 2, 2);
    tensors.indices = matrix(SPEC_DTYPE_I32, 2, 2);
    memset(&buffers, 0, sizeof buffers);
    buffers.size = sizeof buffers;
    buffers.x = x;
    buffers.weights = weights;
    buffers.indices = indices;

    if (!fine(spec_open("cpu", &cpu), "spec_open") ||
        !fine(spec_topk_router_defaults((spec_topk_router_params *)&params), "defaults")) {
        return 1;
    }
    params.scoring = SPEC_SCORING_SOFTMAX;
    params.topk = 2;
    /* The library must neither read nor write memory behind the older structs. */
    if (!fine(spec_topk_router_create(cpu, (const spec_topk_router_params *)&params,
                                      (const spec_topk_router_tensors *)&tensors, &router),
              "create") ||
        !fine(spec_topk_router_calculate(router, NULL, 0, (const spec_topk_router_buffers *)&buffers,
                                         NULL),
              "calculate")) {
        return 1;
    }
    /* The options that the older struct lacks have their defaults: the weights sum up to 1. */
    if (indices[0][0] != 1 || indices[0][1] != 3 || indices[1][0] != 0 || indices[1][1] != 1 ||
        weights[0][0] + weights[0][1] < 0.999f || weights[0][0] + weights[0][1] > 1.001f) {
        fprintf(stderr, "experts %d %d, weights %f %f\n", (int)indices[0][0], (int)indices[0][1],
                (double)weights[0][0], (double)weights[0][1]);
        return 1;
    }
    return fine(spec_destroy(router), "destroy") && fine(spec_close(cpu), "close") ? 0 : 1;
}
