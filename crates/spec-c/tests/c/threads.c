/* Threads that share a handle and a descriptor, each with its own buffers. */
#define _POSIX_C_SOURCE 200809L
#include <pthread.h>
#include <spec.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { THREADS = 4, CALLS = 200, STEPS = 3, K = 64 };

static spec_handle *cpu;
static spec_descriptor *shared;

static spec_status make(spec_descriptor **distinct) {
    spec_deduplicate_topk_params params = {0};
    params.size = sizeof params;
    params.mtp_step = STEPS;
    spec_deduplicate_topk_tensors tensors = {0};
    tensors.size = sizeof tensors;
    tensors.indices.dtype = tensors.unique.dtype = SPEC_DTYPE_I32;
    tensors.indices.rank = tensors.unique.rank = 2;
    tensors.indices.shape[0] = STEPS;
    tensors.indices.shape[1] = K;
    tensors.unique.shape[0] = 1;
    tensors.unique.shape[1] = STEPS * K;
    return spec_deduplicate_topk_create(cpu, &params, &tensors, distinct);
}

static int right(const spec_descriptor *distinct, int32_t first) {
    int32_t indices[STEPS * K], unique[STEPS * K];
    for (int i = 0; i < STEPS * K; i++) {
        indices[i] = first + i % K;
    }
    size_t bytes = 0;
    if (spec_workspace_size(distinct, &bytes) != SPEC_STATUS_SUCCESS) {
        return 0;
    }
    void *workspace = malloc(bytes > 0 ? bytes : 1);
    spec_deduplicate_topk_buffers buffers = {0};
    buffers.size = sizeof buffers;
    buffers.indices = indices;
    buffers.unique = unique;
    const spec_status status =
        spec_deduplicate_topk_calculate(distinct, workspace, bytes, &buffers, NULL);
    free(workspace);
    int fine = status == SPEC_STATUS_SUCCESS;
    for (int i = 0; i < STEPS * K; i++) {
        fine &= unique[i] == (i < K ? first + i : -1);
    }
    return fine;
}

/* Calls the shared descriptor and a descriptor of this thread, and makes wrong calls in between,
 * whose errors only this thread must see. */
static void *work(void *number) {
    const int32_t first = 1000 * (int32_t)(intptr_t)number;
    char wanted[64], words[512];
    for (int call = 0; call < CALLS; call++) {
        spec_handle *none = NULL;
        spec_descriptor *own = NULL;
        sprintf(wanted, "thread%d", (int)first);
        if (spec_open(wanted, &none) != SPEC_STATUS_BAD_PARAM || !right(shared, first) ||
            make(&own) != SPEC_STATUS_SUCCESS || !right(own, first + call) ||
            spec_destroy(own) != SPEC_STATUS_SUCCESS) {
            return "a wrong result";
        }
        spec_last_error(words, sizeof words);
        if (strstr(words, wanted) == NULL) {
            return "another thread's error";
        }
    }
    return NULL;
}

int main(void) {
    pthread_t threads[THREADS];
    int failures = 0;
    if (spec_open("cpu", &cpu) != SPEC_STATUS_SUCCESS || make(&shared) != SPEC_STATUS_SUCCESS) {
        return EXIT_FAILURE;
    }
    for (intptr_t i = 0; i < THREADS; i++) {
        failures += pthread_create(&threads[i], NULL, work, (void *)i) != 0;
    }
    for (int i = 0; i < THREADS; i++) {
        void *words = NULL;
        pthread_join(threads[i], &words);
        if (words != NULL) {
            fprintf(stderr, "thread %d: %s\n", i, (const char *)words);
            failures++;
        }
    }
    spec_destroy(shared);
    spec_close(cpu);
    return failures == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
