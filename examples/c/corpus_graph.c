/* Drafts from a corpus in a CUDA graph: captured once, replayed while finished texts are appended.
 *
 *     cc -std=c99 corpus_graph.c $(pkg-config --cflags --libs spec) \
 *         -I$CUDA_HOME/include -L$CUDA_HOME/lib64 -lcudart -o corpus_graph && ./corpus_graph
 */
#include <cuda_runtime_api.h>
#include <spec.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

enum { LIMIT = 4096, LEN = 8, DRAFTS = 4, REPLAYS = 600 };

static void check(spec_status status) {
    char words[512];
    if (status == SPEC_STATUS_SUCCESS) {
        return;
    }
    spec_last_error(words, sizeof words);
    fprintf(stderr, "%s\n", words);
    exit(EXIT_FAILURE);
}

static void cuda(cudaError_t error) {
    if (error != cudaSuccess) {
        fprintf(stderr, "CUDA: %s\n", cudaGetErrorString(error));
        exit(EXIT_FAILURE);
    }
}

static spec_tensor tensor(uint32_t rank, int64_t rows, int64_t cols) {
    spec_tensor made = {0};
    made.dtype = SPEC_DTYPE_I32;
    made.rank = rank;
    made.shape[0] = rows;
    made.shape[1] = rank > 1 ? cols : 0;
    return made;
}

int main(void) {
    spec_handle *device = NULL;
    spec_corpus *corpus = NULL;
    check(spec_open("cuda:0", &device));
    check(spec_corpus_create(device, SPEC_DTYPE_I32, LIMIT, &corpus));

    spec_suffix_lookup_params params = {0};
    params.size = sizeof params;
    check(spec_suffix_lookup_defaults(&params));
    spec_suffix_lookup_tensors tensors = {0};
    tensors.size = sizeof tensors;
    tensors.tokens = tensor(2, 1, LEN);
    tensors.lengths = tensor(1, 1, 0);
    tensors.corpus = tensor(1, LIMIT, 0);
    tensors.corpus_length = tensor(1, 1, 0);
    tensors.drafts = tensor(2, 1, DRAFTS);
    tensors.counts = tensor(1, 1, 0);
    spec_descriptor *lookup = NULL;
    check(spec_suffix_lookup_create(device, &params, &tensors, &lookup));

    /* The request's memory and the stream are the engine's own. */
    int32_t *tokens, *lengths, *drafts, *counts;
    cudaStream_t stream;
    void *workspace = NULL;
    size_t bytes = 0;
    check(spec_workspace_size(lookup, &bytes));
    cuda(cudaMalloc((void **)&tokens, LEN * sizeof *tokens));
    cuda(cudaMalloc((void **)&lengths, sizeof *lengths));
    cuda(cudaMalloc((void **)&drafts, DRAFTS * sizeof *drafts));
    cuda(cudaMalloc((void **)&counts, sizeof *counts));
    cuda(cudaMalloc(&workspace, bytes > 0 ? bytes : 1));
    cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));

    spec_suffix_lookup_buffers buffers = {0};
    buffers.size = sizeof buffers;
    buffers.tokens = tokens;
    buffers.lengths = lengths;
    buffers.drafts = drafts;
    buffers.counts = counts;
    /* These two never change, so the graph may keep them. */
    check(spec_corpus_pointers(corpus, &buffers.corpus, &buffers.corpus_length));
    cudaGraph_t graph;
    cudaGraphExec_t executable;
    cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    check(spec_suffix_lookup_calculate(lookup, workspace, bytes, &buffers, stream));
    cuda(cudaStreamEndCapture(stream, &graph));
    cuda(cudaGraphInstantiateWithFlags(&executable, graph, 0));

    int wrong = 0, found = 0;
    for (int32_t replay = 0; replay < REPLAYS; replay++) {
        /* A request has finished; the texts of 4096 tokens are kept, the oldest are dropped. */
        const int32_t first = 10 * replay;
        const int32_t text[] = {first, first + 1, first + 2, first + 3, first + 4, first + 5};
        const int32_t asked[] = {first, first + 1};
        const int32_t length = 2;
        int32_t made[DRAFTS], count = 0;
        cuda(cudaMemcpyAsync(tokens, asked, sizeof asked, cudaMemcpyHostToDevice, stream));
        cuda(cudaMemcpyAsync(lengths, &length, sizeof length, cudaMemcpyHostToDevice, stream));
        /* Before the text is there, and after: the same graph. */
        for (int after = 0; after < 2; after++) {
            if (after) {
                check(spec_corpus_append(corpus, text, 6));
            }
            cuda(cudaGraphLaunch(executable, stream));
            cuda(cudaMemcpyAsync(&count, counts, sizeof count, cudaMemcpyDeviceToHost, stream));
            cuda(cudaMemcpyAsync(made, drafts, sizeof made, cudaMemcpyDeviceToHost, stream));
            cuda(cudaStreamSynchronize(stream));
            wrong += count != (after ? 4 : 0);
            for (int i = 0; i < count; i++) {
                wrong += made[i] != first + 2 + i;
            }
            found += (int)count;
        }
    }
    size_t kept = 0;
    check(spec_corpus_size(corpus, &kept, NULL));
    printf("%d drafts by %d replays, %d tokens are kept: %s\n", found, 2 * REPLAYS, (int)kept,
           wrong ? "wrong" : "right");

    cuda(cudaGraphExecDestroy(executable));
    cuda(cudaGraphDestroy(graph));
    cuda(cudaStreamDestroy(stream));
    cuda(cudaFree(workspace));
    cuda(cudaFree(counts));
    cuda(cudaFree(drafts));
    cuda(cudaFree(lengths));
    cuda(cudaFree(tokens));
    check(spec_destroy(lookup));
    check(spec_corpus_destroy(corpus));
    check(spec_close(device));
    return wrong ? EXIT_FAILURE : EXIT_SUCCESS;
}
